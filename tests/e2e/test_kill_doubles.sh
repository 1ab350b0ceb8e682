#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# A rank over NCCL on the doubles dies or stalls, where NCCL notices (as over a network) and where it does not (as over
# NVLink): the others end with code 5 within a second and name it, and nothing is left behind.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
toy=$BUILD/tests/support/toy
[ -e "$BUILD/tests/doubles/libnccl.so.2" ] && [ -e "$BUILD/plugins/libtessera-comm-nccl.so" ] ||
  { echo "skipped: the doubles of CUDA and NCCL are not built here (CUDA toolkit not found)"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: the time an end may take is not a sanitizer's"; exit 77; }
export TESSERA_PLUGIN_PATH=$BUILD/plugins LD_LIBRARY_PATH=$BUILD/tests/doubles
export TESSERA_DEVICE=cuda TESSERA_HEARTBEAT=1 TESSERA_DOUBLE_DELAY_US=20 MASTER_ADDR=127.0.0.1

# What each survivor gets: no launcher, so that every exit code is the rank's own.
worst=0
case_of() { # case_of SIGNAL VICTIM OFFLOAD
  local pids=() r
  pick_port
  for r in 0 1 2; do
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 TESSERA_OFFLOAD=$3 "$toy" blocks 1000000 >out.$r 2>err.$r </dev/null &
    pids[r]=$!
  done
  sleep 1
  kill -0 "${pids[@]}" || fail "a rank ended by itself: $(cat err.*)"
  kill -"$1" "${pids[$2]}"
  start_clock
  for r in 0 1 2; do
    [ $r = "$2" ] && continue
    ends "${pids[r]}" 20
    [ $code = 5 ] || fail "$1 of rank $2: rank $r ended with $code: $(cat err.$r)"
    grep -q "rank $2 was lost" err.$r || fail "$1 of rank $2: rank $r does not name it: $(cat err.$r)"
  done
  stop_clock
  [ $took -le "$worst" ] || worst=$took
  kill -KILL "${pids[$2]}" 2>/dev/null || true
  wait "${pids[$2]}" 2>/dev/null || true
}

for death in error hang; do
  export TESSERA_DOUBLE_NCCL_DEATH=$death
  soon 1000 case_of KILL 1 none
  soon 1000 case_of KILL 0 cpu
  soon 2600 case_of STOP 2 none # a stalled rank is silent for a heartbeat first
done
nothing_left
echo "the slowest end took $worst ms, on the doubles"
