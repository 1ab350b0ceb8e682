#!/bin/bash
# labels: e2e
# timeout: 300
# A rank that is lost: the others exit with code 5, naming it, within a second; with and without a launcher.
. "$SOURCE/tests/e2e/lib.sh"
unset RANK WORLD_SIZE
probe=$BUILD/tests/e2e/rank_probe
clean() { rm -f joined.* pid.* code.* log err out; }

# under_run CODE VICTIM ACTION WHY: three ranks of tessera run; the survivors name the victim.
under_run() {
  local r
  clean
  expect "$1" "$TESSERA" run -n 3 -- "$probe" "$2" "$3"
  for r in 0 1 2; do
    [ "$r" != "$2" ] || continue
    has_line err "\[$r\] tessera\[$r\]: error: rank $2 $4"
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

# All leave in order: that is success.
clean
expect 0 "$TESSERA" run -n 3 -- bash -c 'exec "$0" $RANK goodbye' "$probe"
for r in 0 1 2; do one_line code.$r 0; done
# A rank that never comes ends the rendezvous of the others.
clean
expect 3 "$TESSERA" run -n 3 -- bash -c '[ $RANK != 1 ] || exit 3; exec "$0"' "$probe"
for r in 0 2; do
  has_line err "\[$r\] tessera\[$r\]: error: rank 1 was lost: exited with code 3 before it joined the others"
  one_line code.$r 5
done
clean
TESSERA_RENDEZVOUS_TIMEOUT=0.5 expect 5 "$TESSERA" run -n 3 -- bash -c '[ $RANK != 1 ] || exec sleep 60; exec "$0"' "$probe"
has_line err "\[0\] tessera\[0\]: error: 1 of 3 ranks did not come within 0\.5 s \(TESSERA_RENDEZVOUS_TIMEOUT\): missing 1"
nothing_left

# Without a launcher: rank 0 holds the server. Ports from a range of this test's own, the first that is free.
export WORLD_SIZE=3 TESSERA_RENDEZVOUS_TIMEOUT=20
pick_port() {
  MASTER_PORT=$((20000 + RANDOM % 10000))
  while (exec 3<>/dev/tcp/127.0.0.1/$MASTER_PORT) 2>/dev/null; do MASTER_PORT=$((MASTER_PORT + 1)); done
  export MASTER_PORT
}
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
for victim in 0 1; do
  by_hand $victim kill
  ends ${pids[victim]} 20
  [ "$code" = 137 ] || fail "the victim exited with $code"
  began=$(milliseconds)
  for r in 0 1 2; do
    [ $r != $victim ] || continue
    ends ${pids[r]} 5
    [ "$code" = 5 ] || fail "rank $r exited with $code: $(cat err.$r)"
    where=$([ $victim = 0 ] || echo ' (last seen in forward of unit h.3)')
    one_line err.$r "tessera[$r]: error: rank $victim was lost$where: its connection closed without goodbye (killed?)"
  done
  took=$(($(milliseconds) - began))
  [ $took -lt 2500 ] || fail "it took $took ms" # rank 0 lingers a second for the others to read the news
done

# A port that is in use, and a listener that is no server of ours.
pick_port
env -u WORLD_SIZE "$TESSERA" run -n 1 -- sleep 30 >holder.out 2>holder.err &
holder=$!
port=
for ((i = 0; i < 100 && ${#port} == 0; i++)); do
  port=$(for fd in /proc/"$holder"/fd/*; do readlink "$fd"; done 2>/dev/null | sed -n 's/socket:\[\(.*\)\]/\1/p' |
    while read -r inode; do awk -v i="$inode" '$10 == i && $4 == "0A" { split($2, a, ":"); print a[2] }' /proc/net/tcp; done | head -1)
  sleep 0.05
done
[ -n "$port" ] || fail "the launcher listens nowhere"
port=$((16#$port))
MASTER_PORT=$port RANK=0 expect 3 "$probe"
one_line err "tessera[0]: error: port $port on 127.0.0.1 is in use by another program; set MASTER_PORT to a free one"
MASTER_PORT=$port RANK=1 expect 3 "$probe"
has_line err "tessera\[1\]: error: the key-value server at 127\.0\.0\.1 port $port refused rank 1: its secret .*"
kill -0 $holder || fail "the launcher was harmed: $(cat holder.err)"
kill -TERM $holder
ends $holder 5
nothing_left 5
