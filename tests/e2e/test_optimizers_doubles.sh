#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Optimizer plugins beside a GPU, on the doubles of CUDA. lion steps in its memory. The steps of adamw8bit do not reach that, which
# is one line; with all on the host they run on the host's threads, behind the gradients that come down. All have the same bits.
. "$SOURCE/tests/e2e/lib.sh"
doubles=$BUILD/tests/doubles
[ -e "$doubles/libcuda.so.1" ] && [ -e "$BUILD/plugins/libtessera-device-cuda.so" ] &&
  [ -e "$BUILD/plugins/libtessera-offload-cpu.so" ] || { echo "skipped: the doubles of CUDA are not built here"; exit 77; }
head -c 3000 "$SOURCE/README.md" >text # the evaluation at the end is short
gpt="gpt --data text --layers 1 --width 72 --heads 2 --context 16 --batch 2 --steps 2 --quiet --json --device cuda"
field() { tail -n 1 out | sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'; }
# shellcheck disable=SC2086
train() { env LD_LIBRARY_PATH="$doubles" TESSERA_LOG=error TESSERA_DOUBLE_DELAY_US=0 "$TESSERA" train $gpt "$@"; }
# same OPTIMIZER OPTION…: the digest of the run before it, unless $first is empty.
same() {
  expect 0 train --optimizer "$@"
  for domain in device host; do
    [ "$(field peak_${domain}_bytes)" = "$(field planned_peak_${domain}_bytes)" ] || fail "$*: planned differs: $(tail -n 1 out)"
  done
  first=${first:-$(field params_digest)}
  [ -n "$first" ] && [ "$(field params_digest)" = "$first" ] || fail "$*: another digest than $first"
}
for options in "--clip 0.5" "--clip 0 --precision bf16"; do
  first=
  for rest in cpu cpu:optimizer none; do
    # shellcheck disable=SC2086
    same lion $options --offload $rest
  done
done
expect 3 train --optimizer adamw8bit
[ "$(wc -l <err)" = 1 ] && grep -q "optimizer adamw8bit steps in host memory, and unit .* does not rest there: TESSERA_OFFLOAD=cpu" err ||
  fail "adamw8bit on the device: $(cat err)"
first=
same adamw8bit --clip 0.5 --offload cpu
same adamw8bit --clip 0.5 --offload cpu --prefetch 0 --wrap none

# Pieces in the device's memory are whole rows, and the state of each row goes with it. Matrices are stepped on the host alone.
rows=$BUILD/tests/conformance/rows
if [ -e "$rows/libtessera-optimizer-rows.so" ]; then
  export TESSERA_PLUGIN_PATH=${TESSERA_PLUGIN_PATH:-$BUILD/plugins}:$rows
  for options in "--clip 0.5" "--clip 0"; do
    first=
    for rest in cpu none; do
      # shellcheck disable=SC2086
      TESSERA_ROWS_MATRICES=0 same rows $options --offload $rest
    done
  done
  first=
  TESSERA_ROWS_MATRICES=0 same rows --accum 2
  TESSERA_ROWS_MATRICES=0 same rows -n 2
  expect 3 train --optimizer rows
  [ "$(wc -l <err)" = 1 ] && grep -q "optimizer rows steps whole matrices in host memory" err || fail "matrices on the device: $(cat err)"
fi

# On the device too a step that leaves what is not finite is found.
expect 1 train --optimizer lion --clip 0 --steps 4 --lr 900000 --weight-decay 1e6
grep -q 'step [0-9]* leaves values that are not finite: rank 0, unit .*TESSERA_ON_NAN' err || fail "NaN: $(cat err)"
