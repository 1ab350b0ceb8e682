#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e slow
# timeout: 1800
# processors: 2
# The cases of test_tracker.sh that are too large for it, on two and four ranks at PyTorch's own sizes: every ledger point
# and what was obtained are as planned in advance. Takes 6.5 GB.
. "$SOURCE/tests/e2e/lib.sh"
for plugin in comm-gloo precision-bf16; do
  [ -f "$BUILD/plugins/libtessera-$plugin.so" ] || { echo "skip: $plugin is not built here"; exit 77; }
done
[ "$(awk '/MemAvailable/ { print int($2 / 1e6) }' /proc/meminfo)" -ge 8 ] || { echo "skip: less than 8 GB of memory"; exit 77; }
unset RANK WORLD_SIZE TESSERA_OFFLOAD TESSERA_ACTIVATIONS TESSERA_PRECISION TESSERA_STRATEGY
export TESSERA_LOG=error TESSERA_THREADS=1 TESSERA_COMM=gloo TESSERA_HEARTBEAT=60

accurate() { # accurate RANKS CASE VARIABLE…
  local ranks=$1 case=$2
  shift 2
  expect 0 env "$@" "$TESSERA" run -n "$ranks" -- "$BUILD/tests/support/tracker" "$case" run 1
  grep -q "$case: [0-9]* points equal, .* accuracy 1\$" out || fail "$case $*: $(cat out err)"
  echo "W=$ranks $*: $(sed 's/^\[0\] //' out)"
}
for ranks in 2 4; do
  for reshard in full grad_op; do
    accurate $ranks mlps TESSERA_STRATEGY=$reshard TESSERA_PRECISION=bf16:wire=fp32
  done
  accurate $ranks part TESSERA_STRATEGY=full
done
nothing_left
