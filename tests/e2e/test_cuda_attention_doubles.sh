#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Attention on the doubles, by our kernels in five or seven products, and by cuDNN (TESSERA_ATTENTION): planned equals measured, the
# same bits on 1, 2 and 4 ranks and again, near each other; whatever is refused is refused in one line, before a step where that can
# be known.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles plugins/libtessera-device-cuda.so tests/doubles/libcudnn.so.9
cat >llama.json <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 320, "rms_norm_eps": 1e-6,
 "hidden_act": "silu", "tie_word_embeddings": false}
END
LC_ALL=C awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%c%c", i * 37 % 61 + 1, i % 2 }' >tokens.bin # below 320
llama="llama --config llama.json --data tokens.bin --context 16 --steps 3 --precision bf16 --device cuda"

# trains JSON OPTIONS…
trains() {
  local json=$1
  shift
  expect 0 on_double "$TESSERA" train $llama "$@" --json="$json"
  [ "$(summary peak_device_bytes "$json")" = "$(summary planned_peak_device_bytes "$json")" ] ||
    fail "$*: peak $(summary peak_device_bytes "$json"), planned $(summary planned_peak_device_bytes "$json")"
  [ "$(summary step_allocations "$json")" = 0 ] || fail "$*: $(summary step_allocations "$json") allocations in steps"
}
trains own.json --batch 4 --deterministic

# Heads of 64, which have five products, and more keys than a block has, so that blocks add to the same gradients.
sed 's/"hidden_size": 32/"hidden_size": 128/; s/attention_heads": 4/attention_heads": 2/; s/value_heads": 2/value_heads": 1/; s/embeddings": 64/embeddings": 160/' llama.json >wide.json
small=$llama llama="${llama/llama.json/wide.json} --context 160"
for kind in own five seven; do
  for ranks in 1 2 4; do
    trains $kind.$ranks.json -n $ranks --batch 1 --accum $((4 / ranks)) --deterministic --attention $kind
    [ "$(summary params_digest $kind.$ranks.json)" = "$(summary params_digest $kind.1.json)" ] || fail "$kind: other bits on $ranks ranks"
  done
done
[ "$(summary params_digest own.1.json)" = "$(summary params_digest five.1.json)" ] || fail "heads of 64 have other than five products"
[ "$(summary params_digest seven.1.json)" != "$(summary params_digest five.1.json)" ] || fail "seven products are computed as five"

# Heads of 128 likewise, whose blocks have eight warps and share more than 48 KiB; seven products on a GPU that has a byte too little.
sed 's/"hidden_size": 128/"hidden_size": 256/; s/hidden_layers": 2/hidden_layers": 1/' wide.json >wider.json
llama="${llama/wide.json/wider.json} --deterministic"
for ranks in 1 2 4; do
  TESSERA_DOUBLE_LOG=$PWD/kernels trains large.$ranks.json -n $ranks --batch 1 --accum $((4 / ranks))
  grep -q "tess_ops_attend_five_128" kernels || fail "five products by another kernel: $(cat kernels)"
  [ "$(summary params_digest large.$ranks.json)" = "$(summary params_digest large.1.json)" ] || fail "heads of 128: other bits on $ranks ranks"
done
trains seven.json --accum 4 --batch 1 --attention seven
[ "$(summary params_digest seven.json)" != "$(summary params_digest large.1.json)" ] || fail "heads of 128 have seven products"
TESSERA_DOUBLE_SHARED=80388 trains enough.json --accum 4 --batch 1
[ "$(summary params_digest enough.json)" = "$(summary params_digest large.1.json)" ] || fail "80388 bytes are too few"
for kind in own five; do
  TESSERA_DOUBLE_SHARED=80387 trains little.json --accum 4 --batch 1 --attention $kind
  [ "$(summary params_digest little.json)" = "$(summary params_digest seven.json)" ] || fail "$kind: a GPU with little shared memory has other than seven"
  grep -q '"operators": *"[^"]*, 7 with heads above 96"' little.json || fail "$kind: what bits depend on: $(grep operators little.json)"
done
llama=$small

export TESSERA_ATTENTION=cudnn
for ranks in 1 2 4; do
  TESSERA_DOUBLE_LOG=$PWD/calls trains $ranks.json -n $ranks --batch 1 --accum $((4 / ranks)) --deterministic
  grep -q "cudnnBackendExecute" calls || fail "cuDNN computed nothing: $(cat calls)"
  [ "$(summary params_digest $ranks.json)" = "$(summary params_digest 1.json)" ] || fail "other bits on $ranks ranks"
done
trains called.json --batch 4 --sample 12 # whose sequences grow
digest=$(summary params_digest called.json)
TESSERA_GRAPHS=0 trains called.json --batch 4 --activations recompute --offload cpu
[ "$(summary params_digest called.json)" = "$digest" ] || fail "other bits by calls, with recomputation"
awk -v a="$(summary loss own.json)" -v b="$(summary loss called.json)" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) < 1e-2 * a) }' ||
  fail "losses: $(summary loss own.json) by our own kernels, $(summary loss called.json) by cuDNN"
expect 0 on_double "$TESSERA" train $llama --batch 4 --precision fp16:init=1024

# refused WHY OPTIONS…: in one line, with the way out.
refused() {
  local why=$1
  shift
  expect 3 on_double "$TESSERA" train $llama --batch 4 "$@"
  [ "$(wc -l <err)" = 1 ] && grep -q "attention=cudnn: .*$why.*TESSERA_ATTENTION=own" err || fail "$*: $(cat err)"
}
refused "the precision is fp32" --precision fp32
refused "the device is no GPU" --device cpu
TESSERA_DOUBLE_FAIL=cudnnCreate:1 refused "libcudnn.so.9 is missing"
TESSERA_DOUBLE_CUDNN_VERSION=91002 refused "this is cuDNN 9.10"
TESSERA_DOUBLE_FAIL=engines:2 refused "no engine for backward of heads of 8 at length 16"
echo "attention on the doubles: planned = measured, the same bits on 1, 2 and 4 ranks"
