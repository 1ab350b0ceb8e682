#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# TESSERA_DETERMINISTIC=1: eight microbatches in a step end with one digest, on 1, 2, 4 or 8 ranks, over either comm plugin,
# with and without offload, in every strategy, with activations kept, recomputed or offloaded; with clipping another one.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1 TESSERA_SYNC=end TESSERA_THREADS=1
declare -A want=()
runs=0
run() { # W COMM OFFLOAD STRATEGY ACTIVATIONS MODE
  local digest
  runs=$((runs + 1))
  TESSERA_ACCUM=$((8 / $1)) TESSERA_COMM=$2 TESSERA_OFFLOAD=$3 TESSERA_STRATEGY=$4 TESSERA_ACTIVATIONS=$5 \
    expect 0 "$TESSERA" run -n "$1" --no-prefix -- "$BUILD/tests/support/toy" "$6"
  digest=$(sed -n 's/^digest=\([0-9a-f]*\) .*/\1/p' out)
  [ -n "$digest" ] || fail "no digest: $*: $(cat out err)"
  [ "${want[$6]:=$digest}" = "$digest" ] || fail "$*: digest $digest, expected ${want[$6]}"
}
for mode in blocks blocks-clip; do
  run 1 self none full keep $mode
  run 1 self cpu none recompute $mode
  run 1 self none grad_op offload $mode
  for w in 2 4 8; do
    half=$((w / 2))
    run $w gloo none full keep $mode
    run $w shm none full recompute $mode
    run $w gloo cpu hybrid:$half offload $mode
    run $w shm cpu hybrid_grad_op:$half keep $mode
    run $w shm none none offload $mode
    run $w gloo cpu grad_op recompute $mode
  done
done
[ "${want[blocks]}" != "${want[blocks-clip]}" ] || fail "clipping changes nothing"
echo "$runs runs, 2 digests"
nothing_left
