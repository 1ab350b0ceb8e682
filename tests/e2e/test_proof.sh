#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 400
# twin: 120
# A step has the same digests on one to four ranks, with every strategy, wrap policy and offload. A run that was killed goes on
# with its ledger. replay finds that another run is equal or where it is not, bisect the first difference of two; a ledger that
# was changed, cut or is another run's is refused with its first bad line. With DOUBLES=1 digests of a device's memory, of which
# nothing races.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
mkdir tmp && export TMPDIR=$PWD/tmp # what they leave there is theirs
small="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 1 --quiet --deterministic"
base="$small --steps 4" on=
if [ -n "${DOUBLES:-}" ]; then
  needs_doubles plugins/libtessera-device-cuda.so plugins/libtessera-comm-nccl.so tests/doubles/libcublas.so.13 tests/doubles/libnccl.so.2
  seq 1 400 >text
  base="gpt --batch 1 --layers 2 --heads 2 --width 64 --context 8 --steps 3 --deterministic --device cuda --sample 0 --data text --quiet"
  on=on_double
fi
roots() { grep -o '"root":"[0-9a-f]*","digests":[^]]*' "$1"; }
steps() { grep -c '"type":"step"' "$1"; }
# planned FILE: both domains' measured peaks are the planned ones.
planned() {
  for domain in device host; do
    [ "$(summary peak_${domain}_bytes "$1")" = "$(summary planned_peak_${domain}_bytes "$1")" ] || fail "$domain: $(tail -n 1 "$1")"
  done
}
train() { # train LEDGER OPTION…
  rm -f "$1"
  expect 0 $on "$TESSERA" train $base "${@:2}" --ledger "$1" --json=run.json
  planned run.json
}

like_one() { train other "$@" && [ "$(roots one)" = "$(roots other)" ] || fail "other digests: $*"; }
if [ -n "$on" ]; then
  train one --accum 2
  [ "$(roots one | sort -u | wc -l)" = 3 ] || fail "steps: $(cat one)"
  like_one --accum 2 --offload cpu
  like_one --accum 2 --offload cpu:grads
  like_one -n 2
  like_one -n 2 --offload cpu --strategy none
  train one --accum 2 --precision bf16 --clip 0.1
  like_one -n 2 --precision bf16 --clip 0.1 --low-copy
  expect 3 $on "$TESSERA" train $base --at-rest-digests
  grep -q 'TESSERA_AT_REST_DIGESTS=1: device cuda has memory that the host does not read' err || fail "$(cat err)"
  exit 0
fi

# The same digests, whatever holds the shards.
train one --accum 4
[ "$(steps one)" = 4 ] && [ "$(roots one | sort -u | wc -l)" = 4 ] || fail "steps: $(cat one)"
[ "$(summary planned_peak_host_bytes run.json)" -gt 0 ] || fail "the ledger's memory is not planned: $(tail -n 1 run.json)"
like_one -n 2 --accum 2
like_one -n 2 --accum 2 --strategy none --wrap none
like_one -n 2 --accum 2 --offload cpu --sync end --at-rest-digests --eval-every 2
like_one -n 4 --strategy hybrid:2 --threads 2 --at-rest-digests
like_one -n 4 --strategy grad_op --wrap size:2000 --strict
like_one -n 4 --offload cpu --activations offload
train three -n 3 --accum 4
train other -n 3 --accum 4 --strategy none --wrap none
[ "$(roots three)" = "$(roots other)" ] || fail "other digests on three ranks"
train bf16 --accum 4 --precision bf16 --clip 0.1 --optimizer adamw8bit
train other -n 4 --precision bf16 --clip 0.1 --optimizer adamw8bit --low-copy --at-rest-digests
[ "$(roots bf16)" = "$(roots other)" ] || fail "other digests with bf16"
train other -n 2 --accum 2 --ledger-every 2
[ "$(roots one | sed -n '2p;4p')" = "$(roots other)" ] || fail "every second step"

# The first step's gradients do not depend on the optimizer, and those of matrices are in its digests too.
gradients() { grep -o '"digests":\[[^]]*' "$1" | head -n 1 | grep -oE '"[0-9a-f]{32,}' | cut -c18-33; }
for n in 1 2; do
  train other -n $n --accum $((4 / n)) --optimizer muon
  [ -n "$(gradients one)" ] && [ "$(gradients one)" = "$(gradients other)" ] || fail "gradients of matrices on $n: $(gradients one) $(gradients other)"
done

# What differs first in time: of a step with other weight decay parameters, of one with another beta2 a state.
train other --accum 4 --weight-decay 0.5
expect 1 "$TESSERA" bisect one other
has_line out 'different: step 1, unit [^ ]+, parameter; in that step differ:'
! grep -q 'gradient\|exp_avg' out || fail "only parameters: $(cat out)"
grep -q 'one has weight-decay=.*, other has weight-decay=0.5' err || fail "$(cat err)"
train other --accum 4 --beta2 0.9
expect 1 "$TESSERA" bisect one other
has_line out 'different: step 1, unit [^ ]+, exp_avg_sq; in that step differ:'
train other --accum 4 --seed 2
expect 1 "$TESSERA" bisect one other
has_line out 'different: step 1, unit [^ ]+, gradient; in that step differ:'
expect 0 "$TESSERA" bisect --json=verdict one one
one_line verdict '{"event":"bisect","equal":true,"steps":4,"first":1,"last":4,"unit":null,"kind":null,"a_comes_again":null,"b_comes_again":null,"steps_again":0}'
one_line out 'equal: 4 steps, 1 to 4'

# Killed once, it goes on with its ledger; so does a run whose lost rank is replaced from memory.
longer="$small --steps 12 --accum 2 --save run --save-every 3"
shim='[ "$RANK$1${TESSERA_RESTART:-0}${TESSERA_GENERATION:-0}" = 0"$2"00 ] && (while [ "$(grep -c "\"type\":\"step\"" killed)" -lt 8 ]; do sleep 0.01; done; kill -KILL $$) & shift 2; exec "$@"'
restart() { rm -rf run killed && touch killed && expect 0 "$TESSERA" run -n 2 "${@:2}" -- sh -c "$shim" sh "" "" "$TESSERA" train $longer --steps 60 --ledger killed $1; }
rm -f whole
expect 0 "$TESSERA" train $small --steps 60 -n 4 --ledger whole
restart "--at-rest-digests" --restarts 3
[ "$(grep -c '"type":"begin"' killed)" = 2 ] || fail "the killed run: $(cut -c1-100 killed | tail -n 20)"
expect 0 "$TESSERA" bisect whole killed
one_line out 'equal: 60 steps, 1 to 60'
restart "--mirror 1 --at-rest-digests"
[ "$(grep -c '"type":"begin"' killed)" = 2 ] || fail "the lost rank: $(cut -c1-100 killed | tail -n 20) $(cat err)"
expect 0 "$TESSERA" bisect whole killed
one_line out 'equal: 60 steps, 1 to 60'
nothing_left

# Replayed from the newest checkpoint before, on other ranks. Nothing but the verdict is left.
rm -rf run ledger
expect 0 "$TESSERA" train $longer -n 2 --ledger ledger
cp ledger kept && cp -r run kept.run
again="$TESSERA train $small --steps 12"
replay() { expect "$1" "$TESSERA" replay ledger --step "$2" -- "${@:3}"; }
replay 0 8 tessera train $longer --accum 4 --ledger ledger
one_line out 'equal: 2 steps, 7 to 8'
grep -q "from $PWD/run/step-000006$" err || fail "$(cat err)"
replay 0 2 $again -n 4 --strategy none --wrap none
one_line out 'equal: 2 steps, 1 to 2'
replay 0 12 "$TESSERA" run -n 2 -- $again --accum 2 --offload cpu
one_line out 'equal: 3 steps, 10 to 12'
# On a host whose processor has less, when that was the run's limit too.
expect 0 "$TESSERA" train $small --steps 2 --isa sse41 --accum 2 --ledger narrow
expect 0 env ONEDNN_MAX_CPU_ISA=SSE41 "$TESSERA" replay narrow -- tessera train $small --steps 2 --isa sse41 -n 2 --offload cpu
one_line out 'equal: 2 steps, 1 to 2'
# The variables that it sets: a run ends after the step, and saves nothing.
rm -f own
expect 0 env TESSERA_REPLAY=8 TESSERA_REPLAY_FROM=run/step-000006 TESSERA_REPLAY_LEDGER=own "$TESSERA" train $longer -n 2 --ledger ledger --json=none.json
[ "$(steps own)" = 2 ] && [ ! -e none.json ] || fail "TESSERA_REPLAY: $(cat own)"
expect 0 env TESSERA_REPLAY=8 TESSERA_REPLAY_SAVE=saved TESSERA_REPLAY_LEDGER=own2 "$TESSERA" train $longer -n 2 --ledger ledger
[ "$(ls saved | grep -c '^step-0*8$')" = 1 ] || fail "TESSERA_REPLAY_SAVE: $(ls saved)"
cmp ledger kept && diff -r run kept.run || fail "a replay changed the run"
[ -z "$(ls tmp)" ] || fail "left: $(ls tmp)"
expect 0 "$TESSERA" replay ledger --step 2 --json -- $again -n 4
one_line out '{"event":"replay","equal":true,"steps":2,"first":1,"last":2,"unit":null,"kind":null}'
replay 1 2 $again --accum 4 --freeze 'h.0.*'
has_line out 'different: step 1, unit h.0, gradient; in that step differ:'
replay 6 8 $again --accum 4 --lr 0.5
grep -q 'error: ledger: line 1: it is the ledger of another run, with lr=0.002, and the command has lr=0.5$' err || fail "$(cat err)"
replay 6 99 true
grep -q 'error: ledger has no step 99: .* steps 1 to 12$' err || fail "$(cat err)"
replay 6 8 sh -c 'exit 3'

# Every way to change it is named with its line; a run does not go on with what is not as it was written.
refused() { # refused PATTERN
  expect 6 "$TESSERA" replay bad --step 2 -- true
  grep -Eq "error: bad: $1" err || fail "expected $1: $(cat err)"
  expect 6 "$TESSERA" bisect ledger bad
  [ "$2" = cut ] || { expect 6 "$TESSERA" train $small --steps 12 --accum 4 --ledger bad && grep -Eq "bad: $1" err || fail "$(cat err)"; }
}
sed '4s/"root":"./"root":"z/' kept >bad && refused 'line 4 is not as it was written' changed
sed '3d' kept >bad && refused 'line 3 is not as it was written' removed
sed '1s/seed=1/seed=2/' kept >bad && refused 'line 1 is not as it was written' changed
head -c -9 kept >bad && refused "line $(wc -l <kept) is cut" cut
echo hello >bad && refused 'line 1 is none' foreign
: >bad && expect 6 "$TESSERA" bisect ledger bad

# Two runs do not write one file, and a full disk does not end the run.
flock kept -c "\"$TESSERA\" train $small --steps 12 --accum 4 --ledger kept" >out 2>err && fail "two runs write one file" || true
grep -q 'TESSERA_LEDGER=kept: another run writes it' err || fail "$(cat err)"
expect 0 bash -c "ulimit -f 4; exec \"$TESSERA\" train $small --steps 40 --accum 1 --ledger full"
grep -q 'warning: TESSERA_LEDGER=full: File too large; it ends with step [0-9]*, and the run goes on' err || fail "$(cat err)"
expect 0 "$TESSERA" bisect full full
