#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# tessera bench step: five models, each with both sides of the comparison and the parts of the engine's; figures are no test's.
. "$SOURCE/tests/e2e/lib.sh"
"$TESSERA" train --help 2>/dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' out; }
for options in "mnist --batch 4" "convbn --image-size 14 --hidden 8 --batch 1" "gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2" \
  "gpt2 --layers 2 --heads 2 --width 32 --context 16 --batch 2" "llama --layers 2 --heads 2 --width 32 --context 16 --batch 2 --precision bf16"; do
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" bench step $options --rounds 3 --json
  [ "$(field what)" = step ] && [ "$(field rounds)" = 3 ] && [[ "$(field model)" == "${options%% *} "* ]] || fail "$options: $(cat out)"
  # The ratio is that of the medians; blocks and what is outside of them make up the mean.
  awk -v d="$(field direct_seconds)" -v e="$(field seconds)" -v r="$(field ratio)" -v m="$(field mean_seconds)" \
    -v f="$(field forward)" -v b="$(field backward)" -v o="$(field outside_blocks_seconds)" 'BEGIN {
      near = 1e-9; x = r - e / d; y = m - f - b - o
      exit !(d > 0 && e > 0 && f > 0 && b > 0 && o > 0 && x < near && x > -near && y < near && y > -near) }' || fail "$options: $(cat out)"
done
expect 0 "$TESSERA" bench step linear --rounds 1
has_line out 'linear batch=[0-9]+ threads=1 f32 +direct +[0-9.]+ us, engine +[0-9.]+ us, ratio [0-9.]+'
has_line out ' +between them +-?[0-9.]+ us, +-?[0-9.]+ %'
expect 2 "$TESSERA" bench step mnistt
expect 2 "$TESSERA" bench step cast
expect 3 "$TESSERA" bench step linear -n 2
grep -q 'bench step runs on one rank' err && [ "$(wc -l <err)" = 1 ] || fail "-n 2: $(cat err)"
echo "both sides and the parts are there"
