#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Products in fp8: under --deterministic one digest for any ranks, units, memory-saving options and threads of the engine, and bytes
# as planned; another digest than in bf16; families with and without biases and gates; the plan knows it; what it
# is not for is refused in one line.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-precision-bf16.so" ] || { echo "skipped: no precision-bf16 in this build"; exit 77; }
many=1
[ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || many=0
export TESSERA_LOG=warning
field() { sed -n '/"event": *"summary"/s/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p' run.json; }
brief=$(brief_text)
llama="$brief --layers 2 --heads 2 --width 32 --context 16 --batch 6 --steps 3 --deterministic --clip 0.5 --quiet"
runs=0 digest=
# run MODEL OPTIONS…: exact books; sets `digest`.
run() {
  expect 0 "$TESSERA" train "$@" --json=run.json
  runs=$((runs + 1))
  [ "$(field peak_device_bytes)/$(field peak_host_bytes)" = "$(field planned_peak_device_bytes)/$(field planned_peak_host_bytes)" ] ||
    fail "$*: peak $(field peak_device_bytes)/$(field peak_host_bytes), planned $(field planned_peak_device_bytes)/$(field planned_peak_host_bytes)"
  [ "$(field step_allocations)" = 0 ] || fail "$*: $(field step_allocations) allocations in steps"
  digest=$(field params_digest)
  [ ${#digest} = 32 ] || fail "digest '$digest' of $*"
}
same() {
  run "$@"
  [ "$digest" = "$first" ] || fail "another digest: $*"
}
fp8="--precision bf16:products=fp8"
run llama $llama $fp8 --accum 4
first=$digest
grep -q ", 7 of a layer's 7 matrices in fp8 products" run.json || fail "no word of fp8: $(head -c 2000 run.json)"
same llama $llama $fp8 --accum 4 --wrap none --activations recompute
same llama $llama $fp8 --accum 4 --units half --activations selective
same llama $llama $fp8 --accum 4 --wrap size:3000 --offload cpu --activations offload
TESSERA_BF16_PRODUCTS=fp8 same llama $llama --precision bf16 --accum 4 --strict
if [ $many = 1 ]; then
  same llama $llama $fp8 -n 2 --accum 2
  same llama $llama $fp8 -n 2 --accum 2 --sync end --strategy grad_op --wrap none
  same llama $llama $fp8 -n 4 --accum 1 --activations recompute
  same llama $llama $fp8 -n 4 --accum 1 --strategy hybrid:2 --wrap module:layers.0,layers.1 --offload cpu:params
fi
run llama $llama --precision bf16 --accum 4
[ "$digest" != "$first" ] || fail "fp8 has the digest of bf16"
run llama $llama $fp8 --accum 4 --batch 3
[ "$digest" != "$first" ] || fail "half the microbatch, and the same digest"

# The rest of a model whose feed-forward half has odd sides; other families.
rest="$brief --layers 2 --heads 2 --width 32 --context 16 --batch 2 --steps 2 --quiet"
for model in gpt gpt2 qwen2 qwen3 gemma2; do
  [ $model = gpt ] || rest="--layers 2 --heads 2 --width 32 --context 16 --batch 2 --steps 2 --quiet"
  run $model $rest $fp8
  first=$digest
  same $model $rest $fp8 --activations recompute --wrap none
  run $model $rest --precision bf16
  [ "$digest" != "$first" ] || fail "$model: fp8 has the digest of bf16"
done

# A plan has the rounded factors, for which bf16 needs no room.
peak() { sed -n 's/.*"planned_peak_device_bytes": *\([0-9]*\).*/\1/p' out | head -1; }
expect 0 "$TESSERA" plan llama ${rest% --quiet} $fp8 -n 2 --json
planned=$(peak)
expect 0 "$TESSERA" plan llama ${rest% --quiet} --precision bf16 -n 2 --json
[ "$planned" -gt "$(peak)" ] || fail "the plan knows nothing of fp8: $(cat out)"

refused() {
  local code=$1 line=$2
  shift 2
  expect "$code" "$TESSERA" "$@"
  grep -qF "$line" err || fail "expected '$line': $(cat err)"
  [ "$(wc -l <err)" = 1 ] || fail "more than one line: $(cat err)"
}
refused 3 "TESSERA_PRECISION asks for products in fp8, which are for decoders in bf16; model mnist computes in bf16" train mnist $fp8
refused 3 'precision bf16: products is "fp16", expected one of bf16|fp8' train llama --precision bf16:products=fp16
refused 3 "llama: products in fp8 are not for adapters (--lora): TESSERA_PRECISION=bf16" train llama $rest $fp8 --lora rank=2,alpha=4,targets=all-linear
refused 3 "no product can be in fp8: 30 rows (batch times context), width 32, feed-forward" train llama $rest $fp8 --context 15
echo "$runs runs in fp8 and bf16: one digest where there may be one, bytes as planned"
