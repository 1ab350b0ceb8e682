#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The error of a step's gradient with eight bits on the wire: |g - g32| / |g32| over all parameters, g32 being fp32's. One
# step of sgd with a rate of 1 from the same parameters; g is what it took off, of whole tensors. Deterministic, one rank with W
# microbatches has the bits of W ranks. Prints: model, microbatches, precision, error.
#   TESSERA=build/release/tessera docs/benchmarks/wire8-gradients.sh TEXT [option of tessera train …]
set -eu
tessera=${TESSERA:-tessera}
text=$1
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
cat > "$work/config.json" << 'EOF'
{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":256,"hidden_size":128,"intermediate_size":344,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":256,"rms_norm_eps":1e-6,"rope_theta":10000.0,"tie_word_embeddings":true}
EOF
gpt="gpt --layers 2 --width 128 --heads 4"
llama="llama --config $work/config.json"
after() { # folder, model, option…: whole tensors after these steps
  local folder=$1
  shift
  # shellcheck disable=SC2086
  "$tessera" train $1 --data "$text" --context 64 --batch 4 --threads 1 --optimizer sgd --lr 1 --weight-decay 0 --clip 0 \
    --sample 0 --steps 1 --save "$work/run" --save-every 1 --quiet "${@:2}" > "$work/out" 2>&1 || { cat "$work/out"; exit 1; }
  rm -rf "$folder"
  "$tessera" ckpt export "$work/run" "$folder" --quiet > "$work/out" 2>&1 || { cat "$work/out"; exit 1; }
  rm -rf "$work/run"
}
error_of() { # first fp32 other: folders
  python3 - "$@" << 'EOF'
import array, glob, json, math, sys
def tensors(folder):
    out = {}
    for name in sorted(glob.glob(folder + "/*.safetensors")):
        data = open(name, "rb").read()
        n = int.from_bytes(data[:8], "little")
        for key, t in json.loads(data[8:8 + n]).items():
            if key != "__metadata__":
                begin, end = t["data_offsets"]
                out[key] = array.array("f", data[8 + n + begin:8 + n + end])
    return out
first, wide, thin = map(tensors, sys.argv[1:])
off = size = 0.0
for key in first:
    for p, a, b in zip(first[key], wide[key], thin[key]):
        off += (a - b) ** 2
        size += (p - a) ** 2
print("%.5f" % math.sqrt(off / size))
EOF
}
for model in "$gpt" "$llama"; do
  after "$work/first" "$model" "$@" --lr 0
  for leaves in 1 2 4 8; do
    after "$work/wide" "$model" "$@" --accum "$leaves" --precision fp32
    for precision in ${PRECISIONS:-wire8:sends=gradients wire8:fp8,sends=gradients wire8:sends=gradients,rounding=stochastic wire8 wire8:fp8 bf16:unreadable=keep}; do
      after "$work/thin" "$model" "$@" --accum "$leaves" --precision "$precision"
      echo "${model%% *} $leaves $precision $(error_of "$work/first" "$work/wide" "$work/thin")"
    done
  done
done
