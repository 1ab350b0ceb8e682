#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The figures of PyTorch's FSDP memory test at its own size, out of the plan and in a run whose blocks compute nothing and
# write all their memory; and at a small size in one that computes. What is alive at its points must be what the
# declarations say, at every ledger point what was planned; with and without recomputation of the blocks.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: no comm-gloo in this build"; exit 77; }
probe=$BUILD/tests/support/convbn_memory
export TESSERA_COMM=gloo TESSERA_LOG=error TESSERA_THREADS=1
for activations in keep recompute; do
  export TESSERA_ACTIVATIONS=$activations
  echo "$activations:"
  expect 0 "$probe" plan 224 128
  cat out
  [ "$(grep -c expected out)" = 2 ] || fail "the plan says nothing: $(cat out)"
  expect 0 "$TESSERA" run -n 2 -- "$probe" touch 224 128
  [ "$(grep -c expected out)" = 18 ] || fail "not four iterations: $(cat out err)"
  grep -E 'iter 3|WRONG' out
  expect 0 "$TESSERA" run -n 2 -- "$probe" run 20 16
  [ "$(grep -c "iter 3: done" out)" = 1 ] || fail "not four iterations: $(cat out err)"
done
nothing_left
