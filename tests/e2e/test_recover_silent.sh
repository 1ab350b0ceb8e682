#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# A rank that is stopped (SIGSTOP) is found by its heartbeat, ended and replaced as a dead one. It does not come back into
# the group: neither when it is let go on at once, nor later. Without images the run ends, as before.
# FIRST=1: the first case alone (mutations).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_HEARTBEAT=1
gpt="gpt --layers 2 --heads 4 --width 128 --context 64 --batch 2 --threads 1 --quiet --deterministic --steps 90"
field() { grep '"event":"summary"' "$1" | tail -n 1 | sed -E "s/.*\"$2\":([^,}]*).*/\\1/"; }
digest() { grep -o '"params_digest":"[0-9a-f]*"' "$1" | tail -n 1; }
steps() { local n; n=$(grep -c '"event":"step"' run.json 2>/dev/null) || n=${n:-0}; echo "$n"; }
steps_after() { [ "$(steps)" -gt "$1" ]; }
processes_of() { # rank
  local p
  for p in /proc/[0-9]*; do
    grep -zqsx "TESSERA_TEST_MARK=$TESSERA_TEST_MARK" "$p/environ" 2>/dev/null || continue
    grep -zqsx "RANK=$1" "$p/environ" 2>/dev/null && echo "${p#/proc/}"
  done
  return 0
}
# stops "RANK…" COMMAND…: all at one moment, once the run is on its way; $stopped are the processes.
stops() {
  local ranks=$1 r
  shift
  rm -f run.json
  "$@" --json=run.json >out 2>err & pid=$!
  within 300 steps_after 7 || fail "no step of: $* $(cat err)"
  stopped=
  for r in $ranks; do stopped="$stopped $(processes_of "$r")"; done
  kill -STOP $stopped
}
all_ended() { local p; for p in $stopped; do gone "$p" || return 1; done; }
recovered() { # NAME
  [ $code = 0 ] || fail "$1: exit code $code: $(cat err)"
  [ "$(digest run.json)" = "$want" ] || fail "$1: another digest"
  [ "$(field run.json recoveries)" -ge 1 ] || fail "$1: no recovery: $(cat err)"
  nothing_left
  echo "$1: $(field run.json recoveries) recoveries, $(field run.json seconds_lost) s lost"
}
expect 0 "$TESSERA" train $gpt -n 4 --json=whole.json
want=$(digest whole.json)

stops 2 "$TESSERA" train $gpt -n 4 --mirror 5
within 20 all_ended || fail "the stopped rank still exists: $(cat err)"
ends $pid 300
recovered "stopped"
grep -q 'rank 2 gave no sign of life and was ended: another process takes its place (recovery 1)' err || fail "$(cat err)"
[ -z "${FIRST:-}" ] || exit 0

# Rank 0 and another one, which is in another pair.
stops "0 1" "$TESSERA" train $gpt -n 4 --mirror 5
ends $pid 300
recovered "two stopped"

# It goes on by itself the moment it counts as lost, before it is ended: the group has no place for it.
stops 3 env TESSERA_MIRROR=5 "$TESSERA" run -n 4 -- "$TESSERA" train $gpt
sleep 1.1
kill -CONT $stopped 2>/dev/null || true
ends $pid 300
[ $code = 0 ] && [ "$(digest run.json)" = "$want" ] || fail "stopped for a moment: exit code $code: $(cat err)"
nothing_left

# With nobody to replace it the others go on.
stops 1 env TESSERA_MIRROR=5 "$TESSERA" run --ranks 1:4 --replacements 0 -- "$TESSERA" train $gpt
ends $pid 300
recovered "stopped, smaller"
[ "$(field run.json ranks)" = 2 ] || fail "smaller: $(field run.json ranks) ranks"

# Without images: the others name it and end.
stops 2 "$TESSERA" train $gpt -n 4
ends $pid 300
[ $code = 5 ] && grep -q 'rank 2 was lost.*no sign of life' err || fail "without images: exit code $code: $(cat err)"
nothing_left
