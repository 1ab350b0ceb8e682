#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Ten differences between two commands, each planted in one place: tessera bisect names its step, rank, instruction and tensor
# by itself, within 40 steps run again. `bent` is the command from another build (tests/support/bent_main.c).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
small="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 1 --quiet --deterministic"
bent=$BUILD/tests/support/bent
faulty=$BUILD/tests/conformance/bad/faulty
[ -x "$bent" ] || fail "no $bent"
# finds A B LINE: two commands, which are split into words, and what the first line of the verdict says.
finds() {
  expect 1 "$TESSERA" bisect --json=verdict -- $1 -- $2
  has_line out "different: $3"
  again=$(grep -oE '"steps_again":[0-9]+' verdict | cut -d: -f2)
  [ "$again" -gt 0 ] && [ "$again" -le 40 ] || fail "$again steps were run again: $(cat out)"
}
train="tessera train $small --steps 3"
# Another formula in one kernel: the first block that has it.
finds "$train -n 2" "env BENT=gelu $bent train $small --steps 3 -n 2" 'step 1, rank 0, microbatch 0, forward of "h.0": output of h.0, element [0-9]+'
# Another order of a sum: four microbatches one after the other, in place of the tree of deterministic mode.
other=${small/ --deterministic/}
finds "$train --threads 1 --accum 4" "tessera train $other --steps 3 --threads 1 --accum 4" \
  'step 1, rank 0, sum of shards of unit head .*: gradient of head.ln_f.weight, element [0-9]+'
# One element of the data. The step is the first that reads it.
seq 1 60 >text
sed 's/^20$/2x/' text >other
finds "$train --steps 12 -n 2 --sample 0 --data text" "$train --steps 12 -n 2 --sample 0 --data other" \
  'step [0-9]+, rank [01], microbatch 0, input: value of the batch, element [0-9]+'
# A seed: the initial values.
finds "$train" "$train --seed 2" 'step 1, rank 0, what rests before the step: parameter of embed.wte.weight, element 0'
# An instruction set of oneDNN's: the first convolution. Without AVX-512 a decoder's products are none of oneDNN's.
digits="mnist $(brief_digits) --quiet --deterministic --steps 3 -n 2"
finds "tessera train $digits" "env ONEDNN_MAX_CPU_ISA=SSE41 $TESSERA train $digits" \
  'step 1, rank 0, microbatch 0, forward of "conv1": output of conv1, element [0-9]+'
# A plugin with a fault: its step depends on where the shard is cut.
finds "$train -n 2 --optimizer $faulty/optimizer_none.so" "$train -n 2 --optimizer $faulty/optimizer_depends_on_cut.so" \
  'step 1, rank [01], optimizer step of unit .*: [a-z_]+ of .*, element [0-9]+'
# One flipped bit, in step 11 on rank 1. The runs go on from the checkpoint of step 8 that bisect has made.
finds "$train --steps 12 -n 2" "env BENT=flip BENT_STEP=11 $bent train $small --steps 12 -n 2" \
  'step 11, rank 1, optimizer step of unit embed.wte.weight .*: exp_avg_sq of embed.wte.weight, element 4097'
grep -q 'runs B again to step 11 from .*/saved/step-000008$' err || fail "$(cat err)"
grep -q '"event":"bisect","equal":false,.*"last":11,.*"rank":1,.*"tensor":"embed.wte.weight","element":4097,"dtype":\["f32","f32"\],"value":' verdict || fail "$(cat verdict)"
[ "$again" = 12 ] || fail "$again steps were run again, expected 12"
# Another weight decay of one group: the first unit that has parameters of the group.
finds "$train -n 2" "env BENT=decay $bent train $small --steps 3 -n 2" \
  'step 1, rank 0, optimizer step of unit h.0 .*: parameter of h.0.ln_1.weight, element 0'
# More microbatches: the first sum of gradients.
finds "$train -n 2" "$train -n 2 --accum 2" 'step 1, rank 0, reduce_scatter of unit head .*: gradient of head.ln_f.weight, element [0-9]+'
# A resume from another run's checkpoint: the states, before any instruction.
expect 0 "$TESSERA" train $small -n 2 --steps 2 --beta2 0.9 --save wrong
finds "$train -n 2" "$train -n 2 --resume wrong/step-000002" \
  'step 3, rank 0, what rests before the step: exp_avg of embed.wte.weight, element [0-9]+'

# A flip that comes once: the first run had it, the second has not.
expect 1 "$TESSERA" bisect --json=verdict -- $train -n 2 -- env BENT=flip-once BENT_STEP=2 BENT_FILE=$PWD/flipped "$bent" train $small --steps 3 -n 2
has_line out 'different: step 2, unit embed, exp_avg_sq; in that step differ:'
has_line out '  B: run again, step 2 has another root: what differs does not come again; a bit flipped in memory or in a core, or the command, its data or its checkpoint are not the run.s'
grep -q '"equal":false,.*"a_comes_again":true,"b_comes_again":false,"steps_again":4}' verdict || fail "$(cat verdict)"
nothing_left
