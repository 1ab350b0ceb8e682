#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# tessera bisect finds its way alone from two commands: the first step, instruction, tensor and element that differ, with both
# values, within 40 steps run again. Two programs of other strategies, ranks and offload have nothing that differs before that.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
mkdir tmp && export TMPDIR=$PWD/tmp # what they leave there is theirs
small="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 1 --quiet --deterministic --steps 3"
# finds A B PATTERN…: bisects `tessera train` with these options; lines match the patterns.
finds() {
  expect 1 "$TESSERA" bisect -- tessera train $small $1 -- tessera train $small $2
  has_line out "different: $3"
  for pattern in "${@:4}"; do has_line out "  $pattern"; done
  again=$(grep -oE '[0-9]+ steps were run again' out | cut -d' ' -f1)
  [ "$again" -le 40 ] || fail "$again steps were run again: $(cat out)"
}
# Another seed gives other initial values; more microbatches, another sum; another beta2, another state of the first unit's step.
finds "-n 2" "-n 2 --seed 2" 'step 1, rank 0, what rests before the step: parameter of embed.wte.weight, element 0' \
  'A: [-0-9.e]+ \(f32, [0-9a-f]{8}\)' 'B: [-0-9.e]+ \(f32, [0-9a-f]{8}\)' 'instruction 0 of the step, unit embed; 4 steps were run again'
finds "-n 2" "-n 2 --accum 2" 'step 1, rank 0, reduce_scatter of unit head \([0-9]+ elements\): gradient of head.ln_f.weight, element [0-9]+' \
  'in B it is: sum of shards of unit head .*'
finds "-n 2" "-n 2 --beta2 0.9" 'step 1, rank 0, optimizer step of unit embed.wte.weight \([0-9]+ elements\): exp_avg_sq of embed.wte.weight, element 0'
# Programs of other strategies and so on have the same tensors up to there.
decays() { finds "$1" "$2 --weight-decay 0.5" 'step 1, rank 0, optimizer step of unit embed.wte.weight .*: parameter of embed.wte.weight, element 0'; }
decays "-n 2" "-n 2 --strategy none --wrap none"
has_line out '  in B it is: optimizer step of unit root .*'
decays "-n 2" "-n 2 --strategy grad_op --activations recompute"
decays "-n 2 --accum 2" "-n 1 --accum 4 --offload cpu --activations offload"
decays "-n 1 --accum 4 --precision bf16 --clip 0.1" "-n 2 --accum 2 --precision bf16 --clip 0.1 --sync end --low-copy"
decays "-n 4" "-n 4 --strategy hybrid:2"
decays "-n 2" "-n 2 --offload disk:."
decays "-n 4 --precision wire8:fp8 --strategy hybrid:2" "-n 4 --precision wire8:fp8 --strategy hybrid:2 --wrap none"
expect 0 "$TESSERA" bisect -- tessera train $small -n 2 -- tessera train $small --accum 2
one_line out 'equal: 3 steps, 1 to 3'
# A ledger's run is run again from its checkpoint.
expect 0 "$TESSERA" train $small -n 2 --save run --save-every 1 --ledger good
expect 0 "$TESSERA" train $small -n 2 --freeze "h.1.*" --ledger bad
expect 1 "$TESSERA" bisect good bad -- tessera train $small -n 2 -- tessera train $small -n 2 --freeze "h.1.*"
has_line out 'different: step 1, rank 0, end of the gradient norm: norm of all gradients, element 0'
grep -q "runs good again to step 1 from its beginning$" err || fail "$(cat err)"
nothing_left
[ -z "$(ls tmp)" ] || fail "left: $(ls tmp)"
# The variables that it sets: lines of one step by rank, and one tensor's elements. Planned bytes are still the measured ones.
mkdir detail
expect 0 env TESSERA_DETAIL=detail TESSERA_DETAIL_STEP=2 TESSERA_DETAIL_VALUES='sum gradient of head.ln_f.bias' "$TESSERA" train $small -n 2 --json=run.json
[ "$(ls detail | tr '\n' ' ')" = "lines-0 lines-1 values-0 values-1 " ] || fail "$(ls detail)"
[ "$(head -n 1 detail/values-1 | grep -o '"elems":32,')" ] && [ "$(tail -n +2 detail/values-1 | wc -c)" = 128 ] || fail "$(head -n 1 detail/values-1)"
for domain in device host; do
  [ "$(summary peak_${domain}_bytes run.json)" = "$(summary planned_peak_${domain}_bytes run.json)" ] || fail "$domain: $(tail -n 1 run.json)"
done
expect 6 env TESSERA_DETAIL=none TESSERA_DETAIL_STEP=2 "$TESSERA" train $small
grep -q 'TESSERA_DETAIL: none/lines-0: No such file or directory' err || fail "$(cat err)"
# Two commands with "--" of their own are told apart; otherwise the command line is refused.
expect 0 "$TESSERA" bisect --step 1 -- "$TESSERA" run -n 2 -- "$TESSERA" train $small -- "$TESSERA" run -n 2 -- "$TESSERA" train $small
one_line out 'equal: 1 step, 1 to 1'
expect 2 "$TESSERA" bisect -- a -- b -- c
grep -q "where the second command begins cannot be told" err || fail "$(cat err)"
expect 2 "$TESSERA" bisect good
expect 6 "$TESSERA" bisect good -- true
grep -q 'the command of B wrote no ledger; it ended with code 0' err || fail "$(cat err)"
