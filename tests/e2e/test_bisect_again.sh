#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 200
# bisect and replay run commands again, and say when a command is not the ledger's run: other options, data that has changed, no
# checkpoint to begin with, another --steps. A ledger that begins behind a checkpoint names it.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
mkdir tmp && export TMPDIR=$PWD/tmp
seq 1 400 >text
small="gpt --layers 1 --heads 2 --width 16 --context 8 --batch 1 --quiet --deterministic --sample 0 --data text"
run="tessera train $small --steps 6"
train() { expect 0 "$TESSERA" train $small --steps 6 "$@"; }
warns() { grep -Eq "$1" err || fail "expected $1: $(cat err)"; }
train --ledger good
train --weight-decay 0.3 --ledger bad
bisects() { expect "$1" "$TESSERA" bisect --json=verdict good bad -- "${@:2}"; }

# Other options on one side or both, or the two commands in the wrong order: no verdict.
bisects 1 $run -- $run --weight-decay 0.3
has_line out 'different: step 1, rank 0, optimizer step .*'
grep -q '"a_comes_again":true,"b_comes_again":true,"steps_again":4}' verdict || fail "$(cat verdict)"
bisects 6 $run -- $run
warns 'error: bad: line 1: it is the ledger of another run, with weight-decay=0.3, and the command has weight-decay=0.1$'
bisects 6 $run --weight-decay 0.2 -- $run --weight-decay 0.3
warns 'error: good: line 1: .* the command has weight-decay=0.2$'
bisects 6 $run --weight-decay 0.3 -- $run
bisects 6 $run --accum 2 -- $run --weight-decay 0.3
warns 'error: good: line 1: .* with microbatches=1, and the command has microbatches=2$'

# What words do not have is found by the root, also where the two commands differ.
rm -f bad && train --freeze 'h.0.*' --ledger bad
bisects 1 $run -- $run --freeze 'embed.*'
has_line out '  bad: run again, step 1 has another root: the difference may not be the run.s; .* or the command, its data or its checkpoint are not the run.s'
grep -q '"a_comes_again":true,"b_comes_again":false,"steps_again":4}' verdict || fail "$(cat verdict)"
bisects 1 $run -- $run
has_line out '  bad: run again, step 1 has another root: what differs does not come again; a bit flipped in memory or in a core, or the command, .*'
expect 1 "$TESSERA" bisect --json good bad
grep -q '"a_comes_again":null,"b_comes_again":null,"steps_again":0}' out || fail "$(cat out)"

# Every byte of the training data counts, also one that no early batch has; one that is held out does not.
cp text kept
tr 0 x <text >swapped
expect 1 "$TESSERA" bisect --json=verdict -- $run --batch 8 -- $run --batch 8 --data swapped
has_line out 'different: step [0-9]+, rank 0, microbatch 0, input: value of the batch, element [0-9]+'
has_line out '  sample [0-7] of the batch, byte [0-8]: 48 and 120'
grep -Eq '"element":[0-9]+,"sample":[0-7],"place":[0-8],' verdict || fail "$(cat verdict)"
size=$(wc -c <text)
for at in 1000 $((size * 9 / 10 - 1)); do
  cp kept text && printf '!' | dd of=text bs=1 seek=$at conv=notrunc status=none
  expect 6 "$TESSERA" replay good -- $run
  warns 'error: good: line 1: it is the ledger of another run, with data=[0-9a-f]*, and the command has data=[0-9a-f]*$'
done
cp kept text && printf '!' | dd of=text bs=1 seek=$((size - 2)) conv=notrunc status=none
expect 0 "$TESSERA" replay good -- $run
cp kept text

# The batch of a step, by the name of its tensor.
mkdir batch
expect 0 env TESSERA_REPLAY=2 TESSERA_DETAIL=batch TESSERA_DETAIL_STEP=2 TESSERA_DETAIL_VALUES='the batch' "$TESSERA" train $small --steps 6
sample=$(tail -n +2 batch/values-0 | tail -c +65 | head -c 9 | tr '\n' ' ')
[ ${#sample} = 9 ] && tr "\n" " " <text | grep -qF "$sample" || fail "no text: $sample"

# Another number of steps may have other rates.
expect 1 "$TESSERA" replay good --step 2 -- tessera train $small --steps 60
warns 'warning: good has steps=6, and the command has steps=60: the learning rate may differ$'

# A ledger behind a checkpoint: the checkpoint is found by itself, though --resume has newer ones by now.
train --save run --save-every 2 --keep 0 --ledger whole
expect 0 "$TESSERA" train $small --steps 6 --resume run/step-000002 --ledger later
rm -rf run/step-000004
expect 0 "$TESSERA" replay later -- $run
warns "replays to step 6 from $PWD/run/step-000002\$"
expect 0 "$TESSERA" replay later -- $run --resume run
one_line out 'equal: 4 steps, 3 to 6'
expect 0 "$TESSERA" replay whole --step 5 -- $run
warns 'of the checkpoints that whole names these are no longer on disk: 4$'
rm -rf run
expect 0 "$TESSERA" replay later -- $run
one_line out 'equal: 4 steps, 3 to 6'
# Without it, a run from the beginning may be equal; when it is not, its steps are others.
train --lr 0.01 --steps 2 --save other-run
expect 0 "$TESSERA" train $small --steps 6 --resume other-run --ledger astray
rm -r other-run
expect 6 "$TESSERA" replay astray -- $run
warns 'error: astray begins behind step 2, and the command behind step 0: it needs --resume with the checkpoint of step 2$'
expect 6 "$TESSERA" bisect good astray -- $run -- $run
warns 'error: astray begins behind step 2, '

# The names in the example are those of --isa.
isa=$("$TESSERA" bisect --help | grep -oE -- '--isa [a-z0-9_]+' | head -n 1)
expect 0 "$TESSERA" train $small --steps 1 $isa

# A ledger without its end is doubtful to both.
head -n -1 good >cut
expect 0 "$TESSERA" bisect good cut
warns 'warning: cut does not end: '
nothing_left
[ -z "$(ls tmp)" ] || fail "left: $(ls tmp)"
