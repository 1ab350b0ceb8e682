#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 1
# slow: 7200 TRIALS=3
# Faults of the network between three hosts of one rank, made by our switch while they train. Those that heal leave the bits as
# they are; after the others every host ends with code 5 and names who cannot be reached. A table at the end.
# TRIALS: of each fault; without it one of each that has a +. FAULTS: only those whose names this pattern matches.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer's ranks are silent for longer than these heartbeats"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_GRACE=2
trials=${TRIALS:-1}
hosts_on_switch 4 # the last has no rank
export TESSERA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
small=(gpt --layers 1 --width 32 --heads 2 --context 64 --batch 32)
large=(mnist)

training() { grep -q '"event":"step","step":3,' run.0.out; }

# launch MODEL HEARTBEAT STEPS [FAULT…]: a rank on each host; waits until they train. A fault here is there from the start.
launch() {
  local -n model=$1
  local r heartbeat=$2 steps=$3
  shift 3
  rm -f run.*
  wire_plain
  [ $# = 0 ] || wire_rules all all "$@"
  pids=()
  for r in 0 1 2; do
    TESSERA_HEARTBEAT=$heartbeat ip netns exec "$hosts_mark-$r" env ${preload[r]:-A=} "$TESSERA" run --nnodes 3 --node-rank $r \
      --rendezvous "${address[0]}:29400" -n 1 -- "$TESSERA" train "${model[@]}" --json --steps "$steps" >run.$r.out 2>run.$r.err &
    pids[r]=$!
  done
  within 90 training || fail "no training: $(head -c 2000 run.*.err)"
}

# all_end CODE SECONDS: of all hosts; how long the last took is in $took.
all_end() {
  local r begin
  begin=$(milliseconds)
  for r in 0 1 2; do
    ends "${pids[r]}" "$2"
    [ "$code" = "$1" ] || fail "$name: host $r ended with $code, expected $1: $(head -c 3000 run.*.err)"
  done
  took=$(($(milliseconds) - begin))
}

# same_bits MODEL STEPS: as on one host, where it runs once.
same_bits() {
  local -n options=$1
  [ -e "one.$1.$2" ] || on 0 "$TESSERA" train "${options[@]}" --json -n 3 --steps "$2" >"one.$1.$2" 2>err || fail "alone: $(cat err)"
  [ -n "$(digest "one.$1.$2")" ] && [ "$(digest run.0.out)" = "$(digest "one.$1.$2")" ] ||
    fail "$name: other bits: $(digest run.0.out), one host has $(digest "one.$1.$2")"
}

# names HOST PATTERN: in one line
names() {
  [ "$(grep -c "tessera\[$1\]: error:" run.$1.err)" = 1 ] || fail "$name: host $1 has not one line: $(cat run.$1.err)"
  grep -Eq "tessera\[$1\]: error: .*$2" run.$1.err || fail "$name: host $1 does not name '$2': $(cat run.$1.err)"
}

# ---- what is done ----------------------------------------------------------------------------------

cut_off() { wire_rules "$1" all "cut=$2"; wire_rules all "$1" "cut=$2"; }
cut_pair() { wire_rules "$1" "$2" "cut=$3"; wire_rules "$2" "$1" "cut=$3"; }
signal_host() { ip netns pids "$hosts_mark-$1" | xargs -r kill "-$2"; }
freeze() { signal_host "$1" STOP; cut_off "$1" 1; }
thaw() { cut_off "$1" 0; signal_host "$1" CONT; }
jump() { printf "$(printf '\\x%s' $(printf '%016x' "$1" | fold -w 2 | tac))" | dd of=clock conv=notrunc status=none; }

# Each fault: a name; heals or ends; then what is called. A fault that heals has a limit of 10 s for silence.
whole() { # whole STEPS RULE…
  launch large 10 "$@"
  all_end 0 120
  same_bits large "$1"
}
brief() { # brief COMMAND… : for a second; 1 begins it and 0 ends it
  launch small 10 200
  "$@" 1
  sleep 1
  gone "${pids[0]}" && fail "$name: it ended before the fault"
  "$@" 0
  all_end 0 120
  same_bits small 200
}
frozen() { if [ "$2" = 1 ]; then freeze "$1"; else thaw "$1"; fi; }
one_way() { wire_rules "$1" "$2" "cut=$3"; }
stall() { # no frame is lost, all come later: those of the stall behind those after it
  local us=$(($2 * 1500000))
  wire_rules "$1" all "delay_us=$us"
  wire_rules all "$1" "delay_us=$us"
}
clocks() { # an hour forward on host 1 and back again
  jump 0
  preload[1]="LD_PRELOAD=$BUILD/tests/support/clock_jump.so TESSERA_TEST_CLOCK=$PWD/clock"
  launch small 10 200
  jump "$1"
  sleep 0.5
  gone "${pids[0]}" && fail "$name: it ended before the fault"
  jump $((-$1))
  all_end 0 120
  preload=()
  same_bits small 200
}
lasting() { # lasting COMMAND…: all end, and say who cannot be reached
  launch small 2 1000000
  "$@" 1
  all_end 5 30
}
lost_host() { # lost_host HOST COMMAND…: the others name its rank, it names one of theirs
  local host=$1
  shift
  lasting "$@"
  all_name "$host"
}
late_host() { # late_host HOST COMMAND…: for 4 s, which is longer than the limit for silence: who is back finds nobody
  local host=$1
  shift
  launch small 2 1000000
  "$@" 1
  sleep 4
  "$@" 0
  all_end 5 30
  all_name "$host"
}
unheard_host() { # unheard_host HOST: it sees no answer, or it is told first that its own rank was lost
  lasting one_way "$1" all
  all_name "$1" "|$(of_host "$1") was lost"
}
all_name() { # all_name HOST [OTHERWISE]: what HOST itself may name in place of another
  local host=$1 otherwise=${2:-} r
  for r in 0 1 2; do
    if [ "$r" = "$host" ]; then names "$r" "($(of_others "$host")$otherwise).*cannot be reached"; else names "$r" "$(of_host "$host").*cannot be reached"; fi
  done
}
# The launcher of host 0 holds the key-value server: its loss is that of rank 0.
of_host() { if [ "$1" = 0 ]; then echo "(rank 0|tessera run)"; else echo "rank $1"; fi; }
of_others() { case $1 in 0) echo "rank [12]" ;; 1) echo "(rank [02]|tessera run)" ;; 2) echo "(rank [01]|tessera run)" ;; esac; }
lost_pair() { # lost_pair A B COMMAND…: all name both
  local a=$1 b=$2 r
  shift 2
  lasting "$@"
  for r in 0 1 2; do names "$r" "rank ($a .*rank $b|$b .*rank $a) .*cannot be reached"; done
}
frozen_host() { # the others end while it is frozen; it ends when it thaws
  local host=$1 r begin
  launch small 2 1000000
  freeze "$host"
  begin=$(milliseconds)
  for r in 0 1 2; do
    [ "$r" != "$host" ] || continue
    ends "${pids[r]}" 30
    [ "$code" = 5 ] || fail "$name: host $r ended with $code, expected 5: $(head -c 3000 run.*.err)"
    names "$r" "$(of_host "$host").*cannot be reached"
  done
  took=$(($(milliseconds) - begin))
  thaw "$host"
  ends "${pids[host]}" 30
  [ "$code" = 5 ] || fail "$name: the frozen host ended with $code, expected 5: $(cat run.$host.err)"
}
# host_has HOST I: that host has the address of host I, whoever else has it. addresses_back: each has its own again.
host_has() { ip -n "$hosts_mark-$1" addr add "${address[$2]}/24" dev eth0; }
addresses_back() {
  local r
  for r in 0 1 2; do
    ip -n "$hosts_mark-3" addr del "${address[r]}/24" dev eth0 2>/dev/null
    host_has "$r" "$r" 2>/dev/null
    ip -n "$hosts_mark-$r" neigh flush dev eth0
    ip -n "$hosts_mark-$r" neigh flush dev eth0 nud permanent
  done
}
taken_address() { # taken_address HOST: the new host refuses the connections of the others, HOST sees nobody any more
  local host=$1 r
  launch small 2 1000000
  ip -n "$hosts_mark-$host" addr del "${address[host]}/24" dev eth0
  host_has 3 "$host"
  for r in 0 1 2; do ip -n "$hosts_mark-$r" neigh flush dev eth0; done
  all_end 5 30
  addresses_back
  for r in 0 1 2; do
    # Host 0 reaches its own launcher by that address too.
    if [ "$r" = "$host" ]; then names "$r" "(tessera run|rank [0-2]).*cannot be reached"; else names "$r" "$(of_host "$host")\)? was lost"; fi
  done
}
# meets HOST I J: it takes host J for host I
meets() {
  local mac
  mac=$(ip -n "$hosts_mark-$3" -o link show eth0 | grep -o 'ether [0-9a-f:]*' | cut -d' ' -f2)
  ip -n "$hosts_mark-$1" neigh replace "${address[$2]}" lladdr "$mac" nud permanent dev eth0
}
shared_address() { # host 1 meets another host that has the address of host 2, host 0 still meets host 2
  local r
  launch small 2 1000000
  meets 0 2 2
  host_has 3 2
  meets 1 2 3
  all_end 5 30
  addresses_back
  for r in 0 1 2; do names "$r" "rank (1 .*rank 2|2 .*rank 1)"; done
}
stopped_host() { # its kernel still answers
  local begin latest
  launch small 2 1000000
  signal_host 2 STOP
  begin=$(milliseconds)
  ends "${pids[0]}" 30
  ends "${pids[1]}" 30
  latest=$(($(milliseconds) - begin))
  for r in 0 1; do names $r 'rank 2 .*(stopped|cannot be reached)'; done
  signal_host 2 CONT
  all_end 5 30
  took=$latest
}

table() {
  cat <<END
delay of 10 ms each way        | same bits |   | whole 5 delay_us=10000
loss of 2 %                    | same bits |   | whole 5 loss_ppm=20000
reordering of 10 % by 2 ms     | same bits |   | whole 5 reorder_ppm=100000
delay, loss and reordering     | same bits | + | whole 5 delay_us=3000 loss_ppm=5000 reorder_ppm=20000
200 Mbit/s                     | same bits |   | whole 5 rate_kbit=200000
host 2 cut off for 1 s         | same bits | + | brief cut_off 2
host 2 stalls for 1.5 s        | same bits | + | brief stall 2
host 0 cut off for 1 s         | same bits |   | brief cut_off 0
pair 1, 2 cut for 1 s          | same bits |   | brief cut_pair 1 2
0 to 2 cut for 1 s             | same bits |   | brief one_way 0 2
host 1 frozen for 1 s          | same bits |   | brief frozen 1
clock of host 1 jumps by 1 h   | same bits | + | clocks 3600
clock of host 1 jumps by -1 h  | same bits |   | clocks -3600
host 2 cut off                 | all end   |   | lost_host 2 cut_off 2
host 0 cut off                 | all end   |   | lost_host 0 cut_off 0
host 2 cut off for 4 s         | all end   | + | late_host 2 cut_off 2
host 0 cut off for 4 s         | all end   |   | late_host 0 cut_off 0
pair 1, 2 cut                  | all end   |   | lost_pair 1 2 cut_pair 1 2
pair 0, 1 cut                  | all end   |   | lost_host 1 cut_pair 0 1
1 to 2 cut                     | all end   | + | lost_pair 1 2 one_way 1 2
2 to 1 cut                     | all end   |   | lost_pair 1 2 one_way 2 1
host 2 is not heard            | all end   |   | unheard_host 2
host 2 hears nothing           | all end   | + | lost_host 2 one_way all 2
host 2 frozen                  | all end   | + | frozen_host 2
host 0 frozen                  | all end   |   | frozen_host 0
host 2's address is taken      | all end   | + | taken_address 2
host 0's address is taken      | all end   |   | taken_address 0
two hosts have 2's address     | all end   |   | shared_address
host 2 stopped                 | all end   |   | stopped_host
END
}

preload=()
failures=0
printf '| fault | promise | trials | kept | broken | last end, s |\n| --- | --- | ---: | ---: | ---: | ---: |\n' >table
while IFS='|' read -r name outcome short call; do
  read -r name <<<"$name"
  good=0 worst=0
  [[ $name == ${FAULTS:-*} ]] || continue
  [[ -n ${TRIALS:-} || $short == *+* ]] || continue
  for ((trial = 0; trial < trials; trial++)); do
    took=0
    # In a shell of its own, so that the next trial goes on after a failure.
    if (trap - EXIT; $call >trial.log 2>&1; echo $took >took); then
      good=$((good + 1)) took=$(cat took)
      [ "$took" -le "$worst" ] || worst=$took
    else
      echo "trial $trial of '$name': $(cat trial.log)"
      failures=$((failures + 1))
      signal_host 0 KILL; signal_host 1 KILL; signal_host 2 KILL
      addresses_back
    fi
    nothing_left
  done
  promise="same bits" latest=-
  [[ $outcome != *end* ]] || promise="code 5, named" latest=$(awk -v ms=$worst 'BEGIN { printf "%.1f", ms / 1000 }')
  echo "| $name | $promise | $trials | $good | $((trials - good)) | $latest |" >>table
done < <(table)
cat table
[ $failures = 0 ] || fail "$failures trials"
