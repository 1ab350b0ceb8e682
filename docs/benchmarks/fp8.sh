#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Validation losses of a small Llama after some steps, with products in bf16 and in fp8: one line for each seed.
#   TESSERA=build/release/tessera docs/benchmarks/fp8.sh TEXT [FIRST_SEED [LAST_SEED [STEPS]]]
set -eu
tessera=${TESSERA:-tessera}
text=$1 first=${2:-1} last=${3:-8} steps=${4:-500}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TESSERA_LOG=error
cat > "$work/config.json" << 'EOF'
{"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":256,"hidden_size":128,"intermediate_size":352,"num_hidden_layers":2,
 "num_attention_heads":4,"num_key_value_heads":2,"max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true}
EOF
loss() {
  "$tessera" train llama --config "$work/config.json" --data "$text" --context 64 --batch 16 --steps "$steps" --lr 0.003 --schedule cosine \
    --warmup 50 --min-lr 0.0003 --clip 1 --threads 1 --sample 0 --seed "$1" --precision "$2" --quiet --json="$work/run.json"
  sed -n '/"event": *"summary"/s/.*"validation_loss": *\([0-9.]*\).*/\1/p' "$work/run.json"
}
for ((seed = first; seed <= last; seed++)); do
  echo "$seed $(loss "$seed" bf16) $(loss "$seed" bf16:products=fp8)"
done
