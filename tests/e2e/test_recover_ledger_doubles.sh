#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# A rank is killed early, on the doubles, where steps are recorded. Each ledger that a run writes has the planned points and
# measures the same ones: the one before the loss, that of the same step done again, and that of the process which takes
# rank 0's place.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libcublas.so.13 tests/doubles/libnccl.so.2 plugins/libtessera-comm-nccl.so
gpt="gpt --batch 1 --layers 1 --heads 1 --width 16 --context 32 --device cuda $(brief_text) --quiet --steps 8 --accum 2 --mirror 4"

expect 0 on_double "$TESSERA" train $gpt -n 3 --json=run.json
points=$(grep -c '"event":"ledger","source":"planned"' run.json)
[ "$points" -gt 20 ] || fail "only $points planned points"

# early END LEDGERS: so many are written, each whole.
early() {
  rm -f run.json
  : >once
  TESSERA_DOUBLE_END=$1 TESSERA_DOUBLE_END_FILE=once expect 0 on_double "$TESSERA" train $gpt -n 3 --json=run.json
  [ "$(summary recoveries run.json)" = 1 ] || fail "$1: $(summary recoveries run.json) recoveries: $(cat err)"
  grep '"event":"ledger","source":"planned"' run.json | sed 's/planned//' >planned
  grep '"event":"ledger","source":"measured"' run.json | sed 's/measured//; s/,"backend":[0-9]*//' >measured
  [ "$(wc -l <planned)" = $(($2 * points)) ] || fail "$1: $(wc -l <planned) planned points, expected $2 times $points"
  cmp -s planned measured || fail "$1: $(wc -l <planned) planned, $(wc -l <measured) measured: $(diff planned measured | head -n 4)"
}
early ncclReduceScatter:2:9@1 1  # in the first step: none is written before
early ncclReduceScatter:28:9@1 2 # in the fourth: back to the beginning
early ncclReduceScatter:50:9@0 2 # rank 0 goes on from the image of step 4
nothing_left
echo "$points points of each ledger are measured as they are planned, after a recovery too"
