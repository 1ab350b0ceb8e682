#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 60
# processors: 2
# A program that goes on from a checkpoint with other microbatches in a step than before is told so in one line, and
# refused under deterministic mode on another number of ranks. tess_options.microbatches keeps them.
. "$SOURCE/tests/e2e/lib.sh"
probe=$BUILD/tests/e2e/declare_probe
export TESSERA_LOG=warning TESSERA_THREADS=1
unset RANK WORLD_SIZE
[ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skipped: comm-shm is not built"; exit 77; }
run() { "$TESSERA" run -n "$1" --no-prefix -- "$probe" "${@:2}"; }
said() { # WORDS: the one line about microbatches
  [ "$(grep -c microbatches err)" = 1 ] && grep -q -- "$1" err || fail "not in one line '$1': $(cat err)"
}

expect 0 run 2 options.accum=2 save=saved
expect 0 run 2 options.accum=2 load=saved
[ ! -s err ] || fail "nothing differs, and yet: $(cat err)"
expect 0 run 2 load=saved
said "its steps had 4 microbatches (ranks: 2), those of this run have 2 (ranks: 2): set tess_options.microbatches to 4, or TESSERA_ACCUM to 2; other bits from here on"
expect 0 run 3 load=saved
said "(ranks: 2), those of this run have 3 (ranks: 3): set tess_options.microbatches to 4; other bits"
expect 0 run 1 options.microbatches=4 load=saved
[ ! -s err ] || fail "4 microbatches on one rank: $(cat err)"

# Deterministic: to the same bits or not at all. A changed accum is the user's will.
export TESSERA_DETERMINISTIC=1
expect 3 run 3 load=saved
grep -q "set tess_options.microbatches to 4 (TESSERA_DETERMINISTIC=1)" err || fail "$(cat err)"
expect 0 run 2 load=saved
said "other bits from here on"
expect 0 run 4 options.microbatches=4 load=saved
[ ! -s err ] || fail "4 microbatches on four ranks: $(cat err)"
nothing_left
