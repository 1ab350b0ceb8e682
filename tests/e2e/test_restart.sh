#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 900
# Ranks are killed at random while a run trains and saves: the run goes on by itself from the newest checkpoint, on fewer
# ranks too, and ends with the digest of a run that nothing happened to. Loops of crashes end. TERM and Ctrl-C end a run with a
# checkpoint.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
gpt="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 1 --threads 1 --quiet --deterministic --steps 60"
field() { grep '"event":"summary"' "$1" | tail -n 1 | sed -E "s/.*\"$2\":([^,}]*).*/\\1/"; }
expect 0 "$TESSERA" train $gpt -n 4 --accum 2 --json=whole.json

# A rank that kills itself once, at a step of each life: found by its RANK, as a person with kill would.
kill_one() { # RANK LIFE: of the processes of this test. A life that has lost a rank already counts no second one.
  local victim life="TESSERA_RESTART=$2"
  [ "$2" != 0 ] || life=
  victim=$(process_of "$1" "$life") && kill -KILL "$victim" 2>/dev/null
}
# survives KILLS COMMAND…: kills that many ranks, each when a new checkpoint is there.
survives() {
  local kills=$1 done=0 seen='' now
  shift
  rm -rf run
  "$@" >out 2>err & pid=$!
  while ! gone $pid && [ $done -lt "$kills" ]; do
    now=$(ls run 2>/dev/null | tr '\n' ' ')
    if [ -n "$now" ] && [ "$now" != "$seen" ] && kill_one $((done % 2)) $done; then done=$((done + 1)); seen=$now; fi
    sleep 0.05
  done
  ends $pid 300
  [ $code = 0 ] || fail "exit code $code after $done kills of: $* $(tail -n 5 err)"
  echo "$done"
}
killed=$(survives 4 "$TESSERA" train $gpt -n 4 --accum 2 --save run --save-every 3 --restarts 9 --json=again.json)
[ "$(digest whole.json)" = "$(digest again.json)" ] || fail "digest after $killed kills"
[ "$(field again.json restarts)" = "$killed" ] || fail "restarts: $(field again.json restarts), $killed kills"
echo "train -n 4 --restarts: $killed kills, $(field again.json steps_repeated) steps repeated, $(field again.json seconds_lost) s lost"
killed=$(survives 2 "$TESSERA" run --restarts 9 --ranks 2:4 -- "$TESSERA" train $gpt --accum 2 --save run --save-every 3 --json=again.json)
[ "$(digest whole.json)" = "$(digest again.json)" ] || fail "digest after $killed kills and fewer ranks"
echo "run --ranks 2:4: $killed kills, ended with $(field again.json ranks) ranks"
# Before the first checkpoint too a step keeps its microbatches: three ranks do not divide 8, two do.
has_step() { grep -q '"event":"step"' "$1" 2>/dev/null; }
expect 0 "$TESSERA" train $gpt -n 4 --accum 2 --steps 600 --json=longer.json
rm -rf run again.json
"$TESSERA" run --restarts 9 --ranks 2:4 -- "$TESSERA" train $gpt --accum 2 --steps 600 --save run --save-every 1000 --json=again.json >out 2>err & pid=$!
within 300 has_step again.json && kill_one 1 0 || fail "no step: $(cat err)"
ends $pid 300
[ $code = 0 ] && [ "$(digest longer.json)" = "$(digest again.json)" ] || fail "before the first checkpoint: exit code $code, another digest"
[ "$(field again.json restarts)" = 1 ] && [ "$(field again.json ranks)" = 2 ] || fail "before the first checkpoint: $(cat err)"
grep -q "a restart keeps the 8 microbatches of a step, which 3 ranks cannot share with the same bits: it takes 1, 2, 4 or 8 ranks" err || fail "$(cat err)"
[ "$(find run -name '*.tmp' | wc -l)" = 0 ] || fail "left: $(find run)"
nothing_left

# Loops of crashes end: 60 restarts in an hour are the most, though each life comes further. It runs beside what follows.
"$TESSERA" run --restarts 100 -n 1 --bind none -- sh -c \
  'printf "\\$(printf %03o $((${TESSERA_RESTART:-0} + 1)))\0\0\0\0\0\0\0" >"$TESSERA_RESTART_FILE"; kill -9 $$' >loop.out 2>loop.err & loop=$!
# And those that come no further; a mistake is not tried again.
expect 5 "$TESSERA" run --restarts 2 -n 1 --bind none -- sh -c 'kill -9 $$'
[ "$(grep -c 'ranks were lost: restart' err)" = 2 ] && grep -q "2 restarts were all" err || fail "$(cat err)"
expect 3 "$TESSERA" run --restarts 2 -n 1 -- sh -c 'exit 3'
! grep -q restart err || fail "$(cat err)"

# TERM and Ctrl-C: a checkpoint after the step, and 128 plus the signal's number.
set -m # with signals as in a terminal: else the shell has Ctrl-C ignored in what runs in the background
for signal in TERM:143 INT:130; do
  rm -rf run steps.json
  "$TESSERA" train $gpt -n 2 --steps 100000 --save run --json=steps.json >out 2>err & pid=$!
  within 300 has_step steps.json || fail "no step: $(cat err)"
  kill -${signal%:*} $pid
  ends $pid 300
  [ $code = ${signal#*:} ] && [ "$(ls run | wc -l)" = 1 ] || fail "${signal%:*}: exit code $code, $(ls run) $(cat err)"
  expect 0 "$TESSERA" ckpt verify run
done
set +m
ends $loop 600
[ $code = 5 ] && grep -q "60 restarts within an hour: given up" loop.err || fail "a loop of crashes: exit code $code, $(tail -n 3 loop.err)"
[ "$(grep -c 'ranks were lost: restart' loop.err)" = 60 ] || fail "a loop of crashes: $(grep -c 'ranks were lost: restart' loop.err) restarts"
nothing_left
