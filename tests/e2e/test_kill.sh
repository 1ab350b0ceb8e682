#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# twin: 120
# other: 7200 TABLE=1
# Ranks are killed in each phase of a run, over gloo and shm; so is the launcher; and one is stopped, which its missing heartbeat
# tells. All others end with code 5 within a second, naming one that was killed, and nothing is left behind. With DOUBLES=1 over
# NCCL on the doubles, which notices a death, as over a network, or does not, as over NVLink.
# TABLE=1: 528 kills of one or two of four ranks, in every phase, over hosts too; without a launcher, in lanes, in groups, with a
# table at the end (docs/benchmarks/kills.md). With DOUBLES=1 one kill in each phase where NCCL does not see it, so that the core
# ends it; what is queued on a GPU still runs, which takes a CPU longer.
# KILLS: in each cell. CELLS: those whose "PHASE COMM" this pattern matches.
# KILL_LOG: a file that gathers the kills of several calls. Seconds are told from a call's own time and from the death; the time
# aside in which processors were scarce.
. "$SOURCE/tests/e2e/lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR
table=${TABLE:-} log=${KILL_LOG:-$PWD/kills} ranks=3 patience=5
probe=$BUILD/tests/support/kill_main
phases="rendezvous transfer forward backward step launcher stopped" comms="gloo shm"
if [ -n "${DOUBLES:-}" ]; then
  needs_doubles tests/doubles/libnccl.so.2 plugins/libtessera-comm-nccl.so
  [ -z "${SANITIZE:-}" ] || { echo "skipped: the time an end may take is not a sanitizer's"; exit 77; }
  export LD_LIBRARY_PATH=$doubles TESSERA_DEVICE=cuda TESSERA_DOUBLE_DELAY_US=20
  comms=nccl:hang
  if [ -n "$table" ]; then
    table='' KILLS=${KILLS:-1} KILL_ELEMS=16777216 patience=6
  else
    comms="nccl:error nccl:hang" phases="alone step lanes stopped"
  fi
elif [ -n "$table" ]; then
  phases="rendezvous transfer forward backward step evaluation save hybrid hybrid-step lanes lanes-step close two alone alone-two launcher"
  comms="gloo shm hosts" ranks=4
fi
export TESSERA_LOG=warning KILL_ELEMS=${KILL_ELEMS:-2000000} TESSERA_THREADS=1
names_of_ours >before
wrong=0 worst=0
note() { echo "WRONG: $cell: $*"; head -c 1500 out err run/rank.* 2>/dev/null; wrong=$((wrong + 1)) outcome=wrong; }
number() { sed -n "s/.* $1=\(-\{0,1\}[0-9]*\).*/\1/p" <<<"$2"; }

# survivor RANK VICTIMS: its times, in us, raise $latest (from its own call) and $slowest (from the death).
survivor() {
  local line late after scarce over
  line=$(cat "run/rank.$1" 2>/dev/null) || { [ "$phase" = close ] || note "no word from rank $1"; return; }
  [[ $phase == close && $line == code=0\ * ]] && return
  late=$(number late_us "$line") after=$(number after_us "$line") scarce=$(number scarce_ms "$line")
  [[ $line == code=5\ * && $line =~ (rank ($2)|launcher)" " ]] || note "victims $2: rank $1: $line"
  [[ $2 == launcher || $line =~ "rank "($2)" " ]] || note "victims $2: rank $1: $line"
  over=$((${late:-99999999} / 1000))
  [ $over -gt 9000 ] || over=$((over - ${scarce:-0}))
  [ $over -le $([ $phase = stopped ] && echo 3200 || echo 1000) ] || note "rank $1 took $late us, while processors were scarce for ${scarce:-0} ms"
  [ "${late:-0}" -le "$latest" ] || latest=$late
  [ "${after:-0}" -le "$slowest" ] || slowest=$after
}

# start VICTIMS DELAY_US [SIGNAL]: the ranks under a launcher, or by hand; ends when they have. 60 s are a hang.
start() {
  local r code
  if [ "$how" = alone ]; then
    pick_port
    for ((r = 0; r < ranks; r++)); do
      RANK=$r WORLD_SIZE=$ranks LOCAL_RANK=$r LOCAL_WORLD_SIZE=$ranks MASTER_ADDR=127.0.0.1 timeout 60 "$probe" "$PWD/run" "$part" "$@" >>out 2>&1 &
    done
    wait
  else
    timeout 60 "$TESSERA" run -n $ranks -- "$probe" "$PWD/run" "$part" "$@" >out 2>err
    code=$?
    [ $code = 5 ] || [[ $phase == close && $code = 0 ]] || note "the launcher ended with $code"
  fi
}
words() { [ "$(ls run/rank.* 2>/dev/null | wc -l)" = $ranks ]; }
start_and_kill_launcher() {
  "$TESSERA" run -n $ranks -- "$probe" "$PWD/run" "$part" -1 0 >out 2>err &
  local launcher=$!
  within 20 grep -qs . /proc/$launcher/task/$launcher/children
  sleep "0.$((RANDOM % 900 + 100))"
  awk -v scarce="$(scarce)" '{ printf "%.3f %d\n", $1 * 1000, scarce }' /proc/uptime >run/death
  kill -9 $launcher
  wait $launcher 2>/dev/null
  within 60 words
}

# one_kill VICTIMS DELAY_US
one_kill() {
  local r begin=$SECONDS
  rm -rf run out err && mkdir run
  outcome=ok latest=0 slowest=0
  case $phase in
    launcher) start_and_kill_launcher ;;
    stopped) TESSERA_HEARTBEAT=1.5 start "$1" 0 19 ;;
    *) start "$1" "$2" ;;
  esac
  [ $((SECONDS - begin)) -lt 59 ] || { note "a hang"; outcome=hang; }
  for ((r = 0; r < ranks; r++)); do
    [ $outcome != ok ] || [[ ",$1," == *",$r,"* ]] || survivor $r "$([ "$phase" = launcher ] && echo launcher || tr , '|' <<<"$1")"
  done
  within $patience none_left || { note "left running: $(leftovers)"; leftovers | xargs -r kill -9; }
  [ $latest -le $worst ] || [ $phase = stopped ] || worst=$latest
  echo "$phase|$comm|$outcome|$latest|$slowest" >>"$log"
}

for comm in $comms; do
  [ -f "$BUILD/plugins/libtessera-comm-${comm%:*}.so" ] || { echo "without comm-$comm, which is not built here"; continue; }
  for phase in $phases; do
    cell="$phase $comm"
    [[ $cell == ${CELLS:-*} ]] || continue
    export TESSERA_COMM=${comm%:*} TESSERA_DOUBLE_NCCL_DEATH=${comm#*:} TESSERA_STRATEGY=full TESSERA_OFFLOAD=none TESSERA_HOSTS_RANKS=$([ $comm = hosts ] && echo 2 || echo 0)
    export TESSERA_HEARTBEAT=${table:+20}
    [ -n "$table" ] || unset TESSERA_HEARTBEAT
    how=launched part=$phase
    case $phase in
      hybrid) TESSERA_STRATEGY=hybrid:2 part=transfer ;;
      hybrid-step) TESSERA_STRATEGY=hybrid:2 part=step ;;
      lanes) TESSERA_OFFLOAD=cpu part=transfer ;;
      lanes-step) TESSERA_OFFLOAD=cpu part=step ;;
      two) part=backward ;;
      alone | alone-two) how=alone part=transfer ;;
      launcher | stopped) part=forward ;;
    esac
    kills=${KILLS:-$([ -n "$table" ] && echo 11 || { [ $comm = gloo ] && echo 3 || echo 1; })}
    [ -n "$table" ] || [[ $phase != launcher && $phase != stopped ]] || kills=1
    for ((i = 0; i < kills; i++)); do
      case $phase in
        two | alone-two) victims=$((i % ranks)),$(((i + 1 + i / ranks % (ranks - 1)) % ranks)) ;;
        launcher) victims=-1 ;;
        stopped) victims=2 ;;
        *) victims=$((i % ranks)) ;;
      esac
      case $phase in rendezvous | close) delay=$((i * 700)) ;; *) delay=$((500 + i * 1500)) ;; esac
      one_kill "$victims" "$delay"
    done
  done
done
no_new_names before
[ -s "$log" ] || { echo "skip: none of comm-${comms// /, comm-} is built here"; exit 77; }
echo "$(wc -l <"$log") kills, the latest survivor: $worst us after its call"
[ -z "$table" ] || awk -f "$SOURCE/tests/support/kill_table.awk" "$log" || wrong=$((wrong + 1))
[ $wrong = 0 ] || { echo "FAILED: $wrong wrong"; exit 1; }
