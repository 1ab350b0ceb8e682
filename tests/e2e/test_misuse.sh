#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# twin: 120
# A program that makes one mistake gets a message that names the scope or parameter and the call: under TESSERA_STRICT=1,
# and without it where nobody can have meant it. What all ranks do wrong is one line. With DOUBLES=1 those that a pointer into a
# GPU's memory makes, on the doubles of CUDA and NCCL.
. "$SOURCE/tests/e2e/lib.sh"
misuse=$BUILD/tests/support/misuse
export TESSERA_THREADS=1 TESSERA_LOG=info
unset TESSERA_STRICT
comm=gloo
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || comm=
if [ -n "${DOUBLES:-}" ]; then
  needs_doubles tests/doubles/libnccl.so.2
  comm=nccl
  export LD_LIBRARY_PATH=$doubles TESSERA_DOUBLE_DEVICES=2 TESSERA_DOUBLE_DELAY_US=20 TESSERA_DEVICE=cuda
fi

form= # blocks: the program hands over its scopes as blocks
# says N STRICT CODE PATTERN CASE [VARIABLE=VALUE…]: the one line that begins "misuse:" matches.
says() {
  local n=$1 strict=$2 code=$3 pattern=$4 case=$5
  shift 5
  [ "$n" = 1 ] || [ -n "$comm" ] || return 0
  expect "$code" env TESSERA_STRICT="$strict" TESSERA_COMM=$([ "$n" = 1 ] && echo self || echo $comm) "$@" \
    "$TESSERA" run -n "$n" -- "$misuse" "$case" $form
  [ "$code" = 0 ] || [ "$(grep -c 'misuse: ' err)" -ge 1 ] || fail "$case: no message: $(cat err)"
  [ -z "$pattern" ] || grep -Eq -- "$pattern" err || fail "$case on $n ranks, strict=$strict: no '$pattern' in: $(cat out err)"
}
# alike: all ranks made the mistake, and it is one line.
alike() { [ "$(grep -c 'misuse: ' err)" = 1 ] || fail "not one line: $(cat err)"; }
# pointers RANKS FORWARD BACKWARD [SEEN]: what a pointer makes, with the calls' names; a write after the end is seen in SEEN.
pointers() {
  says $1 1 3 "$2 of scope \"b\": the program wrote to parameter \"b.weight\", which is read-only" write_param
  says $1 1 3 "gradient of \"c.weight\" was written after $3 of scope \"c\"${4:-}" grad_after_end
  says $1 1 3 "gradient of \"a.weight\" was written after $3 of scope \"a\"${4:-}" grad_after_end_last
  says $1 1 3 'a pointer was used after its end' use_after_end
  says $1 1 3 'gradient of "a.weight" holds the NaN .* a pointer was used after its end' use_after_end_last
  says $1 1 3 "$3 of scope \"c\": the program wrote past the end of the gradient of \"c.bias\", which is declared with 5 elements" small_bias
}
if [ -n "${DOUBLES:-}" ]; then
  for n in 1 2; do
    form=
    says $n 1 0 "" nothing
    pointers $n tess_forward_end tess_backward_end
    form=blocks
    says $n 1 0 "" nothing
    pointers $n forward backward ': .* \(seen in (tess_step|tess_run)'
  done
  # A GPU with room for the plan alone.
  form=
  says 1 1 0 'warning: TESSERA_STRICT=1 does not watch pointers, as the copies that it hands out find no room: device cuda: ' \
    write_param TESSERA_DEVICE_MEMORY=4MiB # two arenas of 2 MiB
  nothing_left
  exit 0
fi

for strict in 0 1; do
  says 2 $strict 0 "" nothing
done
wrong_steps() { # RANKS STRICT
  says $1 $2 3 'tess_step: lr is nan' lr_nan
  alike
  says $1 $2 3 'tess_step: clip_norm is -1' clip_negative
  alike
  says $1 $2 3 'parameter "a.weight" is in optimizer group 1, but tess_optimizer_options.groups is null' group
  alike
}
for n in 1 2; do
  says $n 1 5 'scope "b" was never entered: its tess_forward_begin is missing|expected begin of forward of "b"|expected .*"b"' scope_left_out
  alike
  says $n 0 0 'deviates from the declared one, as scope "b" was never entered' scope_left_out
  says $n 1 5 '"b"' backward_left_out
  alike
  says $n 0 0 'backward of scope "b" was left out: its tess_backward_begin is missing' backward_left_out
  for strict in 0 1; do
    says $n $strict 3 'training pass ends without any backward: tess_backward_begin of scope "c" is missing' no_backward
    alike
    wrong_steps $n $strict
    says $n $strict 3 'tess_summon_begin of scope "a" within a pass: forward of scope "b" has begun and not ended' summon_open
    alike
  done
  says $n 1 3 'tess_step: lr is 0, so no parameter would change' lr_missing
  alike
  says $n 0 0 'warning: tess_step: lr is 0, so no parameter changes' lr_missing
  for strict in 0 1; do
    says $n $strict 3 'tess_summon_begin of scope "a" within a pass, which has not come to its end' summon_within
    alike
  done
  says $n 0 3 'scope "b" is entered outside a pass: tess_summon_begin has ended it' summon_eval
  pointers $n tess_forward_end tess_backward_end
  says $n 0 3 'tess_step: 1 of 4 training passes have run since the last step \(TESSERA_ACCUM=4\)' "" TESSERA_ACCUM=4
  says $n 1 3 'TESSERA_ACTIVATIONS=recompute has no effect, because this program declares no blocks' "" TESSERA_ACTIVATIONS=recompute
  says $n 0 0 'activations=recompute has no effect without blocks' "" TESSERA_ACTIVATIONS=recompute
done
form=blocks
for n in 1 2; do
  for strict in 0 1; do says $n $strict 0 "" nothing; done
  pointers $n forward backward ': .* \(seen in (tess_step|tess_run)'
  says $n 1 3 'tess_step: lr is 0, so no parameter would change' lr_missing
  alike
  for strict in 0 1; do
    wrong_steps $n $strict
  done
  says $n 0 3 'tess_step: 1 of 4 training passes have run since the last step \(TESSERA_ACCUM=4\)' "" TESSERA_ACCUM=4
  alike
done
says 2 0 5 'rank [01] is in .* in (an evaluation|a training pass), rank [01] in .* in (an evaluation|a training pass)' eval_and_train
says 2 0 5 'rank [01] is in tess_all_reduce \(sum\) of [35] f32, rank [01] in tess_all_reduce \(sum\) of [35] f32' all_reduce_counts
says 2 0 5 'stepped differently before .*: rank [01] called tess_step 1 with lr 0.[12].*, rank [01] tess_step 1 with lr 0.[12]' lr_per_rank
says 2 0 5 'stepped differently before .*: rank [01] called tess_step 1 with lr 0.1.*weight_decay 0.[12].*, rank [01] tess_step 1 with lr 0.1.*weight_decay 0.[12]' decay_per_rank
says 2 0 5 'stepped differently before .*: rank [01] called tess_step 1 with lr 0.1.*group_lr 0.[12]0*[0-9], rank [01] tess_step 1 with lr 0.1.*group_lr 0.[12]' group_lr_per_rank
says 2 0 5 'took more than 2 s \(TESSERA_TIMEOUT\): rank 1 did not come to it and computes or hangs' hang TESSERA_TIMEOUT=2 TESSERA_GRACE=1
form=
for strict in 0 1; do
  says 2 $strict 5 'rank [01] is in .* in (an evaluation|a training pass), rank [01] in .* in (an evaluation|a training pass)' eval_and_train
  says 2 $strict 5 'rank [01] is in tess_all_reduce \(sum\) of [35] f32, rank [01] in tess_all_reduce \(sum\) of [35] f32' all_reduce_counts
  says 2 $strict 5 'stepped differently before .*: rank [01] called tess_step 1 with lr 0.[12].*, rank [01] tess_step 1 with lr 0.[12]' lr_per_rank
done
for strict in 0 1; do
  says 2 $strict 5 'the ranks use their engines and groups in different orders: rank [01] is in tess_all_reduce \(sum\) of 1 f64 of engine [12], rank [01] is in tess_all_reduce \(sum\) of 1 f64 of engine [12]' two_engines
done
says 2 0 5 'took more than 2 s \(TESSERA_TIMEOUT\): rank 1 did not come to it and computes or hangs' hang TESSERA_TIMEOUT=2 TESSERA_GRACE=1

# Variables that the program cannot use: one line on one rank, and none of those that are for tessera run.
says 2 0 0 'TESSERA_OPTIMIZER=sgd takes the place of the program.s adamw' "" TESSERA_OPTIMIZER=sgd
says 2 0 0 'warning: TESSERA_(LR|SAVE|STEPS), .* are set, but nothing here reads them$' "" TESSERA_LR=1 TESSERA_STEPS=3 TESSERA_SAVE=x \
  TESSERA_GRACE=4 TESSERA_RESTART=1 TESSERA_RESTART_FILE=/nowhere
[ -z "$comm" ] || [ "$(grep -c 'nothing here reads' err)" = 1 ] || fail "not one line: $(cat err)"
! grep -E 'TESSERA_(GRACE|RESTART|RESTART_FILE)' err || fail "a warning of what tessera run reads or sets: $(cat err)"
nothing_left
echo "every mistake has its message"
