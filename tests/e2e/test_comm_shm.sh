#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# comm-shm: what auto picks for ranks of one host, the same digest as over gloo, ranks' arenas shared and nothing left.
. "$SOURCE/tests/e2e/lib.sh"
names_of_ours > before
[ -f "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skip: comm-shm is not built here"; exit 77; }
failed=0
fail() { echo "FAILED: $*"; failed=1; }
toy=$BUILD/tests/support/toy
digest() { # digest COMM W MODE
  TESSERA_LOG=error TESSERA_THREADS=1 TESSERA_COMM=$1 "$TESSERA" run -n "$2" -- "$toy" "$3" 2> err |
    sed -n 's/.*digest=\([0-9a-f]*\).*/\1/p'
}
for w in 2 3 4; do
  for mode in blocks-clip hooks; do
    shm=$(digest shm $w $mode)
    [ -n "$shm" ] || fail "no digest over shm: W=$w $mode: $(head -c 600 err)"
    [ ! -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || [ "$shm" = "$(digest gloo $w $mode)" ] ||
      fail "W=$w $mode: shm gives $shm, gloo another"
  done
done
digest shm 8 blocks | grep -q . || fail "W=8: $(head -c 600 err)"

# One line says what was picked.
"$TESSERA" run -n 2 -- "$toy" > out 2> err || fail "auto: $(head -c 600 err)"
[ "$(grep -c 'comm=auto picked shm for 2 ranks, 2 of them on one host' err)" = 1 ] || fail "auto says: $(cat err)"

no_new_names before
exit $failed
