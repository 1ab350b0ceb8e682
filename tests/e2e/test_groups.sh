#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 200
# processors: 2
# --groups beside what else changes a run: deterministic, one digest over ranks, strategies, units, offload, accumulation and a run
# that goes on; planned bytes are the measured ones, with a built-in optimizer, with blocks and with whole matrices. Groups of
# adapters (LoRA). `tune` prints the option. A rank lost is in test_recover; schedules, texts and refusals are in test_tutorial.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
head -c 3000 "$SOURCE/README.md" >text # the evaluation at the end is short
gpt="gpt --data text --layers 2 --width 72 --heads 2 --context 16 --batch 1 --steps 4 --clip 0.5"
groups='embed.*:lr=0.001,schedule=constant,warmup=0;h.*.ln_*,*.bias:weight-decay=0,lr=0.0005;h.0.*:lr=0.004,warmup=2,min-lr=0.001'
. "$SOURCE/tests/e2e/trains.sh"
always=(--groups "$groups")
same() {
  trains --optimizer $optimizer "$@"
  [ "$digest" = "$first" ] || fail "$optimizer: $* gives $digest, not $first"
}
there() { [ -e "$BUILD/plugins/libtessera-$1.so" ]; }
model=$gpt
for optimizer in adamw adamw8bit muon; do
  [ $optimizer = adamw ] || there optimizer-$optimizer || continue
  # shellcheck disable=SC2086
  plain=$("$TESSERA" train $gpt --quiet --json --optimizer $optimizer --accum 4 2> err | sed -n 's/.*"params_digest":"\([0-9a-f]*\)".*/\1/p')
  trains --optimizer $optimizer --accum 4
  first=$digest
  [ -n "$plain" ] && [ "$plain" != "$first" ] || fail "$optimizer: groups change nothing: $plain"
  same -n 2 --accum 2 --strategy grad_op
  same -n 4 --accum 1 --strategy hybrid:2
  same -n 4 --accum 1 --wrap none
  same -n 2 --accum 2 --activations recompute --threads 2
  if there offload-cpu; then
    same -n 2 --accum 2 --offload cpu
    same -n 4 --accum 1 --strategy hybrid_grad_op:2 --offload cpu:optimizer
  fi
  there offload-disk && same -n 2 --accum 2 --offload disk:.
  rm -rf save
  same -n 2 --accum 2 --save save --save-every 2
  same -n 4 --accum 1 --strategy hybrid:2 --resume save/step-000002
done

# Adapters: one factor of each pair learns at another rate, as LoRA+ does; one digest whatever holds them.
printf "$(awk 'BEGIN { for (i = 0; i < 3000; i++) printf "\\%03o\\000", (i * i + 7 * i) % 61 }')" > nano.bin
model="gpt2 --model $SOURCE/tests/reference/data/hf-gpt2 --lora rank=3,alpha=6,targets=c_attn,c_fc --context 16 --batch 2 --steps 3 --data nano.bin --token-bits 16"
optimizer=adamw groups='*:lr=0.0003'
always=(--groups "$groups")
trains --optimizer adamw --accum 4
plain=$digest
groups='*.lora_B.*:lr=0.004;*.lora_A.*:weight-decay=0'
always=(--groups "$groups")
trains --optimizer adamw --accum 4
first=$digest
[ "$first" != "$plain" ] || fail "groups of adapters change nothing"
same -n 2 --accum 2
same -n 4 --accum 1 --strategy hybrid:2
! there offload-cpu || same -n 2 --accum 2 --offload cpu
# shellcheck disable=SC2086
expect 3 "$TESSERA" train $model --quiet --groups '*.c_attn.weight:lr=1'
grep -q 'groups: gpt2 trains no parameter of the name "\*.c_attn.weight"' err || fail "a group of frozen parameters: $(cat err)"

# The command that tune prints has them, quoted, and runs.
groups='embed.*:lr=0.001,schedule=constant; h.*:lr=0.004'
TESSERA_THREADS=1 expect 0 "$TESSERA" tune gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2 -n 2 --groups "$groups" --quiet
TESSERA_THREADS=1 expect 0 "$TESSERA" tune gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2 -n 2 --groups "$groups"
command=$(grep '^tessera train ' out err | tail -n 1 | sed 's/^[a-z]*://')
case $command in *"--groups '$groups'"*) ;; *) fail "tune prints: $command" ;; esac
eval "\"$TESSERA\" ${command#tessera } --data text --steps 2 --quiet --json" > out 2> err || fail "$command: $(cat err)"
grep -q '"group_lr":\[0.001,' out || fail "$command has no rates of groups: $(head -c 400 out)"
