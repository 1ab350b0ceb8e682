#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Tables of other lengths, with garbage behind their ends: without the last slots, as an older header would make them, and with
# more, as a later one would. Training with them ends with the same parameters.
. "$SOURCE/tests/e2e/lib.sh"
lengths=$BUILD/tests/planted/libtessera-comm-lengths.so
train() { # OPTION…: its digest is in $got
  expect 0 "$TESSERA" train linear -n 2 --steps 3 --seed 1 --quiet --json --optimizer adamw "$@"
  got=$(sed -n 's/.*"params_digest":"\([0-9a-f]*\)".*/\1/p' out)
}
train --comm shm
plain=$got
[ -n "$plain" ] || fail "no digest: $(cat out)"
for length in shorter longer; do
  train --comm "$lengths:$length" --device "$lengths:$length"
  [ "$got" = "$plain" ] || fail "$length tables: digest $got, expected $plain"
done
