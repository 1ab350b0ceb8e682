#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# What cannot be saved or loaded is one line with the file and exit code 6: a read-only directory, a file that is missing or cut
# off, a newer format, a second run on one directory. The lock ends with its owner, however that ends.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
linear="linear --quiet"
refuse() { # refuse PATTERN COMMAND…
  local pattern=$1
  shift
  expect 6 "$@"
  [ "$(wc -l <err)" = 1 ] && grep -Eq -- "$pattern" err || fail "no line '$pattern' of: $*: $(cat err)"
}
expect 0 "$TESSERA" train $linear --steps 4 --save run --save-every 2 --json=whole.json

# Damage of the newest: the one before is taken, and a line names the file; by its own name it is refused.
goes_back() { # goes_back PATTERN
  refuse "$1" "$TESSERA" train $linear --steps 4 --resume damaged/step-000004
  expect 0 "$TESSERA" train $linear --steps 4 --resume damaged --json=again.json
  grep -Eq -- "$1.*trying the checkpoint before" err || fail "no word of it: $(cat err)"
  [ "$(digest again.json)" = "$(digest whole.json)" ] || fail "another digest after: $(cat err)"
  rm -rf damaged
}
cp -r run damaged
rm damaged/step-000004/data-1-00000-of-00001.safetensors
goes_back "damaged/step-000004/data-1-00000-of-00001.safetensors: No such file"
cp -r run damaged
truncate -s -1 damaged/step-000004/data-1-00000-of-00001.safetensors
goes_back "damaged/step-000004/data-1-00000-of-00001.safetensors"
cp -r run damaged
sed -i 's/"version":2,/"version":5,/' damaged/step-000004/manifest.json
cp -r damaged newer
goes_back "damaged/step-000004/manifest.json: format version 5 is newer than this tessera, which reads up to 4"
# A run that goes on behind it leaves it alone.
expect 6 "$TESSERA" train $linear --steps 4 --resume newer --save newer
grep -q "error: newer: step 4 there would be left behind" err || fail "no word of it: $(cat err)"
expect 0 "$TESSERA" train $linear --steps 4 --resume newer --save newer --keep 1 --on-newer aside
cmp run/step-000004/data-1-00000-of-00001.safetensors newer/aside-1/step-000004/data-1-00000-of-00001.safetensors || fail "$(find newer)"

# A directory that takes no files. Root writes into any but a read-only mount, which needs a namespace of its own.
mkdir -p closed
if [ "$(id -u)" != 0 ]; then
  chmod 555 closed
  refuse "--save closed: cannot be written: Permission denied" "$TESSERA" train $linear --steps 1 --save closed
  chmod 755 closed
elif unshare -m sh -c 'mount --bind closed closed && mount -o remount,bind,ro closed' 2>/dev/null; then
  refuse "--save closed: cannot be written: Read-only file system" unshare -m sh -c \
    'mount --bind closed closed && mount -o remount,bind,ro closed && exec "$@"' sh "$TESSERA" train $linear --steps 1 --save closed
fi
[ -z "$(ls closed)" ] || fail "left behind: $(ls closed)"

# Two runs on one directory.
"$TESSERA" train $linear --steps 1000000000 --save both --save-every 1 --keep 1 >first 2>&1 & pid=$!
is_held() { ls both/step-*/manifest.json >/dev/null 2>&1; }
within 60 is_held || fail "the first run saves nothing: $(cat first)"
refuse "both: another run saves there; give this one a directory of its own" "$TESSERA" train $linear --steps 1 --save both
kill -KILL $pid
wait $pid 2>/dev/null || true
expect 0 "$TESSERA" train $linear --steps 1 --save both --keep 1 --on-newer aside
nothing_left
echo "refused: damage, a newer format, a closed directory, a second run"
