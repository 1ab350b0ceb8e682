#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# Several engines in one process, one after the other and at once with different wraps, at W = 1, 2 and 3: one digest,
# planned bytes are the bytes obtained, and the ledger agrees at every point, for each of them.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_THREADS=1
unset TESSERA_WRAP TESSERA_STRATEGY TESSERA_COMM
good="engines=4 digest=equal planned=equal ledger=equal"

expect 0 "$BUILD/tests/support/engines"
[ "$(cat out)" = "$good" ] || fail "W = 1: $(cat out)"
for comm in gloo shm; do
  [ -e "$BUILD/plugins/libtessera-comm-$comm.so" ] || { echo "comm-$comm is not built"; continue; }
  for n in 2 3; do
    expect 0 env TESSERA_COMM=$comm "$TESSERA" run -n "$n" --no-prefix -- "$BUILD/tests/support/engines"
    [ "$(sort -u out)" = "$good" ] && [ "$(wc -l <out)" = "$n" ] || fail "W = $n, $comm: $(cat out)"
  done
done

# Without `tessera run`, rank 0 holds the server; it outlives the first engine.
if [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ]; then
  pick_port
  for r in 0 1; do
    env RANK=$r WORLD_SIZE=2 LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$MASTER_PORT TESSERA_COMM=gloo \
      timeout 60 "$BUILD/tests/support/engines" >"alone$r" 2>&1 &
    pids[r]=$!
  done
  for r in 0 1; do
    wait "${pids[r]}" || fail "without a launcher, rank $r: $(cat "alone$r")"
    [ "$(cat "alone$r")" = "$good" ] || fail "without a launcher, rank $r: $(cat "alone$r")"
  done
fi
