#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Slots that no plugin of this tree needs, in training: registered memory. The planted plugin refuses a collective whose
# buffers do not carry their registration, and ends the process when memory or a communicator goes before it.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error TESSERA_PLUGIN_PATH=$TESSERA_PLUGIN_PATH:$BUILD/tests/planted
digest() { sed -n 's/.*digest=\([0-9a-f]*\).*/\1/p' out; }
toy() { "$TESSERA" run -n 4 --no-prefix -- "$BUILD/tests/support/toy" blocks; }
for strategy in hybrid:2 full; do
  export TESSERA_STRATEGY=$strategy
  TESSERA_COMM=shm expect 0 toy
  plain=$(digest)
  TESSERA_COMM=registering expect 0 toy
  [ -n "$plain" ] && [ "$(digest)" = "$plain" ] || fail "$strategy: digest $(digest), expected $plain"
  # On each of four ranks: two arenas with the two groups of hybrid; full has the communicator alone that allocates.
  if [ $strategy = full ]; then wanted='registered 0 deregistered 0 used 0'; else wanted='registered 4 deregistered 4 used [1-9][0-9]+'; fi
  [ "$(grep -Ecx "$wanted" out)" = 4 ] || fail "$strategy: $(grep registered out)"
done
nothing_left
