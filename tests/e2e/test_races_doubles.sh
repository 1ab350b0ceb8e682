#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# The doubles tell a wait that is missing, of the engine for a transfer or a collective: each of some waits is taken out alone.
# Some are not needed, since another orders the same; the rest are told, and a run with all of them is clean.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
seq 1 400 >text
train() {
  delay=0 on_double "$TESSERA" train gpt --batch 1 --layers 3 --heads 2 --width 16 --context 8 --steps 2 --device cuda \
    --sample 0 --data text --quiet "$@"
}

# told FIRST LAST LEAST OPTIONS…: of the waits from FIRST to LAST, taken out one by one, at least LEAST are told.
told() {
  local n told=0 code
  expect 0 train "${@:4}"
  for ((n = $1; n <= $2; n++)); do
    code=0
    TESSERA_DOUBLE_SKIP=cuStreamWaitEvent:$n train "${@:4}" >out 2>err || code=$?
    [ $code = 0 ] && continue
    grep -q "^.*doubles: race: .* and nothing orders the two$" err || fail "wait $n of ${*:4}: exit code $code: $(head -c 2000 err)"
    told=$((told + 1))
  done
  [ $told -ge "$3" ] || fail "${*:4}: $told of the waits $1 to $2 were told, expected $3"
}
told 8 17 4 --activations offload
told 4 19 5 --offload cpu
told 6 13 4 -n 2
echo "a wait for a transfer or a collective that is missing is told"
