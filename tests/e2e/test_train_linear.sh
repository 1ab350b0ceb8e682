#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The 3x3 linear layer on 1 to 5 ranks, some of which own nothing: output and weight are those of the closed form (the
# command checks them and fails otherwise), every strategy ends with the same digest, and what was saved can be resumed.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
field() { sed -n '/"event": *"summary"/s/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p' "$2"; }
most=1
[ ! -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || most=5
for ranks in $(seq $most); do
  for strategy in full grad_op none; do
    "$TESSERA" train linear -n "$ranks" --strategy $strategy --export "saved$ranks" --json=run.json >out ||
      fail "$ranks ranks, $strategy: $(cat out)"
    grep -q "both equal the closed form" out || fail "$ranks ranks, $strategy: not compared: $(cat out)"
    [ "$(field ranks run.json)" = "$ranks" ] || fail "the summary says $(field ranks run.json) ranks"
    [ "$(field peak_device_bytes run.json)" = "$(field planned_peak_device_bytes run.json)" ] ||
      fail "$ranks ranks, $strategy: peak $(field peak_device_bytes run.json), planned $(field planned_peak_device_bytes run.json)"
    echo "$ranks $(field params_digest run.json)" >>digests
  done
  # A rate of 0 changes nothing: the digest of what was loaded is that of what was saved.
  "$TESSERA" train linear -n "$ranks" --lr 0 --quiet --resume "saved$ranks" --json=again.json || fail "resume, $ranks ranks"
  [ "$(field params_digest again.json)" = "$(field params_digest run.json)" ] || fail "resumed parameters differ"
done
[ "$(sort -u digests | wc -l)" = "$most" ] || { cat digests; fail "strategies differ"; }
echo "closed form met by 1 to $most ranks; one digest per number of ranks"
