#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# tessera bench step: five models, each with both sides of the comparison and the parts of the engine's; figures are no test's.
. "$SOURCE/tests/e2e/lib.sh"
"$TESSERA" train --help 2>/dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1
list() { sed -n 's/.*"'"$1"'":\[\([^]]*\)\].*/\1/p' out; }
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' out; }
for options in "mnist --batch 4" "convbn --image-size 14 --hidden 8 --batch 1" "gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2" \
  "gpt2 --layers 2 --heads 2 --width 32 --context 16 --batch 2" "llama --layers 2 --heads 2 --width 32 --context 16 --batch 2 --precision bf16"; do
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" bench step $options --rounds 3 --json
  [ "$(field what)" = step ] && [ "$(field rounds)" = 3 ] && [[ "$(field model)" == "${options%% *} "* ]] || fail "$options: $(cat out)"
  # Medians are those of the rounds, ratios those of the rounds' ratios; blocks and what is outside of them make up the mean.
  awk -v d="$(field direct_seconds)" -v e="$(field seconds)" -v r="$(field ratio)" -v c="$(field cpu_ratio)" \
    -v m="$(field mean_seconds)" -v f="$(field forward)" -v b="$(field backward)" -v o="$(field outside_blocks_seconds)" \
    -v ds="$(list direct_rounds)" -v es="$(list engine_rounds)" -v dc="$(list direct_cpu_rounds)" -v ec="$(list engine_cpu_rounds)" '
      function middle(x, y, z) { return x > y ? (y > z ? y : x > z ? z : x) : x > z ? x : y > z ? z : y }
      function near(x, y) { return x - y < 1e-9 && y - x < 1e-9 }
      function ratio(of, by, x, y) { split(of, x, ","); split(by, y, ","); return middle(x[1] / y[1], x[2] / y[2], x[3] / y[3]) }
      BEGIN {
        n = split(ds, x, ","); n += split(es, y, ",")
        exit !(n == 6 && near(d, middle(x[1], x[2], x[3])) && near(e, middle(y[1], y[2], y[3])) && near(r, ratio(es, ds)) &&
          near(c, ratio(ec, dc)) && near(m, (y[1] + y[2] + y[3]) / 3) && f > 0 && b > 0 && o > 0 && near(m, f + b + o)) }' ||
    fail "$options: $(cat out)"
done
expect 0 "$TESSERA" bench step linear --rounds 1
has_line out 'linear batch=[0-9]+ threads=1 f32 +direct +[0-9.]+ us, engine +[0-9.]+ us, ratio [0-9.]+, of processor time [0-9.]+'
has_line out ' +between them +-?[0-9.]+ us, +-?[0-9.]+ %'
expect 2 "$TESSERA" bench step mnistt
expect 2 "$TESSERA" bench step cast
expect 3 "$TESSERA" bench step linear -n 2
grep -q 'bench step runs on one rank' err && [ "$(wc -l <err)" = 1 ] || fail "-n 2: $(cat err)"
echo "both sides and the parts are there"
