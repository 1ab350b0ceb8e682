#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 480
# The reference models on device=cuda, on the doubles of the driver and of cuBLAS: planned equals measured, nothing taken in
# a step, losses near the CPU's, the same bits again and with offload; without a driver one line and exit code 3.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles plugins/libtessera-device-cuda.so tests/doubles/libcublas.so.13
near() { awk -v a="$1" -v b="$2" -v within="$3" 'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= within * (b < 0 ? -b : b)) }'; }

# same MODEL WITHIN OPTIONS…: on both devices.
same() {
  local model=$1 within=$2
  shift 2
  expect 0 on_double "$TESSERA" train $model "$@" --device cuda --json=cuda.json
  expect 0 "$TESSERA" train $model "$@" --json=cpu.json
  [ "$(summary peak_device_bytes cuda.json)" = "$(summary planned_peak_device_bytes cuda.json)" ] ||
    fail "$model $*: peak $(summary peak_device_bytes cuda.json), planned $(summary planned_peak_device_bytes cuda.json)"
  [ "$(summary step_allocations cuda.json)" = 0 ] || fail "$model $*: $(summary step_allocations cuda.json) allocations in steps"
  near "$(summary loss cuda.json)" "$(summary loss cpu.json)" "$within" ||
    fail "$model $*: loss $(summary loss cuda.json), on the CPU $(summary loss cpu.json)"
}
small_gpt="gpt $(brief_text) --batch 2 --layers 2 --heads 2 --width 16 --context 8 --steps 4"
small_mnist="mnist $(brief_digits) --batch 16 --steps 2"
small_convbn="convbn --image-size 12 --hidden 8 --steps 2"

same "$small_mnist" 1e-5
mnist_loss=$(summary loss cuda.json) mnist_peak=$(summary peak_device_bytes cuda.json)
same "$small_gpt --sample 20" 1e-5
digest=$(summary params_digest cuda.json)
same "$small_gpt" 1e-5 --offload cpu
[ "$(summary params_digest cuda.json)" = "$digest" ] || fail "offload has digest $(summary params_digest cuda.json), without $digest"
same "$small_convbn" 1e-2
same "$small_gpt" 1e-2 --precision bf16 --offload cpu --activations recompute
LC_ALL=C awk 'BEGIN { for (i = 0; i < 4000; i++) printf "%c%c", i * 37 % 61 + 1, i % 2 }' >tokens.bin # below 320
# gpt2 has any vocabulary, and more than 1,024 rows here: the head works by two chunks, the second a short one.
cat >config.json <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 160,
 "vocab_size": 1003, "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
END
gpt2="gpt2 --data tokens.bin --config config.json --batch 9 --context 128"
same "$gpt2 --steps 6" 1e-5 --sample 5
grep -q '"event":"sample".*"passes":5,' cuda.json || fail "5 tokens: $(grep '"event":"sample"' cuda.json)"
digest=$(summary params_digest cuda.json)
TESSERA_GRAPHS=0 expect 0 on_double "$TESSERA" train $gpt2 --steps 6 --device cuda --json=cuda.json
[ "$(summary params_digest cuda.json)" = "$digest" ] || fail "gpt2 called: $(summary params_digest cuda.json), recorded $digest"
TESSERA_DOUBLE_LOG=$PWD/calls same "$gpt2 --steps 2" 1e-2 --precision bf16 --accum 2
grep -q "^0 cublasGemm " calls || fail "no products: $(cat calls)"
! grep "^0 odd-sides" calls || fail "products read bf16 along the vocabulary of 1,003 element by element"
expect 0 on_double "$TESSERA" train $gpt2 --steps 2 --device cuda --export gpt2
same "gpt2 --model gpt2 --data tokens.bin --batch 9 --context 128 --steps 1" 1e-5
if ! "$TESSERA" --version | grep 'left out' | grep -q PCRE2; then # completions alone: by one chunk of the head, and by two
  samples="--data samples.jsonl --tokenizer $SOURCE/tests/reference/data/tokenizers/gpt2 --accum 2 --steps 3"
  for i in $(seq 80); do echo "{\"prompt\": \"shard $i\", \"completion\": \" of rank $((i % 7))$(printf ' x%.0s' $(seq $((i % 5))))\"}"; done >samples.jsonl
  same "gpt2 --config config.json --batch 2 --context 64 $samples" 1e-5
  same "gpt2 --config config.json --batch 9 --context 128 $samples" 1e-5
  same "gpt2 --config config.json --batch 2 --context 64 $samples" 1e-5 --pack --sample 5
  same "gpt2 --config config.json --batch 2 --context 64 $samples" 1e-2 --pack --precision bf16
fi
TESSERA_STRICT=1 expect 0 on_double "$TESSERA" train $gpt2 --steps 1 --device cuda # positions behind the context have a gradient
# Llama: shared keys and values, stretched positions, a head of its own; other bits of neither offload nor recomputation.
cat >llama.json <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 320, "rms_norm_eps": 1e-6,
 "hidden_act": "silu", "tie_word_embeddings": false, "rope_scaling": {"rope_type": "llama3", "factor": 4.0,
 "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8}}
END
llama="llama --data tokens.bin --config llama.json --batch 2 --context 16"
same "$llama --steps 6" 1e-5 --sample 20 # in a full context 8 of 16 tokens begin anew
grep -q '"event":"sample".*"passes":28,' cuda.json || fail "20 tokens: $(grep '"event":"sample"' cuda.json)"
digest=$(summary params_digest cuda.json)
expect 0 on_double "$TESSERA" train $llama --steps 6 --offload cpu --activations recompute --device cuda --json=cuda.json
[ "$(summary params_digest cuda.json)" = "$digest" ] || fail "llama offloaded: $(summary params_digest cuda.json), before $digest"
TESSERA_GRAPHS=0 expect 0 on_double "$TESSERA" train $llama --steps 6 --device cuda --json=cuda.json
[ "$(summary params_digest cuda.json)" = "$digest" ] || fail "llama called: $(summary params_digest cuda.json), recorded $digest"
TESSERA_STRICT=1 expect 0 on_double "$TESSERA" train $llama --steps 1 --device cuda # and so have unused rows of the embedding
same "$llama --steps 2" 1e-2 --precision bf16 --accum 2 --sync end --freeze 'embed.*'
# fp16, with a scale that overflows at first and with one that does not; offload and recomputation change no bit.
same "$llama --steps 2" 2e-3 --precision fp16:init=1024 --accum 2 --sync end --freeze 'embed.*'
same "$small_gpt" 2e-3 --precision fp16:init=1024
same "$llama --steps 2" 2e-3 --precision fp16:init=1024 --lora rank=3,alpha=6,targets=all-linear,base=nf4
half="$llama --steps 8 --precision fp16:init=16777216"
expect 0 on_double "$TESSERA" train $half --device cuda --json=cuda.json
digest=$(summary params_digest cuda.json)
[ "$(summary overflows cuda.json)" -gt 0 ] || fail "no step of fp16 was left out: $(tail -n 1 cuda.json)"
expect 0 on_double "$TESSERA" train $half --offload cpu --activations recompute --device cuda --json=cuda.json
[ "$(summary params_digest cuda.json)" = "$digest" ] || fail "fp16 offloaded: $(summary params_digest cuda.json), before $digest"
# Adapters beside a base at rest in its files' dtype or in blocks; unit/models/test_cuda_models has every product.
adapters=rank=3,alpha=6,targets=all-linear
same "$small_gpt" 1e-5 --lora $adapters,base=int8
same "$llama --steps 6" 1e-5 --sample 20 --lora $adapters,base=nf4
digest=$(summary params_digest cuda.json)
expect 0 on_double "$TESSERA" train $llama --steps 6 --lora $adapters,base=nf4 --offload cpu --activations recompute --device cuda --json=cuda.json
[ "$(summary params_digest cuda.json)" = "$digest" ] || fail "adapters offloaded: $(summary params_digest cuda.json), before $digest"
same "$llama --steps 2" 1e-5 --lora $adapters,base=f16 --wrap none
same "$llama --steps 2" 1e-2 --lora $adapters,base=bf16 --precision bf16 --accum 2
expect 0 on_double "$TESSERA" train $llama --steps 2 --device cuda --export llama
same "llama --model llama --data tokens.bin --batch 2 --context 16 --steps 1" 1e-5
# Checkpoints of adapters leave the files of their base out, and so does the room of a snapshot.
tuned="llama --data tokens.bin --batch 2 --context 16 --steps 3 --lora $adapters"
snapshot() { "$TESSERA" plan $tuned --device cuda --save tuned --quiet --json "$@" | grep -o '"snapshot": *[0-9]*' | grep -o '[0-9]*$' | sort -n | tail -n 1; }
apart=$(snapshot --model llama) within=$(snapshot --config llama/config.json)
[ "$apart" -gt 0 ] && [ $((within - apart)) -gt "$(stat -c %s llama/model.safetensors | awk '{ print int($1 / 2) }')" ] ||
  fail "a snapshot of $apart bytes, of $within with the base"
expect 0 on_double "$TESSERA" train $tuned --model llama --device cuda --save tuned --save-every 1 --json=cuda.json
digest=$(summary params_digest cuda.json)
for domain in device host; do
  [ "$(summary peak_${domain}_bytes cuda.json)" = "$(summary planned_peak_${domain}_bytes cuda.json)" ] || fail "adapters saved: $domain bytes"
done
expect 0 on_double "$TESSERA" train $tuned --model llama --device cuda --resume tuned/step-000002 --json=cuda.json
[ "$(summary params_digest cuda.json)" = "$digest" ] || fail "adapters gone on with: $(summary params_digest cuda.json), not $digest"
expect 0 on_double "$TESSERA" train linear --device cuda
grep -q "both equal the closed form" out || fail "linear: $(cat out)"

# What was saved is read on the other device.
expect 0 on_double "$TESSERA" train $small_convbn --device cuda --export saved
expect 0 "$TESSERA" train $small_convbn --resume saved --json=cpu.json
expect 0 on_double "$TESSERA" train $small_convbn --device cuda --resume saved --json=cuda.json
near "$(summary loss cuda.json)" "$(summary loss cpu.json)" 1e-2 || fail "resumed: $(summary loss cuda.json), $(summary loss cpu.json)"

# Every kind of call failing: one line that says which, nothing left behind, but for what a spoilt context still holds when
# the process ends.
for call in cuLaunchKernel:9 cublasCreate:1 cublasSetWorkspace:3 cublasGemm:20 cuMemcpyDtoDAsync:1 cuMemHostAlloc:2 \
  cuModuleLoadData:2 cuModuleGetFunction:40 work:100; do
  code=3
  [ $call != cuMemHostAlloc:2 ] || code=4
  case $call in cuLaunchKernel* | work*) leaks=$code ;; *) leaks=99 ;; esac
  TESSERA_DOUBLE_FAIL=$call expect $code on_double "$TESSERA" train gpt --sample 0 --data brief.txt --batch 2 --layers 1 --heads 2 --width 16 \
    --context 8 --steps 2 --device cuda
  [ $leaks = 99 ] || sed -i '/^doubles: left behind/d' err # what is freed in a spoilt context may come too late
  [ "$(wc -l <err)" = 1 ] && grep -Eq "^tessera: error: (operators cuda|cuBLAS|device cuda): " err || fail "$call: $(cat err)"
done
leaks=99
# Without cuDNN convolutions are products, in the same memory.
TESSERA_DOUBLE_FAIL=cudnnCreate:1 expect 0 on_double "$TESSERA" train $small_mnist --device cuda --json=cuda.json
near "$(summary loss cuda.json)" "$mnist_loss" 1e-5 || fail "without cuDNN: $(summary loss cuda.json)"
[ "$(summary peak_device_bytes cuda.json)" = "$mnist_peak" ] || fail "cuDNN changes the peak"

if ! ldconfig -p | grep -q 'libcuda\.so\.1'; then
  expect 3 "$TESSERA" train mnist --device cuda
  [ "$(wc -l <err)" = 1 ] && grep -q "no NVIDIA driver here: libcuda.so.1 cannot be loaded" err || fail "no driver: $(cat err)"
fi
if [ -z "${SANITIZE:-}" ]; then # no cuBLAS, or the real one, which finds no GPU
  mkdir driver-only && cp "$doubles/libcuda.so.1" "$doubles/libdoubles.so" driver-only
  LD_LIBRARY_PATH="$PWD/driver-only" expect 3 "$TESSERA" train linear --device cuda
  [ "$(wc -l <err)" = 1 ] && grep -q -E "operators cuda: cuBLAS (13 or 12 is needed: libcublas.so.13: cannot|does not start)" err ||
    fail "no cuBLAS: $(cat err)"
fi
echo "the models on the doubles of CUDA: planned = measured, losses near the CPU's"
