#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# Digests of a device's memory: a step has the same on one rank and on two, with offload and without, and nothing races.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles plugins/libtessera-device-cuda.so plugins/libtessera-comm-nccl.so tests/doubles/libcublas.so.13 tests/doubles/libnccl.so.2
seq 1 400 >text
like_first() { # like_first OPTION…
  rm -f ledger
  expect 0 on_double "$TESSERA" train gpt --batch 1 --layers 2 --heads 2 --width 64 --context 8 --steps 3 --deterministic --device cuda \
    --sample 0 --data text --quiet --ledger ledger --json=run.json "$@"
  grep -o '"root":"[0-9a-f]*","digests":[^]]*' ledger >roots
  [ "$(wc -l <roots)" = 3 ] || fail "$*: $(cat ledger)"
  [ -e first ] || cp roots first
  cmp -s roots first || fail "other digests: $*"
  for domain in device host; do
    [ "$(summary peak_${domain}_bytes run.json)" = "$(summary planned_peak_${domain}_bytes run.json)" ] || fail "$domain: $(tail -n 1 run.json)"
  done
}
like_first --accum 2
like_first --accum 2 --offload cpu
like_first -n 2
like_first -n 2 --offload cpu --strategy none
rm first
like_first --accum 2 --precision bf16 --clip 0.1
like_first -n 2 --precision bf16 --clip 0.1 --low-copy
expect 3 on_double "$TESSERA" train gpt --batch 1 --steps 1 --device cuda --sample 0 --data text --quiet --at-rest-digests
grep -q 'TESSERA_AT_REST_DIGESTS=1: device cuda has memory that the host does not read' err || fail "$(cat err)"
