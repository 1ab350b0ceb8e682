#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# What digests and audits cost, on five models: a ledger of every step and digests at rest on one rank, which has the most to
# digest; audits on two. Each beside the same steps without.
#   docs/benchmarks/proof.sh times BUILD [ROUNDS]   seconds of a step, in turns, median of the rounds (3). Two idle cores, 2 minutes
#   docs/benchmarks/proof.sh counts BUILD [MODEL…]  instructions of a step, by valgrind, all ranks added up. Any machine
#   docs/benchmarks/proof.sh profile BUILD MODEL    the same of --audit 1/1 by function: the 12 that take the most more
# SCALE (1) multiplies the batches: a ledger and digests at rest cost the same, whatever the batch.
set -eu
what=$1 scale=${SCALE:-1} build=$(realpath "$2")
shift 2
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
cd "$(mktemp -d)"
head -c 20000 "$SOURCE/README.md" >text
cat >llama.json <<'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
 "num_key_value_heads": 2, "intermediate_size": 256, "max_position_embeddings": 64, "vocab_size": 256, "rms_norm_eps": 1e-6,
 "hidden_act": "silu", "tie_word_embeddings": true}
END
cat >gpt2.json <<'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "n_embd": 128, "n_layer": 2, "n_head": 4, "n_positions": 64, "vocab_size": 256,
 "layer_norm_epsilon": 1e-5, "activation_function": "gelu_new"}
END
decoder="--data text --context 64 --batch $((4 * scale)) --sample 0 --eval-every 100000"
declare -A models=([mnist]="mnist --batch $((16 * scale))" [convbn]="convbn --image-size 32 --hidden 16 --batch $((8 * scale))"
  [gpt]="gpt --layers 2 --width 128 --heads 4 $decoder" [gpt2]="gpt2 --config gpt2.json $decoder" [llama]="llama --config llama.json $decoder")
export TESSERA_PLUGIN_PATH=$build/plugins TESSERA_LOG=error TESSERA_THREADS=1
train() { # MODEL STEPS OPTION…
  # shellcheck disable=SC2086
  "$build/tessera" train ${models[$1]} --steps "$2" --quiet --json "${@:3}"
}
median() { sort -g | awk '{ x[NR] = $1 } END { print (x[int((NR + 1) / 2)] + x[int((NR + 2) / 2)]) / 2 }'; }

# ---- times: the mean step of a run, since an audit's turn is not in every one ----

timed() { # FILE MODEL STEPS OPTION…
  rm -f ledger
  train "${@:2}" | sed -n 's/^{"event":"step".*"seconds":\([0-9.e-]*\).*/\1/p' | tail -n +3 | awk '{ s += $1 } END { print s / NR }' >>"$1"
}
times() {
  local rounds=${1:-3} model round
  for model in mnist convbn gpt gpt2 llama; do
    rm -f t.*
    for ((round = 0; round < rounds; round++)); do
      timed t.one $model 34
      timed t.ledger $model 34 --ledger ledger
      timed t.rest $model 34 --at-rest-digests
      timed t.two $model 98 -n 2
      timed t.48 $model 98 -n 2 --audit 1/48
      timed t.8 $model 98 -n 2 --audit 1/8
    done
    for pair in one:ledger one:rest two:8 two:48; do
      awk -v m=$model -v w=${pair#*:} -v a="$(median <t.${pair%:*})" -v b="$(median <t.${pair#*:})" \
        'BEGIN { printf "%-7s %-7s %.6f s, %.6f s: %+.2f %%\n", m, w, a, b, 100 * (b / a - 1) }'
    done
  done
}

# ---- counts: what a longer run has more than a shorter one ----

counted() { # MODEL STEPS OPTION…: instructions of all ranks. It ends as a replay does, without an evaluation
  # shellcheck disable=SC2086
  rm -f ledger
  TESSERA_REPLAY=$2 TESSERA_REPLAY_FROM=none valgrind --trace-children=yes --tool=cachegrind --cache-sim=no --cachegrind-out-file=out.%p "$build/tessera" train ${models[$1]} \
    --steps 100000 --quiet --deterministic "${@:3}" 2>&1 >/dev/null | sed -n 's/.* I *refs: *//p' | tr -d , | awk '{ s += $1 } END { printf "%.0f\n", s }'
}
per_step() { # SHORT LONG MODEL OPTION…
  local short long
  short=$(counted "$3" "$1" "${@:4}") long=$(counted "$3" "$2" "${@:4}")
  echo $(((long - short) / ($2 - $1)))
}
row() { # MODEL WHAT BEFORE NOW
  awk -v m="$1" -v w="$2" -v a="$3" -v b="$4" 'BEGIN { printf "| %s | %s | %d | %d | %.2f %% |\n", m, w, a, b, 100 * (b / a - 1) }'
}
counts() {
  local model plain
  [ $# -gt 0 ] || set -- mnist convbn gpt gpt2 llama
  for model in "$@"; do
    plain=$(per_step 1 3 $model)
    row $model ledger "$plain" "$(per_step 1 3 $model --ledger ledger)"
    row $model "at rest" "$plain" "$(per_step 1 3 $model --at-rest-digests)"
  done
  for model in "$@"; do
    plain=$(per_step 2 10 $model -n 2)
    row $model 1/8 "$plain" "$(per_step 2 10 $model -n 2 --audit 1/8)"
  done
}

# ---- profile ----

profile() { # MODEL
  local share
  for share in 0 1/1; do
    rm -f out.[0-9]*
    counted "$1" 10 -n 2 --audit $share >/dev/null
    cg_merge -o "merged.${share%/*}" out.[0-9]* 2>/dev/null
  done
  cg_diff merged.0 merged.1 >diff.out
  cg_annotate --auto=no diff.out | awk 'NF && $1 ~ /^[0-9,]+$/ && n++ < 13'
}
case $what in times | counts | profile) "$what" "$@" ;; *) sed -n '3,9p' "$0" >&2 && exit 2 ;; esac
