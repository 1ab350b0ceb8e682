#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A pass that is compiled anew needs a larger step arena. On the doubles, whose NCCL unmaps at once as the real one does,
# the device must have come to rest before the old arena goes. The same when an engine closes after an error.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
doubles=$BUILD/tests/doubles
[ -e "$doubles/libnccl.so.2" ] || { echo "skipped: the doubles of CUDA and NCCL are not built"; exit 77; }
export TESSERA_PREFETCH=0 TESSERA_DEVICE=cuda TESSERA_COMM=nccl
probe() {
  LD_LIBRARY_PATH=$doubles TESSERA_DOUBLE_DEVICES=2 TESSERA_DOUBLE_LEAKS=1 TESSERA_DOUBLE_DELAY_US=${delay:-20000} \
    "$TESSERA" run -n "$1" -- "$BUILD/tests/e2e/step_arena_probe" "${@:2}" >out 2>&1 || fail "$(cat out)"
  ! grep "^.*doubles: ncclMemFree" out || fail "memory goes while kernels run: $(cat out)"
}
delay=300000 TESSERA_OFFLOAD=cpu TESSERA_PRECISION=bf16 probe 2 wrong # a busy machine closes late
probe 2
[ "$(grep -c "recompiled (evaluation pass" out)" -ge 1 ] || fail "nothing was compiled anew: $(cat out)"
echo "the step arena grows while nothing runs, and arenas go when nothing runs"
