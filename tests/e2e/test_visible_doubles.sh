#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# processors: 2
# Each rank sees one GPU, its own, as under Slurm's --gpus-per-task=1, also the ranks whose LOCAL_RANK is above 0: the
# engine, device-cuda, the operators and comm-nccl take it, with the bits of ranks that see them all.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
export TESSERA
gpt="train gpt $(brief_text) --batch 2 --layers 1 --heads 2 --width 16 --context 8 --steps 2 --device cuda"
own='TESSERA_DOUBLE_DEVICES=1 TESSERA_DOUBLE_FIRST=$LOCAL_RANK exec "$@"'

expect 0 on_double "$TESSERA" run -n 2 -- "$TESSERA" $gpt --json=all.json
expect 0 on_double "$TESSERA" run -n 2 -- sh -c "$own" x "$TESSERA" $gpt --json=own.json
[ "$(summary comm own.json)" = nccl ] || fail "comm=auto picked $(summary comm own.json)"
digest=$(summary params_digest all.json)
[ -n "$digest" ] && [ "$(summary params_digest own.json)" = "$digest" ] ||
  fail "with a GPU each: digest $(summary params_digest own.json), expected $digest"

# A program by hooks, on a stream of its own.
TESSERA_DEVICE=cuda TESSERA_COMM=nccl expect 0 on_double "$TESSERA" run -n 2 -- sh -c "$own" x \
  "$BUILD/tests/support/toy" blocks-clip 2
[ "$(grep -c "digest=" out)" -ge 1 ] || fail "the hooks gave nothing: $(cat out err)"

# Frozen parameters that rest in bf16 and as opaque bytes have the CPU's bits there, offloaded or not.
expect 0 env TESSERA_COMM=gloo TESSERA_DETERMINISTIC=1 "$TESSERA" run -n 2 --no-prefix -- "$BUILD/tests/support/toy" blocks-stored 2
digest=$(grep -o "digest=[0-9a-f]*" out)
for offload in none cpu; do
  TESSERA_DEVICE=cuda TESSERA_COMM=nccl TESSERA_DETERMINISTIC=1 TESSERA_OFFLOAD=$offload expect 0 on_double "$TESSERA" run -n 2 \
    --no-prefix -- "$BUILD/tests/support/toy" blocks-stored 2
  grep -q "$digest " out || fail "stored, offload $offload: $(cat out), expected $digest"
done
echo "ranks that see one GPU each take it"
