#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# `tessera run` and signals: passed on, nothing left behind, also when the launcher itself dies.
set -m # background jobs with signals as in a terminal
. "$SOURCE/tests/e2e/lib.sh"
unset RANK WORLD_SIZE
probe=$BUILD/tests/e2e/rank_probe
joined() { for r in "$@"; do [ -e joined.$r ] || return 1; done; }
started() { [ "$(grep -c ready log 2>/dev/null)" = "$1" ]; }
clean() { rm -f joined.* pid.* code.* log err; }

# INT and TERM reach every rank, which may end in its own way.
for signal in INT TERM HUP; do
  clean
  "$TESSERA" run -n 3 -- bash -c "trap 'echo got $signal; exit 0' $signal; echo ready; while :; do sleep 0.05; done" >log 2>err &
  launcher=$!
  within 60 started 3 || fail "no start: $(cat log err)"
  kill -$signal $launcher
  ends $launcher 30
  [ "$code" = 0 ] || fail "$signal: exit code $code: $(cat err)"
  [ "$(grep -c "got $signal" log)" = 3 ] || fail "$signal did not reach all: $(cat log)"
  nothing_left
done

# Ranks that die of it: the shell's code for the signal.
clean
"$TESSERA" run -n 2 -- bash -c 'echo ready; sleep 60' >log 2>err &
launcher=$!
within 60 started 2 || fail "no start: $(cat log err; ls)"
kill -INT $launcher
ends $launcher 30
[ "$code" = 130 ] || fail "INT: exit code $code, expected 130"
nothing_left

# Ranks that do not care: the second signal kills.
clean
"$TESSERA" run -n 2 -- bash -c 'trap "" TERM; echo ready; while :; do sleep 0.05; done' >log 2>err &
launcher=$!
within 60 started 2 || fail "no start: $(cat log err; ls)"
kill -TERM $launcher
sleep 0.3
kill -0 $launcher || fail "the launcher left its ranks"
kill -TERM $launcher
ends $launcher 30
[ "$code" = 143 ] || fail "TERM twice: exit code $code, expected 143"
nothing_left

# Ctrl-Z stops the ranks with the launcher and is no death: after a pause longer than the heartbeat all go on.
clean
TESSERA_HEARTBEAT=1.5 "$TESSERA" run -n 2 -- "$probe" 1 goodbye >log 2>err &
launcher=$!
within 60 joined 0 1 || fail "no start: $(cat log err; ls)"
kill -TSTP $launcher
sleep 3
for r in 0 1; do
  grep -q '^State:.T' "/proc/$(cat pid.$r)/status" 2>/dev/null || [ -e code.$r ] || fail "rank $r was not stopped"
done
kill -CONT $launcher
ends $launcher 10
[ "$code" = 0 ] || fail "after a pause: exit code $code: $(cat log err)"
nothing_left

# The launcher is killed: ranks on the control plane say so and return 5 within a second.
coded() { [ -e code.0 ] && [ -e code.1 ] && [ -e code.2 ]; }
launcher_killed() { # took is how long after its death all ranks had returned
  clean
  "$TESSERA" run -n 3 -- "$probe" >log 2>err &
  launcher=$!
  within 60 joined 0 1 2 || fail "no start: $(cat log err; ls)"
  start_clock
  kill -KILL $launcher
  within 20 coded || fail "ranks did not end"
  stop_clock
  within 30 none_left || fail "ranks outlive the launcher: $(leftovers)"
  for r in 0 1 2; do one_line code.$r 5; done
  wait $launcher 2>/dev/null
}
soon 1000 launcher_killed

# The same with the output left alone: the reason can be read.
clean
"$TESSERA" run --no-prefix -n 2 -- "$probe" >log 2>err &
launcher=$!
within 60 joined 0 1 || fail "no start: $(cat log err; ls)"
kill -KILL $launcher
within 30 none_left || fail "ranks outlive the launcher"
for r in 0 1; do
  has_line err "tessera\[$r\]: error: the launcher \(tessera run\) was lost: its connection closed without goodbye \(killed\?\)"
  one_line code.$r 5
done
wait $launcher 2>/dev/null

# Programs that know nothing of us are terminated with the launcher.
clean
"$TESSERA" run --no-prefix -n 2 -- bash -c 'echo ready; exec sleep 60' >log 2>err &
launcher=$!
within 60 started 2 || fail "no start: $(cat log err; ls)"
kill -KILL $launcher
wait $launcher 2>/dev/null
nothing_left
