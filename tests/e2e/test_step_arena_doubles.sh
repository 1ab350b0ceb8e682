#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A pass that is compiled anew needs a larger step arena. On the doubles, whose NCCL unmaps at once as the real one does,
# the device must have come to rest before the old arena goes. The same when an engine closes after an error.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2
export TESSERA_PREFETCH=0 TESSERA_DEVICE=cuda TESSERA_COMM=nccl TESSERA_DOUBLE_DEVICES=2
probe() { # ARGUMENT…
  on_double "$TESSERA" run -n 2 -- "$BUILD/tests/e2e/step_arena_probe" "$@" >out 2>&1 || fail "$(cat out)"
  ! grep "doubles: ncclMemFree" out || fail "memory goes while kernels run, or may: $(cat out)"
}
TESSERA_OFFLOAD=cpu TESSERA_PRECISION=bf16 probe wrong
probe
[ "$(grep -c "recompiled (evaluation pass" out)" -ge 1 ] || fail "nothing was compiled anew: $(cat out)"
echo "the step arena grows while nothing runs, and arenas go when nothing runs"
