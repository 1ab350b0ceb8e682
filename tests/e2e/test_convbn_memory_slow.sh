#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e slow
# timeout: 1800
# processors: 2
# PyTorch's FSDP memory test at its own size, computed: what is alive at its points over four iterations on two ranks,
# to 1 MiB of its figures, with and without recomputation of the blocks.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: no comm-gloo in this build"; exit 77; }
export TESSERA_LOG=error
for activations in keep recompute; do
  export TESSERA_ACTIVATIONS=$activations
  echo "$activations:"
  expect 0 "$TESSERA" run -n 2 -- "$BUILD/tests/support/convbn_memory" run 224 128
  [ "$(grep -c "expected" out)" = 18 ] || fail "not four iterations: $(cat out err)"
  cat out
done
nothing_left
