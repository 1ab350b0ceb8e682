#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# A rank that is lost: the others exit with code 5, naming it, within a second; with and without a launcher.
. "$SOURCE/tests/e2e/lib.sh"
unset RANK WORLD_SIZE
probe=$BUILD/tests/e2e/rank_probe
clean() { rm -f joined.* pid.* code.* err.* log err out; }

# Each rank's own lines go to err.RANK: the launcher prints once what several say, and not always the same one's line.
launch() { "$TESSERA" run -n 3 -- bash -c 'exec "$0" "$@" 2>err.$RANK' "$probe" "$@"; }

# under_run CODE VICTIM ACTION WHY: three ranks of tessera run; each survivor names the victim, in one line, and ends with 5.
under_run() {
  local r
  clean
  expect "$1" launch "$2" "$3"
  for r in 0 1 2; do
    [ "$r" != "$2" ] || continue
    has_line err.$r "tessera\[$r\]: error: rank $2 $4"
    [ "$(wc -l <err.$r)" = 1 ] || fail "rank $r says more than one line: $(cat err.$r)"
    one_line code.$r 5
  done
  nothing_left
}
under_run 5 2 kill 'was lost \(last seen in forward of unit h\.3\): killed by signal 9 \(Killed\)'
has_line err "tessera: error: rank 2 was killed by signal 9 \(Killed\)"
under_run 5 0 kill 'was lost \(last seen in forward of unit h\.3\): killed by signal 9 \(Killed\)'
under_run 7 1 return:7 'was lost \(last seen in forward of unit h\.3\): exited with code 7'
has_line err "tessera: error: rank 1 exited with code 7"
under_run 5 1 return:0 'was lost \(last seen in forward of unit h\.3\): exited with code 0'
under_run 6 1 report 'failed in forward of unit h\.3: bad bytes'
export TESSERA_HEARTBEAT=1.5 TESSERA_GRACE=0.5
under_run 5 1 stop 'was lost \(last seen in forward of unit h\.3\): no sign of life for 1\.[5-9] s \(stopped\?\)'
has_line err "tessera: error: rank 1 was killed by signal (15|9) .*, having been stopped"
unset TESSERA_HEARTBEAT TESSERA_GRACE

# A line of output appears when it is written, not when there are many or the rank ends.
clean
RANK_PROBE_SAYS=here TESSERA_HEARTBEAT=0 "$TESSERA" run -n 3 -- "$probe" 1 stop >out 2>err &
runner=$!
all_said() { [ "$(grep -Exc '\[[0-2]\] here' out)" = 3 ]; }
within 20 all_said || fail "while the ranks run: '$(cat out)'"
kill -TERM $runner
ends $runner 30
all_said || fail "at the end: '$(cat out)'"
nothing_left

# All leave in order: that is success.
clean
expect 0 "$TESSERA" run -n 3 -- bash -c 'exec "$0" $RANK goodbye' "$probe"
for r in 0 1 2; do one_line code.$r 0; done
# A rank that never comes ends the rendezvous of the others.
clean
expect 3 "$TESSERA" run -n 3 -- bash -c '[ $RANK != 1 ] || exit 3; exec "$0" 2>err.$RANK' "$probe"
for r in 0 2; do
  has_line err.$r "tessera\[$r\]: error: rank 1 was lost: exited with code 3 before it joined the others"
  one_line code.$r 5
done
clean
TESSERA_RENDEZVOUS_TIMEOUT=0.5 expect 5 "$TESSERA" run -n 3 -- bash -c '[ $RANK != 1 ] || exec sleep 60; exec "$0" 2>err.$RANK' "$probe"
for r in 0 2; do
  has_line err.$r "tessera\[$r\]: error: 1 of 3 ranks did not come within 0\.5 s \(TESSERA_RENDEZVOUS_TIMEOUT\): missing 1"
done
nothing_left

# Without a launcher: rank 0 holds the server.
export WORLD_SIZE=3 TESSERA_RENDEZVOUS_TIMEOUT=20
by_hand() { # VICTIM ACTION
  local r
  clean
  pick_port
  pids=()
  for r in 2 1 0; do
    RANK=$r "$probe" "$1" "$2" >out.$r 2>err.$r &
    pids[r]=$!
  done
}
survived() { # VICTIM: took is how long after its death the others ended
  local r victim=$1 where
  by_hand $victim kill
  ends ${pids[victim]} 20
  [ "$code" = 137 ] || fail "the victim exited with $code"
  start_clock
  for r in 0 1 2; do
    [ $r != $victim ] || continue
    ends ${pids[r]} 30
    [ "$code" = 5 ] || fail "rank $r exited with $code: $(cat err.$r)"
    where=$([ $victim = 0 ] || echo ' (last seen in forward of unit h.3)')
    one_line err.$r "tessera[$r]: error: rank $victim was lost$where: its connection closed without goodbye (killed?)"
  done
  stop_clock
}
for victim in 0 1; do soon 1000 survived $victim; echo "rank $victim dies: $took ms, processors scarce for $waited"; done

# A path that no address of a socket holds.
long=$PWD/$(printf %0200d)
TESSERA_LISTEN=$long TESSERA_SECRET=0123456789abcdef RANK=0 expect 3 "$probe"
one_line err "tessera[0]: error: cannot listen on $long: File name too long"

# A port that is in use, by a listener that answers nothing; on one host ports do not matter, but one job has one number.
pick_port
export TESSERA_RENDEZVOUS_TIMEOUT=2
"$BUILD/tests/e2e/hold_port" 127.0.0.1 "$MASTER_PORT" >held &
holder=$!
within 30 grep -q held held || fail "no port is held"
TESSERA_LISTEN=127.0.0.1 TESSERA_SECRET=0123456789abcdef RANK=0 expect 3 "$probe"
one_line err "tessera[0]: error: port $MASTER_PORT on 127.0.0.1 is in use by another program; set MASTER_PORT to a free one"
expect 3 env -u WORLD_SIZE TESSERA_SECRET=0123456789abcdef "$TESSERA" run --nnodes 2 --node-rank 0 --rendezvous "127.0.0.1:$MASTER_PORT" -n 1 -- "$probe"
one_line err "tessera: error: port $MASTER_PORT on 0.0.0.0 is in use by another program; set --rendezvous HOST:PORT to a free one"
kill $holder
wait $holder 2>/dev/null
TESSERA_RENDEZVOUS_TIMEOUT=20 RANK=0 "$probe" >first.out 2>first.err &
first=$!
listens() {
  local path
  for path in "${XDG_RUNTIME_DIR:-/nowhere}"/tessera/port-"$MASTER_PORT"-* /tmp/tessera-"$(id -u)"/port-"$MASTER_PORT"-*; do
    [ ! -S "$path" ] || return 0
  done
  return 1
}
within 10 listens || fail "rank 0 listens nowhere"
second() { RANK=0 "$probe" >out 2>err; grep -q 'tessera\[0\]: error: another job of this host meets at .*; set MASTER_PORT to another number' err; }
second || fail "a second job on one number: $(cat err)"
kill -9 $first
wait $first 2>/dev/null
nothing_left
