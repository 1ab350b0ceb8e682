#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The engine on one rank and on two against PyTorch's stored runs: gradients of the first step, loss at step 20.
set -u
probe=$BUILD/tests/support/pytorch_main
[ -x "$probe" ] || { echo "skip: CMocka is not here"; exit 77; }
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
export TESSERA_LOG=error
failed=0
for name in mnist-adadelta mnist-sgd gpt-adamw gpt-untied-adamw convbn-sgd; do
  for w in 1 2; do
    "$TESSERA" run -n $w -- "$probe" $name > log 2>&1 || { echo "FAILED: $name on $w:"; cat log; failed=1; }
    grep -h 'worst gradient' log | head -n 1
  done
done
exit $failed
