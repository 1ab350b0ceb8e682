#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# A run that diverges: one line and exit code 1, or what --on-nan says; its checkpoints displace none that is finite. Ranks
# with other options or data are refused; a run that goes on otherwise than it was saved says so.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
gpt="gpt $(brief_text) --layers 1 --heads 2 --width 32 --context 16 --batch 2 --threads 1 --quiet"
diverges="$gpt --optimizer sgd --lr 1e6 --clip 0 --steps 12"
stopped() { # OPTION…: what the launcher adds is no line of a rank's
  expect 1 "$TESSERA" train $diverges "$@"
  grep -Eq 'step [0-9]+ leaves values that are not finite: rank [0-9], unit [a-z0-9.]+: element [0-9]+ of |step [0-9]+: the (loss of rank [0-9]|gradient norm) is -?(nan|inf)' err || fail "$*: $(cat err)"
}
for options in "-n 1" "-n 2" "-n 2 --strategy none" "-n 2 --offload cpu" "-n 2 --accum 2" "-n 2 --strict" "-n 1 --precision bf16" "-n 2 --clip 1e30"; do
  stopped $options
done

# What is finite stays, however long the run goes on.
expect 0 "$TESSERA" train $diverges -n 2 --on-nan warn --save run --save-every 1 --keep 2 --json=out.json
[ "$(grep -c 'not finite\|the loss is' err)" -le 4 ] || fail "warned too often: $(cat err)"
finite() { "$TESSERA" ckpt list run --json --quiet | grep -c "\"finite\":$1"; }
[ "$(finite true)" = 2 ] && [ "$(finite false)" = 2 ] || fail "kept: $("$TESSERA" ckpt list run --json --quiet)"

# Left out: nothing of the model changes any more; the plan is exact.
expect 0 "$TESSERA" train $diverges -n 2 --on-nan skip --json=skip.json --save skipped
[ "$(summary steps_skipped skip.json)" -gt 0 ] || fail "no step was skipped: $(cat err)"
"$TESSERA" ckpt list skipped --json --quiet | grep -q '"finite":true' || fail "a skipped step left NaN"
for domain in device host; do
  [ "$(summary peak_${domain}_bytes skip.json)" = "$(summary planned_peak_${domain}_bytes skip.json)" ] || fail "$domain bytes with --on-nan skip"
done

# A model that is read as NaN: the first loss of an evaluation is one line too, with nothing trained, and nothing is exported.
expect 0 "$TESSERA" train gpt2 ${diverges#gpt } --on-nan warn --export nan
for options in "-n 1" "-n 2"; do
  expect 1 "$TESSERA" train gpt2 --model nan --context 16 --batch 2 --threads 1 --quiet --steps 0 $options --export of-nan
  grep -q 'step 0: the validation loss of rank 0 is nan; ' err && [ ! -e of-nan ] || fail "evaluated NaN, $options: $(cat err)"
  expect 0 "$TESSERA" train gpt2 --model nan --context 16 --batch 2 --threads 1 --quiet --steps 0 $options --on-nan warn
  [ "$(grep -c 'step 0: the validation loss is nan; the run goes on' err)" = 1 ] || fail "evaluated NaN, $options: $(cat err)"
done

# Without NaN the bits are the same, whatever is asked for.
for options in "-n 2" "-n 2 --clip 0" "-n 2 --offload cpu --clip 0 --precision bf16"; do
  expect 0 "$TESSERA" train $gpt --steps 4 $options --json=stop.json
  for guard in "--on-nan skip" "--on-nan warn" "--spike 1000 --on-nan skip"; do
    expect 0 "$TESSERA" train $gpt --steps 4 $options $guard --json=other.json
    [ "$(summary params_digest stop.json)" = "$(summary params_digest other.json)" ] || fail "other bits: $options $guard"
    [ "$(summary peak_device_bytes other.json)" = "$(summary planned_peak_device_bytes other.json)" ] || fail "bytes: $options $guard"
  done
done

# A guard that bites: the first norm above the median of those before ends the run by name, or its step is left out.
for options in "-n 1" "-n 2" "-n 1 --clip 0"; do
  options+=" --schedule constant --warmup 0 --spike 1"
  expect 1 "$TESSERA" train $gpt --steps 200 $options
  at=$(sed -nE 's/.*error: step ([0-9]+): the gradient norm is [0-9.]+, more than 1 times [0-9.]+, the median of the steps before .*/\1/p' err)
  [ "${at:-0}" -ge 17 ] || fail "no step is above the median, $options: $(cat err)"
  expect 0 "$TESSERA" train $gpt --steps $at $options --on-nan skip --json=left.json
  expect 0 "$TESSERA" train $gpt --steps $at $options --on-nan warn --json=gone.json
  grep -q "warning: step $at: the gradient norm is .*, more than 1 times" err || fail "no warning, $options: $(cat err)"
  [ "$(summary steps_skipped left.json)$(summary steps_skipped gone.json)" = 10 ] || fail "steps left out, $options: $(tail -n 1 left.json)"
  [ "$(digest left.json)" != "$(digest gone.json)" ] || fail "a step that is left out has the same bits, $options"
done

# Ranks that differ.
seq 1 4000 >a.txt && seq 2 4001 >b.txt
differs() { # WORDS COMMAND
  expect 3 "$TESSERA" run -n 2 -- sh -c "$2"
  grep -Eq "the ranks differ: rank 0 has $1" err || fail "$2: $(cat err)"
}
differs 'seed=1, rank 1 has seed=2' "exec $TESSERA train $gpt --steps 2 --seed \$((RANK + 1))"
differs 'weight-decay=0, rank 1 has weight-decay=1' "exec $TESSERA train $gpt --steps 2 --weight-decay \$RANK"
differs 'data=[0-9a-f]*, rank 1 has data=' "[ \$RANK = 0 ] && d=a || d=b; exec $TESSERA train $gpt --steps 2 --data \$d.txt"
cp a.txt c.txt
expect 0 "$TESSERA" run -n 2 -- sh -c "[ \$RANK = 0 ] && d=a || d=c; exec $TESSERA train $gpt --steps 2 --data \$d.txt"

# Gone on with otherwise.
expect 0 "$TESSERA" train $gpt --steps 2 --data a.txt --save first
resume() { expect 0 "$TESSERA" train $gpt --steps 4 --data a.txt --resume first "$@"; }
resume --seed 1
! grep -q 'other bits' err || fail "the same run: $(cat err)"
resume --lr 0.01 --weight-decay 0.5 --clip 2 --precision bf16 --attention seven --data b.txt
grep -q 'this run has lr=0.01 weight-decay=0.5 clip=2 precision=bf16 attention=seven data=[0-9a-f]*, the one that saved had lr=0.002 weight-decay=0.1 clip=1 precision=fp32 attention=own data=[0-9a-f]*: other bits' err || fail "what differs: $(cat err)"
resume --freeze 'h.*'
grep -q 'this run has freeze=h.\*, the one that saved had freeze=none: other bits' err || fail "what is frozen: $(cat err)"
