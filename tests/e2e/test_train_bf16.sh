#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# mnist and gpt in bf16 on two ranks: bytes as planned, the same digest from run to run and in every strategy, another
# one than in fp32; what the machine has no bf16 products for is said; what the models do not compute in is refused.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-precision-bf16.so" ] || { echo "skipped: no precision-bf16 in this build"; exit 77; }
ranks=2
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || ranks=1
small_mnist="mnist $(brief_digits) --batch 8 --steps 3"
small_gpt="gpt $(brief_text) --batch 2 --layers 2 --heads 2 --width 32 --context 16 --steps 5"

for model in "$small_mnist" "$small_gpt"; do
  rm -f digests
  for strategy in full full grad_op none; do
    expect 0 "$TESSERA" train $model -n $ranks --precision bf16 --strategy $strategy --json=run.json
    [ "$(summary precision run.json)" = bf16 ] || fail "the summary's precision is $(summary precision run.json)"
    [ "$(summary peak_device_bytes run.json)" = "$(summary planned_peak_device_bytes run.json)" ] ||
      fail "$model, $strategy: peak $(summary peak_device_bytes run.json), planned $(summary planned_peak_device_bytes run.json)"
    [ "$(summary step_allocations run.json)" = 0 ] || fail "$model: $(summary step_allocations run.json) allocations in steps"
    summary params_digest run.json >>digests
  done
  [ "$(sort -u digests | wc -l)" = 1 ] || fail "$model: digests differ: $(cat digests)"
  expect 0 "$TESSERA" train $model -n $ranks --json=run.json
  [ "$(summary params_digest run.json)" != "$(head -1 digests)" ] || fail "$model: bf16 has the digest of fp32"
done
expect 0 "$TESSERA" train linear -n $ranks --precision bf16
grep -q "both equal the closed form" out || fail "linear in bf16: $(cat out)"

if grep -q "oneDNN" out && grep -qw avx512_bf16 /proc/cpuinfo; then
  grep -q ", bf16 products" out || fail "no word of bf16 products: $(cat out)"
  expect 0 "$TESSERA" train linear -n 1 --precision bf16 --isa avx512_core
fi
grep -Eq "oneDNN.*bf16 products|bf16 as fp32 rounded at block boundaries" out || fail "no word on bf16: $(cat out)"

expect 3 "$TESSERA" train linear -n 1 --precision bf16:grad=bf16
grep -q "parameter linear.weight: TESSERA_PRECISION asks for local gradients in dtype 6; model linear adds them up in f32" \
  err || fail "local gradients in bf16: $(cat err)"
[ "$(wc -l <err)" = 1 ] || fail "more than one line: $(cat err)"
echo "bf16 on $ranks ranks: one digest per model, bytes as planned"
