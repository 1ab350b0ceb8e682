#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# A rank is killed in a recorded pass of a training run on the doubles, with an NCCL that sees it and one that does not.
# From images in memory, and from a checkpoint by --restarts, the run comes to the same end. No step's line is missing, and
# each has the loss that it has in a run to which nothing happens.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libcublas.so.13 tests/doubles/libnccl.so.2 plugins/libtessera-comm-nccl.so
export TESSERA_DOUBLE_DELAY_US=20 LD_LIBRARY_PATH=$doubles
head -c 1500 "$SOURCE/README.md" >text.txt
steps=60
gpt="gpt --data text.txt --batch 2 --layers 1 --heads 1 --width 8 --context 8 --device cuda --sample 0 --quiet -n 3 --steps $steps"
events() { local n; n=$(grep -c "\"event\":\"$1\"" run.json 2>/dev/null) || n=${n:-0}; echo "$n"; }
steps_after() { [ "$(events step)" -gt "$1" ]; }
# lines FILE: of each step the last, "step loss"
lines() { sed -n 's/.*"event":"step","step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1" | awk '{ last[$1] = $2 } END { for (s in last) print s, last[s] }' | sort -n; }

"$TESSERA" train $gpt --json=whole.json >out 2>err || fail "$(cat err)"
lines whole.json >want
[ "$(wc -l <want)" = $steps ] || fail "$(wc -l <want) lines of $steps steps"
want=$(summary params_digest whole.json)

# survives FIELD OPTIONS…: rank 1 is killed after its passes have been recorded; the summary has one such FIELD.
survives() {
  local what=$1 pid victim
  shift
  rm -rf run.json saved
  "$TESSERA" train $gpt --json=run.json "$@" >out 2>err &
  pid=$!
  within 60 steps_after 20 || fail "$*: no 20 steps: $(cat err)"
  victim=$(process_of 1) && kill -KILL "$victim" || fail "$*: no rank 1 is left: $(events step) steps"
  ends $pid 100
  [ $code = 0 ] || fail "$*: exit code $code: $(tail -n 5 err)"
  [ "$(summary "$what" run.json)" = 1 ] || fail "$*: $(summary "$what" run.json) $what"
  [ "$(summary params_digest run.json)" = "$want" ] || fail "$*: another digest"
  lines run.json >got
  cmp -s want got || fail "$*: lines of steps differ: $(diff want got | head -n 5)"
  echo "$*: $(summary steps_repeated run.json) steps repeated"
}
for death in error hang; do
  export TESSERA_DOUBLE_NCCL_DEATH=$death TESSERA_NCCL_WINDOWS=off
  [ $death = error ] || TESSERA_NCCL_WINDOWS=on # whose bits are the same here: the double sums them alike
  survives recoveries --mirror 7
  survives restarts --save saved --save-every 10 --restarts 2
done
nothing_left
