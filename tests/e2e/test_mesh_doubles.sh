#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# A mesh of GPUs over NCCL, on the doubles: engines over dp and groups over tp, whose collectives work on the device's
# memory; the bits of dp alone; planned bytes are measured; a lost rank is named in every group.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
export TESSERA_THREADS=1 TESSERA_LOG=warning TESSERA_DEVICE=cuda TESSERA_DOUBLE_DEVICES=8
unset TESSERA_MESH TESSERA_STRATEGY TESSERA_WRAP
groups() { # groups CODE MESH RANKS VICTIM
  rm -f out.* err.*
  TESSERA_MESH=$2 expect "$1" on_double "$TESSERA" run -n "$3" -- bash -c 'exec "$0" "$@" >out.$RANK 2>err.$RANK' \
    "$BUILD/tests/support/groups" kill "$4"
}
groups 0 dp=2 2 -1
digest=$(head -n 1 out.0)
[ ${#digest} = 16 ] || fail "no digest: $(cat out.* err.*)"
groups 0 dp=2,tp=2 4 -1
[ "$(cat out.* | grep -v ok | sort -u)" = "$digest" ] || fail "dp=2 has digest $digest, dp=2,tp=2: $(cat out.*)"
groups 5 dp=2,tp=2 4 2
for r in 0 1 3; do
  grep -q "^groups: rank 2 was lost\( (last seen in .*)\)\?: killed by signal 9" err.$r || fail "rank $r: $(cat err.$r)"
done
