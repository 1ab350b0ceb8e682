#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# Adapters beside a frozen base that rests in fp32, bf16 or blocks of codes: planned bytes are the bytes obtained, and one
# digest whatever the ranks, strategy, offload, activations and units. A checkpoint, which names its base and does not hold it, the peft folder and the merged model go
# on from the same values. An 8B model fits one card of 24 GiB.
. "$SOURCE/tests/e2e/lib.sh"
data=$SOURCE/tests/reference/data
export TESSERA_LOG=warning TESSERA_DETERMINISTIC=1
printf "$(awk 'BEGIN { for (i = 0; i < 3000; i++) printf "\\%03o\\000", (i * i + 7 * i) % 61 }')" >nano.bin

member() { sed -n "/\"event\":\"summary\"/s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" out; }
# run MODEL FOLDER LORA OPTION…: trains, checks planned against measured bytes and leaves the digest in $found.
run() {
  local model=$1 folder=$2 lora=$3
  shift 3
  expect 0 "$TESSERA" train "$model" --model "$folder" --lora "$lora" --context 16 --batch 2 --steps 3 --data nano.bin \
    --token-bits 16 --quiet --json "$@"
  found=$(member params_digest) loss=$(member loss) tested=$(member validation_loss)
  [ -n "$found" ] || fail "no params_digest: $(cat out)"
  for domain in device host; do
    [ "$(member peak_${domain}_bytes)" = "$(member planned_peak_${domain}_bytes)" ] ||
      fail "$domain: peak $(member peak_${domain}_bytes), planned $(member planned_peak_${domain}_bytes): $lora $*"
  done
}
same() { [ "$found" = "$1" ] || fail "digest $found, expected $1: $2"; }
near() { awk -v a="$1" -v b="$2" 'BEGIN { exit !(a + 0 > 0 && a - b < 1e-5 && b - a < 1e-5) }' || fail "$3: loss $1, expected $2"; }
has_shm() { [ -e "$BUILD/plugins/libtessera-comm-shm.so" ]; }

some=rank=4,alpha=8,targets=q_proj,v_proj
all=rank=3,alpha=6,targets=all-linear
run llama "$data/hf-llama" $some --accum 4
one=$found
has_shm || { echo "skipped: comm-shm is not built"; exit 77; }
run llama "$data/hf-llama" $some -n 2 --accum 2 --strategy grad_op
same "$one" "two ranks, grad_op"
run llama "$data/hf-llama" $some -n 4 --offload cpu --activations recompute
same "$one" "four ranks, offload, recompute"
TESSERA_MIRROR=1 run llama "$data/hf-llama" $some -n 2 --accum 2 --units half --clip 0
clipless=$found
run llama "$data/hf-llama" $some --accum 4 --clip 0
same "$clipless" "images, units half"
for base in bf16 int8 nf4; do
  run llama "$data/hf-llama-tied" $all,base=$base --accum 4
  one=$found
  run llama "$data/hf-llama-tied" $all,base=$base -n 4 --strategy hybrid:2 --activations selective
  same "$one" "base $base, hybrid:2, selective"
  run llama "$data/hf-llama-tied" $all,base=$base -n 2 --accum 2 --strategy none --offload cpu --wrap none
  same "$one" "base $base, none, offload, one unit"
  run llama "$data/hf-llama-tied" $all,base=$base -n 2 --precision bf16
done
# Its file's dtype is what it rests in.
run llama "$data/hf-llama-tied" $all --accum 4
own=$found
run llama "$data/hf-llama-tied" $all,base=bf16 --accum 4
same "$own" "bf16 files"

# In fp16: one digest, and losses beside those of fp32, which a unit test holds to peft's. Too large a scale backs off, and a
# checkpoint keeps it.
run llama "$data/hf-llama" $some --accum 2 --steps 20
wide=$loss
run llama "$data/hf-llama" $some --accum 2 --steps 20 --precision fp16:init=1024
narrow=$found
[ "$(member overflows)" = 0 ] || fail "steps left out: $(tail -n 1 out)"
awk -v a="$loss" -v b="$wide" 'BEGIN { exit !(a != b && a - b < 1e-3 && b - a < 1e-3) }' || fail "the loss is $loss, in fp32 $wide"
for options in "--activations recompute" "--strategy none --offload cpu" "--strategy grad_op --wrap none"; do
  run llama "$data/hf-llama" $some -n 2 --steps 20 --precision fp16:init=1024 $options
  same "$narrow" "fp16, $options"
done
scaled="--steps 12 --precision fp16:init=67108864,every=3"
run llama "$data/hf-llama" $some -n 2 $scaled --save scaled --save-every 6
whole="$found $(member loss_scale) $(member overflows)"
[ "$(member overflows)" -gt 2 ] && [ "$(member overflows)" -lt 12 ] || fail "steps left out: $(tail -n 1 out)"
run llama "$data/hf-llama" $some --accum 2 $scaled --resume scaled/step-000006
[ "$found $(member loss_scale) $(member overflows)" = "$whole" ] || fail "fp16 gone on with: $(tail -n 1 out), expected $whole"

# Saved after a step, gone on with by other ranks.
run gpt2 "$data/hf-gpt2" rank=3,alpha=6,targets=c_attn,c_proj,c_fc,rslora,base=nf4 -n 2 --accum 2 --save kept --save-every 1
whole=$found
run gpt2 "$data/hf-gpt2" rank=3,alpha=6,targets=c_attn,c_proj,c_fc,rslora,base=nf4 -n 4 --resume kept/step-000001
same "$whole" "gone on with by four ranks"
expect 6 "$TESSERA" ckpt export kept out2
grep -q "a checkpoint of adapters: train --lora" err || fail "ckpt export: $(cat err)"
expect 0 "$TESSERA" ckpt verify kept
# The base is in its own files: a step folder has the adapters, two moments of each, and the files' digests.
gpt2="gpt2 $data/hf-gpt2 rank=3,alpha=6,targets=c_attn,c_proj,c_fc,rslora,base=nf4"
if ! "$TESSERA" --version | grep "left out" | grep -q xxHash; then
  grep -q "^kept/step-000003: ok, .* beside a base that is not here$" out || fail "verify: $(cat out)"
  ! grep -aq 'param/[^"]*c_attn.weight@' kept/step-000003/*.safetensors || fail "a step folder has the base again"
  grep -aq 'param/[^"]*c_attn.lora_A.weight@' kept/step-000003/*.safetensors || fail "a step folder has no adapters"
  expect 0 "$TESSERA" ckpt show kept
  has_line out "  frozen parameters in model.safetensors .*, xxh128 [0-9a-f]{32}\)"
  expect 0 "$TESSERA" ckpt reshard kept/step-000001 cut --to 3 --quiet
  expect 0 "$TESSERA" ckpt diff kept/step-000001 cut
  expect 1 "$TESSERA" ckpt diff kept/step-000001 kept
  run $gpt2 -n 2 --accum 2 --resume cut
  same "$whole" "gone on with from three files"
  cp -r "$data/hf-gpt2" moved && chmod -R u+w moved && rm -f moved/model.safetensors.index.json
  run gpt2 moved ${gpt2##* } -n 4 --resume kept/step-000001
  same "$whole" "beside the same base elsewhere"
  printf '\001' | dd of=moved/model.safetensors bs=1 seek=$(($(wc -c <moved/model.safetensors) - 1)) conv=notrunc status=none
  expect 6 "$TESSERA" train gpt2 --model moved --lora ${gpt2##* } --context 16 --batch 2 --steps 3 --data nano.bin --token-bits 16 \
    --quiet -n 2 --accum 2 --resume kept
  [ "$(wc -l <err)" = 1 ] && grep -q "its frozen parameters are in model.safetensors with xxh128 .* the base changed$" err ||
    fail "a changed base: $(cat err)"
fi
[ ! -e out2/model.safetensors ] || fail "ckpt export leaves a folder"

# The peft folder holds the same values, and the merged model computes the same.
# there_and_back MODEL FOLDER LORA BASE
there_and_back() {
  rm -rf adapters merged
  run "$1" "$2" "$3" -n 2 --lr 0.01 --export adapters
  local trained=$found
  run "$1" "$2" "adapters$4" -n 2 --steps 0 --export merged --merge
  same "$trained" "$1 from its adapters"
  local adapted=$tested
  expect 0 "$TESSERA" train "$1" --model merged --context 16 --batch 2 --steps 0 --data nano.bin --token-bits 16 --quiet --json
  near "$(member validation_loss)" "$adapted" "$1 merged"
}
there_and_back llama "$data/hf-llama" $some ""
there_and_back llama "$data/hf-llama-tied" $all,base=nf4 ,base=nf4
there_and_back gpt2 "$data/hf-gpt2" rank=3,alpha=6,targets=c_attn,mlp.c_proj,rslora,base=int8 ,base=int8
grep -q '"fan_in_fan_out":true' adapters/adapter_config.json || fail "adapter_config.json: $(cat adapters/adapter_config.json)"
run llama "$data/hf-llama" "$data/peft-llama" --steps 0 --sample 4 # a folder that peft wrote
grep -q '"event":"sample"' out || fail "no sample"

# refused CODE TEXT OPTION…
refused() {
  local code=$1 text=$2
  shift 2
  expect "$code" "$TESSERA" train "$@" --context 16 --batch 2 --steps 1 --data nano.bin --token-bits 16 --quiet
  [ "$(wc -l <err)" = 1 ] && grep -qF -- "$text" err || fail "expected '$text': $(cat err)"
}
llama="llama --model $data/hf-llama"
refused 3 'llama has no product "c_attn"; it has self_attn.q_proj, ' $llama --lora rank=2,alpha=2,targets=c_attn
refused 3 "rank is missing" $llama --lora alpha=2,targets=q_proj
refused 3 "base is unknown" $llama --lora $some,base=fp4
refused 3 "merge is set, but lora is not" $llama --merge --export out1
refused 6 "a folder of adapters is given with --lora DIR" $llama --lora $some --resume merged
cp -r adapters wrong && cp "$data/peft-llama/adapter_config.json" wrong && chmod u+w wrong/*
refused 6 "wrong/adapter_model.safetensors: no tensor 'base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight'" $llama --lora wrong

# Llama 3 8B with QLoRA's blocks on one card, beside what does not fit.
cat >l8b.json <<'END'
{"model_type":"llama","hidden_size":4096,"intermediate_size":14336,"num_hidden_layers":32,"num_attention_heads":32,
"num_key_value_heads":8,"vocab_size":128256,"max_position_embeddings":8192,"rms_norm_eps":1e-5,"rope_theta":500000.0,
"hidden_act":"silu","tie_word_embeddings":false,"torch_dtype":"bfloat16"}
END
plan() { "$TESSERA" plan llama --config l8b.json --lora "$1" --batch 1 --context 2048 --device-memory 24GiB -n 1 --activations recompute "${@:2}"; }
expect 0 plan rank=16,alpha=32,targets=q_proj,v_proj,base=nf4 --precision bf16
has_line out "adapters: 6815744 parameters are trained, beside 8030261248 frozen ones, products in nf4"
grep -q "^fits: 24.0 GiB" out || fail "8B in nf4: $(cat out)"
expect 0 plan rank=16,alpha=32,targets=q_proj,v_proj --precision bf16 # two bytes an element, as its file would have
expect 4 plan rank=16,alpha=32,targets=q_proj,v_proj,base=f32
nothing_left
