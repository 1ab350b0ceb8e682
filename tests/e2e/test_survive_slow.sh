#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# A run of 300 steps on 4 ranks in deterministic mode, of which KILLS are killed at random instants: once with images in
# memory, once with restarts from checkpoints. The digest is that of an undisturbed run. Prints a row for each failure, and
# for each run the median, p99 and greatest of the steps repeated and of the seconds lost, from the last step that was done.
# ONLY=mirror or ONLY=restart: one of the two.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
kills=${KILLS:-20} every=5
gpt="gpt --layers 2 --heads 4 --width 128 --context 64 --batch 2 --threads 1 --quiet --deterministic --steps 300 -n 4"
field() { grep '"event":"summary"' run.json | tail -n 1 | sed -E "s/.*\"$1\":([^,}]*).*/\\1/"; }
told() { local n; n=$(grep -ac "\"event\":\"$1\"" "$json" 2>/dev/null) || n=${n:-0}; echo "$n"; }
last() { grep -a '"event":"step"' "$json" 2>/dev/null | tail -n 1 | sed -E 's/.*"step":([0-9]+).*/\1/'; }
another() { [ "$(told "$1")" != "$2" ]; } # a step after the death is done: not one that was under way on a busy machine
kill_any() { local rank; rank=$(process_of $((RANDOM % 4))) && kill -KILL "$rank" 2>/dev/null; } # it may be between two lives
# table NAME COLUMN: of the failures.
table() {
  sort -g -k "$2,$2" failures | awk -v name="$1" -v c="$2" '{ x[NR] = $c } END {
    if (NR) printf "%s: median %.4g, p99 %.4g, greatest %.4g of %d\n", name, x[int((NR + 1) / 2)], x[int(0.99 * NR + 0.999)], x[NR], NR }'
}
# survive NAME EVENT COMMAND…: deaths come at equal distances of the run and random instants.
survive() {
  local name=$1 event=$2 i at count done=0
  shift 2
  rm -rf run.json saved
  json=run.json
  "$@" --json=run.json >out 2>err & pid=$!
  for ((i = 1; i <= kills; i++)); do
    while at=$(last) && ! gone $pid && { [ -z "$at" ] || [ "$at" -lt $((i * 290 / (kills + 1))) ]; }; do sleep 0.02; done
    sleep "0.0$((RANDOM % 10))"
    count=$(told "$event")
    within 30 kill_any || gone $pid || fail "$name: no rank to kill"
    done=$((done + 1))
    within 120 another "$event" "$count" || gone $pid || fail "$name: no step after death $i: $(tail -n 5 err)"
  done
  ends $pid 600
  [ $code = 0 ] || fail "$name: exit code $code: $(tail -n 8 err)"
  [ "$(digest run.json)" = "$(digest whole.json)" ] || fail "$name: another digest"
  grep "\"event\":\"$event\"" run.json | sed -E 's/.*"step":([0-9]+),.*"steps_repeated":([0-9]+),"seconds_lost":([0-9.e-]+).*/\1 \2 \3/' >failures
  awk '{ printf "| %d | %d | %d | %.2f |\n", NR, $1, $2, $3 }' failures
  table "$name, steps repeated" 2
  table "$name, seconds lost" 3
  echo "$name: $done deaths, recoveries $(field recoveries), restarts $(field restarts), steps_repeated $(field steps_repeated), seconds_lost $(field seconds_lost)"
}
expect 0 "$TESSERA" train $gpt --json=whole.json
echo "| failure | back to step | steps repeated | seconds lost |"
if [ "${ONLY:-mirror}" = mirror ]; then
  survive mirror recovery "$TESSERA" train $gpt --mirror $every
  [ "$(field recoveries)" -ge "$((kills / 2))" ] || fail "only $(field recoveries) recoveries"
  [ "$(awk -v k=$every '$2 > k' failures | wc -l)" = 0 ] || fail "more than $every steps repeated in one recovery"
fi
if [ "${ONLY:-restart}" = restart ]; then
  survive restart restart "$TESSERA" train $gpt --save saved --save-every $every --restarts $((2 * kills))
  [ "$(field restarts)" -ge "$((kills / 2))" ] || fail "only $(field restarts) restarts"
  [ "$(wc -l <failures)" = "$(field restarts)" ] || fail "$(wc -l <failures) lines of $(field restarts) restarts"
fi
nothing_left
