#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A save leaves one key in the launcher's key-value store, whatever came before: the room there is bounded, and a run may save
# for weeks.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skip: comm-shm is not built here"; exit 77; }
export TESSERA_COMM=shm TESSERA_LOG=error
expect 0 "$TESSERA" run -n 2 --no-prefix -- "$BUILD/tests/e2e/saved_keys" run
one_line out "checkpoint/3/all"
nothing_left
