#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 7200
# processors: 2
# Ranks of a run of four are killed in every phase, over shm, gloo and both: all others end with code 5, naming one that was
# killed, and nobody hangs. A table at the end (docs/benchmarks/kills.md). KILLS: in each cell, 11 unless set: 528 in all.
# CELLS: only those whose "PHASE COMM" this pattern matches. KILL_LOG: a file that gathers the kills of several calls.
. "$SOURCE/tests/e2e/lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR
kills=${KILLS:-11} log=${KILL_LOG:-$PWD/kills}
probe=$BUILD/tests/support/kill_main
export TESSERA_LOG=warning KILL_ELEMS=2000000 TESSERA_THREADS=1 TESSERA_HEARTBEAT=20
names_of_ours >before
wrong=0
note() { echo "WRONG: $*"; head -c 1500 log run/rank.* 2>/dev/null; wrong=$((wrong + 1)) outcome=wrong; }

# survivor RANK VICTIMS: its times, in us, raise $latest (from its own call) and $slowest (from the death).
survivor() {
  local line late after
  line=$(cat "run/rank.$1" 2>/dev/null) || { [ "$phase" = close ] || note "$cell: no word from rank $1"; return; }
  [[ $phase == close && $line == code=0\ * ]] && return
  late=$(sed -n 's/.*late_us=\(-\{0,1\}[0-9]*\).*/\1/p' <<<"$line")
  after=$(sed -n 's/.*after_us=\(-\{0,1\}[0-9]*\).*/\1/p' <<<"$line")
  [[ $line == code=5\ * && $line =~ (rank ($2)|launcher)" " ]] || note "$cell, victims $2: rank $1: $line"
  [[ $2 == launcher || $line =~ "rank "($2)" " ]] || note "$cell, victims $2: rank $1: $line"
  [ "$late" -le "$latest" ] || latest=$late
  [ "$after" -le "$slowest" ] || slowest=$after
}

# start VICTIMS DELAY_US: the ranks under a launcher, or by hand; ends when they have. 60 s are a hang.
start() {
  local r
  if [ "$how" = alone ]; then
    pick_port
    for r in 0 1 2 3; do
      RANK=$r WORLD_SIZE=4 LOCAL_RANK=$r LOCAL_WORLD_SIZE=4 MASTER_ADDR=127.0.0.1 timeout 60 "$probe" "$PWD/run" "$part" "$1" "$2" >>log 2>&1 &
    done
    wait
  else
    timeout 60 "$TESSERA" run -n 4 -- "$probe" "$PWD/run" "$part" "$1" "$2" >log 2>&1
    code=$?
    [ $code = 5 ] || [[ $phase == close && $code = 0 ]] || note "$cell: the launcher ended with $code"
  fi
}
start_and_kill_launcher() {
  "$TESSERA" run -n 4 -- "$probe" "$PWD/run" "$part" -1 0 >log 2>&1 &
  local launcher=$! r
  within 20 grep -qs . /proc/$launcher/task/$launcher/children
  sleep "0.$((RANDOM % 900 + 100))"
  awk '{ printf "%.3f\n", $1 * 1000 }' /proc/uptime >run/death
  kill -9 $launcher
  wait $launcher 2>/dev/null
  ended() { [ "$(ls run/rank.* 2>/dev/null | wc -l)" = 4 ]; }
  within 60 ended
}

# one_kill VICTIMS DELAY_US
one_kill() {
  local r begin
  rm -rf run log && mkdir run
  outcome=ok latest=0 slowest=0 begin=$SECONDS
  if [ "$phase" = launcher ]; then start_and_kill_launcher; else start "$1" "$2"; fi
  [ $((SECONDS - begin)) -lt 59 ] || outcome=hang
  if [ $outcome = ok ]; then
    for r in 0 1 2 3; do
      [[ ",$1," == *",$r,"* ]] || survivor $r "$([ "$phase" = launcher ] && echo launcher || tr , '|' <<<"$1")"
    done
  fi
  within 5 none_left || { note "$cell: left running: $(leftovers)"; leftovers | xargs -r kill -9; }
  echo "$phase|$comm|$outcome|$latest|$slowest" >>"$log"
}

for comm in shm gloo hosts; do
  [ -f "$BUILD/plugins/libtessera-comm-$comm.so" ] || continue
  for phase in rendezvous transfer forward backward step evaluation save hybrid hybrid-step lanes lanes-step close two alone alone-two launcher; do
    cell="$phase $comm"
    [[ $cell == ${CELLS:-*} ]] || continue
    export TESSERA_COMM=$comm TESSERA_STRATEGY=full TESSERA_OFFLOAD=none TESSERA_HOSTS_RANKS=$([ $comm = hosts ] && echo 2 || echo 0)
    how=launched part=$phase
    case $phase in
      hybrid) TESSERA_STRATEGY=hybrid:2 part=transfer ;;
      hybrid-step) TESSERA_STRATEGY=hybrid:2 part=step ;;
      lanes) TESSERA_OFFLOAD=cpu part=transfer ;;
      lanes-step) TESSERA_OFFLOAD=cpu part=step ;;
      two) part=backward ;;
      alone | alone-two) how=alone part=transfer ;;
      launcher) part=forward ;;
    esac
    for ((i = 0; i < kills; i++)); do
      case $phase in
        two | alone-two) victims=$((i % 4)),$(((i + 1 + i / 4 % 3) % 4)) ;;
        launcher) victims=-1 ;;
        *) victims=$((i % 4)) ;;
      esac
      case $phase in rendezvous | close) delay=$((i * 700)) ;; *) delay=$((500 + i * 1500)) ;; esac
      one_kill "$victims" "$delay"
    done
  done
done
no_new_names before
awk -f "$SOURCE/tests/support/kill_table.awk" "$log" && [ $wrong = 0 ] || { echo "FAILED: $wrong wrong"; exit 1; }
