#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A command that runs with another user's rights: its options hold, although the environment does not.
. "$SOURCE/tests/e2e/lib.sh"
[ "$(id -u)" = 0 ] || { echo "skipped: only root can give a file to another user"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer refuses to run with another user's rights"; exit 77; }
cp "$TESSERA" tessera
chown nobody tessera
chmod 4755 tessera
export TESSERA_LOG=error
train="train linear --steps 3 --lr 0.5 --seed 7 --threads 1 --quiet --json"
digest() { sed -n 's/.*"params_digest":"\([0-9a-f]*\)".*/\1/p' out | tail -n 1; }
# shellcheck disable=SC2086
{
  expect 0 "$TESSERA" $train
  plain=$(digest)
  expect 0 ./tessera $train
  [ -n "$plain" ] && [ "$(digest)" = "$plain" ] || fail "options are lost: digest $(digest), expected $plain"
  expect 0 "$TESSERA" train linear --steps 3 --threads 1 --quiet --json
  [ "$(digest)" != "$plain" ] || fail "the options change nothing"
}
expect 0 ./tessera plan linear -n 1 --wrap none --batch 3 --threads 1 --json
grep -q '"wrap":"none"' out || fail "plan loses --wrap: $(cat out)"
sed 's/,"plan_seconds":.*//' out >given
expect 0 "$TESSERA" plan linear -n 1 --wrap none --batch 3 --threads 1 --json
sed 's/,"plan_seconds":.*//' out | cmp - given || fail "plan differs: $(cat given out)"
expect 3 ./tessera plan linear -n 1 --wrap nothing

# The environment of another user is not read, where the file system takes the bit.
case "$(findmnt -nT . -o OPTIONS 2>/dev/null)" in *nosuid*) exit 0 ;; esac
TESSERA_WRAP=none expect 0 ./tessera plan linear -n 1 --json
grep -q '"wrap":"scopes"' out || fail "TESSERA_WRAP is read: $(cat out)"
