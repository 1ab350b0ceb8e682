#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A reshard is planned from headers alone: what it says is what it writes, to the byte; and of a checkpoint of 70 billion
# parameters, whose data are holes, it plans other files within seconds and a few MiB.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
expect 0 "$TESSERA" train gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 2 --threads 1 --quiet -n 3 --steps 2 --save run
expect 0 "$TESSERA" ckpt reshard run five --to 5 --plan --json
[ ! -e five ] || fail "a plan has written: $(ls five)"
sed -nE 's/.*"name":"([^"]*)","bytes":([0-9]*),.*/\1 \2/p' out >planned
[ "$(wc -l <planned)" = 5 ] || fail "$(cat out)"
expect 0 "$TESSERA" ckpt reshard run five --to 5
(cd five/step-000002 && stat -c '%n %s' data-*) >written
diff planned written || fail "planned and written differ"
expect 2 "$TESSERA" ckpt verify run --plan

[ -z "$SANITIZE" ] || exit 0 # the holes have no room under its limits on memory
elements=$("$BUILD/tests/e2e/big_checkpoint" big 8) || fail "no room for holes here: $elements"
[ "$elements" = 70553706496 ] || fail "$elements elements"
began=$(milliseconds)
(ulimit -v 1048576 && exec "$TESSERA" ckpt reshard big other --to 48 --plan --json) >out 2>err || fail "$(cat err)"
took=$(($(milliseconds) - began))
[ ! -e other ] && [ "$(wc -l <out)" = 48 ] || fail "$(wc -l <out) files: $(cat err)"
planned=$(sed -nE 's/.*"bytes":([0-9]*),.*/\1/p' out | awk '{ sum += $1 } END { printf "%.0f", sum }')
[ "$planned" -gt $((12 * elements)) ] && [ "$planned" -lt $((12 * elements + 48 * 1000000)) ] || fail "$planned bytes are planned"
expect 0 "$TESSERA" ckpt show big
grep -q 'lm_head.weight' out || fail "$(head -n 3 out)"
echo "70 billion parameters from 8 files to 48: $planned bytes, planned in $took ms"
