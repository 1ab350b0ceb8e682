#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# Several ranks whose passes are recorded and run again, on the doubles: values that are reduced behind a pass, ranks that
# run different things, and a rank that is killed or stopped in a recorded pass, with an NCCL that sees it and one that
# does not.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/repeat_ranks plugins/libtessera-comm-nccl.so
export LD_LIBRARY_PATH=$doubles TESSERA_LOG=warning
probe=$doubles/repeat_ranks

# A late reduction is there one pass later, and no host waits for it.
for n in 1 2 3; do
  TESSERA_DOUBLE_DELAY_US=200 TESSERA_DOUBLE_LEAKS=99 expect 0 "$TESSERA" run -n $n -- "$probe" late
done

# differs HOW PATTERN: what rank 1 does otherwise is an error of both, which names both.
differs() {
  TESSERA_DOUBLE_DELAY_US=20 expect 5 "$TESSERA" run -n 2 -- "$probe" "$1"
  grep -Eq "$2" err || fail "$1: no '$2' in: $(cat err)"
}
pass='a recorded training pass \(repeat 7, microbatch 0\)'
either() { echo "rank 0 is in $1, rank 1 in $2|rank 1 is in $2, rank 0 in $1"; } # WHAT OTHER
differs number "different things: ($(either "$pass" "${pass/7/8}"))"
differs rate "stepped differently before $pass: rank [01] called tess_step 13 with lr 0.(5|25), clip_norm 0, rank [01] tess_step 13 with lr 0"
differs calls "different things: ($(either "$pass" "all_gather of unit b \(128 elements\) in a training pass"))"
differs misses "different things: ($(either "$pass" tess_barrier))"
# The order between two communicators is the host's own matter, but not on a GPU, where both ranks would wait for ever.
# The plugin compares numbers of posts; without it the core sees who hangs.
for compare in on off; do
  TESSERA_NCCL_COMPARE=$compare TESSERA_DOUBLE_LEAKS=99 differs orders \
    "different things: ($(either "a gather" "a reduction")|$(either "a reduction" "a gather"))"
done

# dies SIGNAL VICTIM: each survivor ends with 5 and names it. No launcher, so that every exit code is the rank's own.
dies() {
  local pids=() r
  rm -f out.? err.?
  pick_port
  for r in 0 1 2; do
    RANK=$r LOCAL_RANK=$r WORLD_SIZE=3 LOCAL_WORLD_SIZE=3 "$probe" for ever >out.$r 2>err.$r </dev/null &
    pids[r]=$!
  done
  for r in 0 1 2; do
    within 60 grep -qs "are run again: 8 were called" out.$r || fail "no recorded pass on rank $r: $(cat err.$r out.$r)"
  done
  sleep "0.0$((RANDOM % 10))"
  kill -"$1" "${pids[$2]}"
  start_clock
  for r in 0 1 2; do
    [ $r = "$2" ] && continue
    ends "${pids[r]}" 20
    [ $code = 5 ] || fail "$1 of rank $2: rank $r ended with $code: $(cat err.$r)"
    grep -q "rank $2 was lost" err.$r || fail "$1 of rank $2: rank $r does not name it: $(cat err.$r)"
    grep -q "this rank was in a recorded training pass (repeat [78]" err.$r || fail "$1 of rank $2: rank $r was elsewhere: $(cat err.$r)"
  done
  stop_clock
  kill -KILL "${pids[$2]}" 2>/dev/null || true
  wait "${pids[$2]}" 2>/dev/null || true
}
export TESSERA_HEARTBEAT=1 TESSERA_DOUBLE_DELAY_US=20 MASTER_ADDR=127.0.0.1
slack=0
[ -z "${SANITIZE:-}" ] || slack=20000 # the time an end takes is not a sanitizer's
for death in error hang; do
  export TESSERA_DOUBLE_NCCL_DEATH=$death
  soon $((1000 + slack)) dies KILL 1
  soon $((1000 + slack)) dies KILL 0
  soon $((2600 + slack)) dies STOP 2 # a stalled rank is silent for a heartbeat first
done
nothing_left
echo "ranks that run recorded passes agree, and hear of each other's end"
