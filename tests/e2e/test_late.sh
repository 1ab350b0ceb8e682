#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Collectives that begin late on one rank change no bit: whoever needs what they bring waits for it. Seconds late, the others say on the
# control plane that they wait, and allocate nothing for it (the toy fails if they do).
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error TESSERA_THREADS=1
run() { # COMM STRATEGY OFFLOAD
  TESSERA_COMM=$1 TESSERA_STRATEGY=$2 TESSERA_OFFLOAD=$3 expect 0 "$TESSERA" run -n 4 --no-prefix -- "$BUILD/tests/support/toy" blocks
  digest=$(sed -n 's/^digest=\([0-9a-f]*\) .*/\1/p' out)
}
run shm full none
want=$digest
for over in shm gloo; do
  for op in all_gather reduce_scatter all_reduce; do
    strategy=$([ $op = all_reduce ] && echo hybrid:2 || echo full)
    for offload in none cpu; do
      run "$BUILD/tests/planted/libtessera-comm-fault.so:delay=10,rank=1,at=0,op=$op,over=$over" $strategy $offload
      [ -n "$digest" ] && [ "$digest" = "$want" ] || fail "a late $op over $over, offload $offload: $digest, expected $want"
    done
  done
done
run "$BUILD/tests/planted/libtessera-comm-fault.so:delay=2500,rank=1,at=30,op=all_gather,over=gloo" full none
[ "$digest" = "$want" ] || fail "an all_gather that comes seconds late: $digest, expected $want"
nothing_left
