#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# Of each family a folder: planned bytes are the bytes obtained; three ranks, recomputation and selective activations have the
# bits of one rank; what is exported is a folder with the same tensors; and the wrong model's name is answered with the right one.
# All that holds for adapters beside blocks of codes, too, with biases and with normalisations behind halves.
. "$SOURCE/tests/e2e/lib.sh"
data=$SOURCE/tests/reference/data
export TESSERA_LOG=warning TESSERA_DETERMINISTIC=1
# Bare 16-bit numbers below 64.
printf "$(awk 'BEGIN { for (i = 0; i < 3000; i++) printf "\\%03o\\000", (i * i * 7 + i * 3) % 61 }')" >tokens.bin
field() { sed -n '/"event":"summary"/s/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' out; }
run() {
  expect 0 "$TESSERA" train "$model" --model "$data/$folder" --context 16 --steps 2 --batch 2 --data tokens.bin --quiet --json "$@"
  [ "$(field peak_device_bytes)" = "$(field planned_peak_device_bytes)" ] || fail "$folder, $*: $(cat out)"
}
same() {
  run "$@"
  [ "$(field params_digest)" = "$one" ] || fail "$folder, $*: another digest than one rank's"
}
refuse() {
  local line=$1 code=$2
  shift 2
  expect "$code" "$@"
  grep -qF "$line" err || fail "expected '$line': $(cat err)"
}
with_adapters() {
  adapters=rank=3,alpha=6,targets=all-linear
  run --accum 3 --lora "$adapters,base=nf4"
  one=$(field params_digest)
  same --accum 3 --lora "$adapters,base=nf4" --activations recompute --wrap size:300
  same --accum 3 --lora "$adapters,base=nf4" --activations selective
  run --precision bf16 --lora "$adapters,base=nf4" --activations recompute --sample 20 --temperature 0
  [ ! -e "$BUILD/plugins/libtessera-comm-shm.so" ] || same -n 3 --lora "$adapters,base=nf4"
  run --lora "$adapters" --lr 0.01 --export "$of-adapters"
  run --lora "$of-adapters" --steps 0 --export "$of-merged" --merge
  adapted=$(field validation_loss)
  expect 0 "$TESSERA" train "$model" --model "$of-merged" --context 16 --batch 2 --steps 0 --data tokens.bin --quiet --json
  awk -v a="$(field validation_loss)" -v b="$adapted" 'BEGIN { exit !(a > 0 && a - b < 1e-5 && b - a < 1e-5) }' ||
    fail "$folder: the merged model has not the adapters' loss $adapted: $(cat out)"
}
for of in qwen2 qwen3 mistral gemma2 gemma3 yarn:llama; do
  model=${of#*:} folder=hf-${of%:*}-2
  run --accum 3
  one=$(field params_digest)
  [ -n "$one" ] || fail "no digest: $(cat out)"
  same --accum 3 --activations recompute
  same --accum 3 --activations selective
  [ ! -e "$BUILD/plugins/libtessera-comm-shm.so" ] || same -n 3
  run --precision bf16 --sample 20 --temperature 0 --export "$of"
  expect 0 "$TESSERA" train "$model" --model "$of" --context 16 --steps 0 --data tokens.bin --quiet --json
  expect 0 "$TESSERA" ckpt import "$of" "$of-step"
  expect 0 "$TESSERA" ckpt export "$of-step" "$of-back"
  cmp "$of/model.safetensors" "$of-back/model.safetensors" || fail "$of: imported and exported, the tensors differ"
  case $of in qwen2 | gemma*) with_adapters ;; esac
  expect 0 "$TESSERA" plan "$model" --config "$data/$folder/config.json" -n 3
  expect 0 "$TESSERA" train "$model" --layers 2 --heads 2 --width 32 --context 16 --batch 1 --steps 1 --quiet
  refuse "model_type \"gpt2\", but $model is to be trained: tessera train gpt2" 6 "$TESSERA" train "$model" --model "$data/hf-gpt2"
done
refuse 'model_type "gemma3_text", but llama is to be trained: tessera train gemma3' 6 "$TESSERA" train llama --model "$data/hf-gemma3-1"
refuse 'gemma2: its units are whole layers: leave out --units' 3 "$TESSERA" train gemma2 --units half --steps 1
