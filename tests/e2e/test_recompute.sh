#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# What is recomputed or comes back from the host is what was: mnist, whose blocks drop activations at random, ends with the
# same parameters whichever way its activations go.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error TESSERA_THREADS=1
digits=$(brief_digits)
for n in 1 2; do
  want=
  for activations in keep recompute offload; do
    expect 0 "$TESSERA" train mnist $digits -n $n --steps 3 --batch 8 --wrap size:20000 --activations $activations --quiet --json
    digest=$(sed -n 's/.*"event":"summary".*"params_digest":"\([0-9a-f]*\)".*/\1/p' out)
    [ -n "$digest" ] || fail "no digest: $(cat out err)"
    [ "${want:=$digest}" = "$digest" ] || fail "$activations at $n ranks: $digest, expected $want"
  done
done
