#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# processors: 2
# `bench comm` has a row for each operation that a comm plugin offers, in the plugin's own numbers of bytes: an all_to_all_v
# of equal parts moves as much as an all_to_all. A plugin without it has no row of it. Times are no test's.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skipped: comm-shm is not built here"; exit 77; }
export TESSERA_LOG=error
few="--least-bytes 4KiB --bytes 4098 --rounds 1 --seconds 0.1 --together 2"
rows() { sed -n 's/.*"op":"\([a-z_]*\)".*"bytes":\([0-9]*\),.*/\1 \2/p' "$1" | tr '\n' ';'; }
bench() { expect 0 "$TESSERA" bench comm "$@" $few --json; }
bench -n 2 --comm shm
want="all_gather 4096;reduce_scatter 4096;all_reduce 4096;broadcast 4096;all_to_all 4096;all_to_all_v 4096;barrier 0;"
[ "$(rows out)" = "$want" ] || fail "shm on two ranks: $(rows out)"
bench -n 3 --comm shm --op all_to_all_v # 1024 elements, of which three equal parts leave one
[ "$(rows out)" = "all_to_all_v 4092;" ] || fail "shm on three ranks: $(rows out)"
expect 2 "$TESSERA" bench comm -n 2 --comm shm --op all_to_all_w $few
grep -q "no operation 'all_to_all_w'; did you mean '*all_to_all" err || fail "a slip of the pen: $(cat err)"
# Plugins over another one, of which the second offers no all_to_all_v.
if [ -e "$BUILD/plugins/libtessera-comm-hosts.so" ]; then
  bench -n 2 --comm hosts
  [ "$(rows out)" = "$want" ] || fail "hosts on two ranks: $(rows out)"
fi
bench -n 2 --comm "$BUILD/tests/planted/libtessera-comm-counted.so:whole"
[ "$(rows out)" = "${want/all_to_all_v 4096;/}" ] || fail "without all_to_all_v: $(rows out)"
echo "a row for each operation"
