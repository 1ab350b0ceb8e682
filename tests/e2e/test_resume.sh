#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 400
# 3 steps, a checkpoint, 3 steps: the losses, bit for bit, and the digest of 6 steps, whatever the combination; under
# --deterministic on any number of ranks that divides the microbatches; and by another strategy, wrap and offload.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
declare -A model=( [gpt]="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 2"
  [mnist]="mnist $(brief_digits) --batch 4" [convbn]="convbn --image-size 15 --hidden 8 --batch 2" )
summary() { grep -o "\"$2\":[^,}]*" "$1" | tail -n 1 | cut -d: -f2; }
losses() { grep '"event":"step"' "$1" | sed -E 's/.*"step":([456]),.*"loss":([^,}]*).*/\1 \2/' | grep '^[456] '; }
train() { "$TESSERA" train "$@" --steps 6 --threads 1 --quiet >>out 2>&1 || fail "train $*: $(tail -n 3 out)"; }
count=0
# same OPTION…: saved and gone on with in the same way.
same() {
  rm -rf run
  train "$@" --save run --save-every 3 --json=whole.json
  train "$@" --resume run/step-000003 --json=again.json
  [ "$(losses whole.json)" = "$(losses again.json)" ] && [ "$(losses again.json | wc -l)" = 3 ] || fail "losses of $*: $(losses whole.json) $(losses again.json)"
  [ "$(summary whole.json params_digest)" = "$(summary again.json params_digest)" ] || fail "digest of $*"
  count=$((count + 1))
}
# elsewhere OPTION… -- OPTION…: gone on with in another way, to the same digest.
elsewhere() {
  local first=(); while [ "$1" != -- ]; do first+=("$1"); shift; done; shift
  train "${first[@]}" --resume run/step-000003 "$@" --json=again.json
  [ "$(summary whole.json params_digest)" = "$(summary again.json params_digest)" ] || fail "digest of $* after ${first[*]}"
  count=$((count + 1))
}
for name in gpt mnist convbn; do
  for ranks in 1 2 3 4; do same ${model[$name]} -n $ranks; done
done
for strategy in grad_op none hybrid:2 hybrid_grad_op:2; do same ${model[gpt]} -n 4 --strategy $strategy; done
same ${model[gpt]} -n 2 --offload cpu
same ${model[gpt]} -n 2 --precision bf16
same ${model[gpt]} -n 2 --activations recompute --clip 0.5
same ${model[gpt]} -n 2 --activations offload --offload cpu --precision bf16
same ${model[gpt]} -n 2 --accum 2 --sync end
same ${model[mnist]} -n 3 --accum 2
same ${model[gpt]} -n 2 --optimizer sgd --momentum 0.9 --lr 0.01
TESSERA_CHECKPOINT=sync same ${model[gpt]} -n 3 --strategy none
same ${model[gpt]} -n 2 --wrap none
elsewhere ${model[gpt]} -- -n 2 --strategy none
elsewhere ${model[gpt]} -- -n 2 --wrap size:2000 --offload cpu
same ${model[gpt]} -n 2 --accum 4 --deterministic
for ranks in 1 4 8; do elsewhere ${model[gpt]} --deterministic -- -n $ranks; done
echo "$count runs went on to the same bits"

# Others are refused in one line, before anything is started: 8 microbatches are not divided by 3 ranks.
expect() { local code=0; "$TESSERA" train "${@:3}" --steps 6 --threads 1 --quiet >got 2>&1 || code=$?
  [ $code = "$1" ] && grep -q "$2" got && [ "$(wc -l <got)" = 1 ] || fail "exit $code of ${*:3}: $(cat got)"; }
expect 3 "8 microbatches, which 3 ranks cannot share with the same bits: take 1, 2, 4 or 8 ranks" ${model[gpt]} --deterministic -n 3 --resume run
expect 6 "checkpoint of another model" ${model[mnist]} -n 1 --resume run
expect 6 "saved with optimizer adamw, this run has sgd" ${model[gpt]} -n 2 --accum 4 --deterministic --optimizer sgd --resume run
expect 6 "nowhere: No such file" ${model[gpt]} -n 1 --resume nowhere
mkdir empty
expect 6 "empty: there is no checkpoint that loads" ${model[gpt]} -n 2 --resume empty

# Damage: the newest that verifies is taken, and a line says why; without any, exit 6.
flip() { printf '\377' | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; }
train ${model[gpt]} -n 2 --save run2 --save-every 3 --json=whole.json
flip run2/step-000006/data-1-00001-of-00002.safetensors 150000
train ${model[gpt]} -n 2 --resume run2 --json=again.json
grep -q "step-000006.*the checksum of .* is wrong.*trying the checkpoint before" out || fail "no word of the damage"
[ "$(summary whole.json params_digest)" = "$(summary again.json params_digest)" ] || fail "digest after damage"
expect 6 "step-000006.*the checksum of .* is wrong" ${model[gpt]} -n 2 --resume run2/step-000006
rm run2/step-000003/manifest.json
code=0; "$TESSERA" train ${model[gpt]} -n 1 --steps 6 --quiet --resume run2 >got 2>&1 || code=$?
[ $code = 6 ] && grep -q "run2: there is no checkpoint that loads" got || fail "exit $code: $(cat got)"

# The first lines say what goes on: a checkpoint with its optimizer, a folder with parameters alone.
said() { "$TESSERA" train ${model[gpt]} -n 1 --threads 1 "$@" >got 2>&1 || fail "$*: $(cat got)"; }
said --steps 3 --save run3 --export folder
said --steps 4 --resume run3
grep -q 'going on after step 3 of 4' got && ! grep -q 'begin anew' got || fail "a checkpoint: $(cat got)"
said --steps 4 --resume folder
grep -q 'optimizer state and schedule begin anew' got || fail "a folder: $(cat got)"
