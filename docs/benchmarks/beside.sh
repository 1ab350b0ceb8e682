#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Steps of five models by two builds in turns, AdamW, clip 1, one rank and thread: per model the median step of each build, of all
# rounds, and NEW beside OLD. Only an idle machine resolves a hundredth.
#   docs/benchmarks/beside.sh OLD/build/release NEW/build/release [ROUNDS]
set -eu
builds=("$(realpath "$1")" "$(realpath "$2")") rounds=${3:-5}
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
cd "$(mktemp -d)"
head -c 20000 "$SOURCE/README.md" >text
cat >small.json <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 64, "vocab_size": 256, "rms_norm_eps": 1e-6,
 "hidden_act": "silu", "tie_word_embeddings": true}
END
declare -A models=(
  [mnist]="mnist --batch 64" [linear]="linear" [convbn]="convbn --image-size 32 --hidden 16 --batch 8"
  [gpt]="gpt --data text --layers 4 --width 128 --heads 4 --context 64 --batch 4 --sample 0"
  [llama]="llama --config small.json --data text --context 64 --batch 4 --sample 0")
export TESSERA_LOG=error
steps() { # BUILD MODEL: seconds of each step but the first
  # shellcheck disable=SC2086
  TESSERA_PLUGIN_PATH=$1/plugins "$1/tessera" train ${models[$2]} --steps 12 --optimizer adamw --clip 1 --threads 1 --quiet --json |
    sed -n 's/^{"event":"step".*"seconds":\([0-9.e-]*\).*/\1/p' | tail -n +2
}
median() { sort -g "$1" | awk '{ x[NR] = $1 } END { print (x[int((NR + 1) / 2)] + x[int((NR + 2) / 2)]) / 2 }'; }
for model in mnist gpt llama convbn linear; do
  rm -f times.0 times.1
  for round in $(seq "$rounds"); do
    for build in $((round % 2)) $(((round + 1) % 2)); do steps "${builds[build]}" $model >>times.$build; done
  done
  awk -v m=$model -v a="$(median times.0)" -v b="$(median times.1)" 'BEGIN { printf "%-7s %.6f s, %.6f s: %.3f\n", m, a, b, b / a }'
done
