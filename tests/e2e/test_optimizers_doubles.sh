#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# Optimizer plugins beside a GPU, on the doubles of CUDA: their steps do not reach its memory, which is one line; with all on
# the host they run on the host's threads, behind the gradients that come down. Two ways to get there have the same bits.
. "$SOURCE/tests/e2e/lib.sh"
doubles=$BUILD/tests/doubles
[ -e "$doubles/libcuda.so.1" ] && [ -e "$BUILD/plugins/libtessera-device-cuda.so" ] &&
  [ -e "$BUILD/plugins/libtessera-offload-cpu.so" ] || { echo "skipped: the doubles of CUDA are not built here"; exit 77; }
head -c 20000 "$SOURCE/README.md" >text
gpt="gpt --data text --layers 2 --width 72 --heads 2 --context 16 --batch 2 --steps 2 --quiet --json --device cuda"
field() { tail -n 1 out | sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'; }
# shellcheck disable=SC2086
train() { env LD_LIBRARY_PATH="$doubles" TESSERA_LOG=error TESSERA_DOUBLE_DELAY_US=0 "$TESSERA" train $gpt "$@"; }
for optimizer in lion adamw8bit; do
  expect 3 train --optimizer $optimizer
  [ "$(wc -l <err)" = 1 ] && grep -q "optimizer $optimizer steps in host memory, and unit .* does not rest there: TESSERA_OFFLOAD=cpu" err ||
    fail "$optimizer on the device: $(cat err)"
  for clip in 0.5; do
    expect 0 train --optimizer $optimizer --clip $clip --offload cpu
    for domain in device host; do
      [ "$(field peak_${domain}_bytes)" = "$(field planned_peak_${domain}_bytes)" ] || fail "$optimizer: planned differs: $(cat out)"
    done
    first=$(field params_digest)
    expect 0 train --optimizer $optimizer --clip $clip --offload cpu --prefetch 0 --wrap none
    [ -n "$first" ] && [ "$(field params_digest)" = "$first" ] || fail "$optimizer, clip $clip: another digest than $first"
  done
done
