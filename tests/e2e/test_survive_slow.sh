#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# A run of 300 steps on 4 ranks in deterministic mode, of which KILLS are killed at random instants: once with images in
# memory, once with restarts from checkpoints. The digest is that of an undisturbed run. Prints a row for each recovery, and
# for each run the steps repeated and the seconds lost, which count from the last step that was done.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
kills=${KILLS:-20} every=5
gpt="gpt --layers 2 --heads 4 --width 128 --context 64 --batch 2 --threads 1 --quiet --deterministic --steps 300 -n 4"
digest() { grep -o '"params_digest":"[0-9a-f]*"' "$1" | tail -n 1; }
field() { grep '"event":"summary"' run.json | tail -n 1 | sed -E "s/.*\"$1\":([^,}]*).*/\\1/"; }
lines() { local n; n=$(grep -c '"event":"step"' "$json" 2>/dev/null) || n=${n:-0}; echo "$n"; }
last() { grep -a '"event":"step"' "$json" 2>/dev/null | tail -n 1 | sed -E 's/.*"step":([0-9]+).*/\1/'; }
another() { [ "$(lines)" != "$1" ] && [ -n "$(last)" ]; }
kill_one() {
  local p
  for p in /proc/[0-9]*; do
    grep -zqsx "TESSERA_TEST_MARK=$TESSERA_TEST_MARK" "$p/environ" 2>/dev/null || continue
    grep -zqsx "RANK=$1" "$p/environ" 2>/dev/null && kill -KILL "${p#/proc/}" 2>/dev/null && return 0
  done
  return 1
}
# survive NAME COMMAND…: deaths come at equal distances of the run and random instants.
survive() {
  local name=$1 i rank at count done=0
  shift
  rm -rf run.json saved
  json=run.json
  "$@" --json=run.json >out 2>err & pid=$!
  for ((i = 1; i <= kills; i++)); do
    while at=$(last) && ! gone $pid && { [ -z "$at" ] || [ "$at" -lt $((i * 290 / (kills + 1))) ]; }; do sleep 0.02; done
    sleep "0.0$((RANDOM % 10))"
    rank=$((RANDOM % 4))
    count=$(lines)
    kill_one $rank || continue
    done=$((done + 1))
    within 120 another "$count" || gone $pid || fail "$name: no step after death $i: $(tail -n 5 err)"
  done
  ends $pid 600
  [ $code = 0 ] || fail "$name: exit code $code: $(tail -n 8 err)"
  [ "$(digest run.json)" = "$(digest whole.json)" ] || fail "$name: another digest"
  sed -nE 's/.*"event":"recovery","step":([0-9]+),"steps_lost":([0-9]+),"recoveries":([0-9]+),"seconds":([0-9.e-]+).*/| \3 | \1 | \2 | \4 |/p' run.json
  echo "$name: $done deaths, recoveries $(field recoveries), restarts $(field restarts), steps_repeated $(field steps_repeated), seconds_lost $(field seconds_lost)"
}
expect 0 "$TESSERA" train $gpt --json=whole.json
echo "| recovery | back to step | steps that rank 0 had done since (0 too when it was the one that died) | seconds in tess_recover |"
survive mirror "$TESSERA" train $gpt --mirror $every
[ "$(field recoveries)" -ge "$((kills / 2))" ] || fail "only $(field recoveries) recoveries"
[ "$(field steps_repeated)" -le "$((kills * every))" ] || fail "more than $every steps repeated per death"
survive restart "$TESSERA" train $gpt --save saved --save-every $every --restarts $((2 * kills))
[ "$(field restarts)" -ge "$((kills / 2))" ] || fail "only $(field restarts) restarts"
nothing_left 3
