#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# Decoders of 70 B and 405 B parameters, described by a safetensors header alone: resting bytes equal the closed form, at
# several numbers of ranks, strategies, optimizers and offload. Then what is wrong with a file, in one line.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error

# header FILE VOCABULARY WIDTH KEYS HIDDEN LAYERS: the tensors of a Llama of these shapes, no data behind them.
header() {
  awk -v V="$2" -v W="$3" -v K="$4" -v H="$5" -v L="$6" '
    function tensor(name, rows, cols) {
      bytes = 2 * rows * (cols ? cols : 1)
      shape = cols ? rows "," cols : rows
      printf "%s\"%s\":{\"dtype\":\"BF16\",\"shape\":[%s],\"data_offsets\":[%.0f,%.0f]}", sep, name, shape, at, at + bytes
      at += bytes
      sep = ","
    }
    BEGIN {
      printf "{"
      tensor("lm_head.weight", V, W)
      tensor("model.embed_tokens.weight", V, W)
      for (i = 0; i < L; i++) {
        p = "model.layers." i "."
        tensor(p "input_layernorm.weight", W, 0)
        tensor(p "mlp.down_proj.weight", W, H)
        tensor(p "mlp.gate_proj.weight", H, W)
        tensor(p "mlp.up_proj.weight", H, W)
        tensor(p "post_attention_layernorm.weight", W, 0)
        tensor(p "self_attn.k_proj.weight", K, W)
        tensor(p "self_attn.o_proj.weight", W, W)
        tensor(p "self_attn.q_proj.weight", W, W)
        tensor(p "self_attn.v_proj.weight", K, W)
      }
      tensor("model.norm.weight", W, 0)
      printf "}"
    }' >json
  local n i bytes=
  n=$(wc -c <json)
  for ((i = 0; i < 8; i++)); do bytes+=$(printf '\\x%02x' $((n >> 8 * i & 255))); done
  { printf "$bytes"; cat json; } >"$1"
  rm json
}

share() { echo $((($1 + $2 - 1) / $2 + 63 - (($1 + $2 - 1) / $2 + 63) % 64)); }

# shard V W K H L RANKS: elements in one shard of all units; the shapes are multiples of 64, so only shards are padded.
shard() {
  local layer=$((2 * $2 * $2 + 2 * $3 * $2 + 3 * $2 * $4 + 2 * $2))
  echo $((2 * $(share $(($1 * $2)) "$6") + $5 * $(share $layer "$6") + $(share "$2" "$6")))
}

value() { sed -n 's/.*"'"$1"'":\([0-9.e+-]*\).*/\1/p' plan.json; }
# resting DOMAIN CATEGORY: 0 where it is not listed
resting() {
  local object
  object=$(sed -n 's/.*"resting":{\(.*\)},"peak".*/\1/p' plan.json | sed -n 's/.*"'"$1"'":{\([^}]*\)}.*/\1/p')
  case $object in *"\"$2\":"*) sed 's/.*"'"$2"'":\([0-9]*\).*/\1/' <<<"$object" ;; *) echo 0 ;; esac
}
same() { [ "$2" = "$3" ] || fail "$1 is $2, expected $3 ($(tail -c 1500 plan.json))"; }

# check FILE PARAMETERS SHAPE RANKS GROUP STATES DOMAIN OPTION…
check() {
  local file=$1 parameters=$2 shape=$3 ranks=$4 group=$5 states=$6 domain=$7 elems
  shift 7
  "$TESSERA" plan "$file" -n "$ranks" "$@" --quiet --json=events 2>err || fail "plan $file -n $ranks $*: $(cat err)"
  tail -n 1 events >plan.json
  # shellcheck disable=SC2086
  elems=$(shard $shape "$group")
  same "parameters" "$(value parameters)" "$parameters"
  same "$* -n $ranks: sharded parameters" "$(resting "$domain" sharded_parameter)" $((4 * elems))
  same "$* -n $ranks: optimizer state" "$(resting "$domain" optimizer_state)" $((4 * elems * states))
  same "estimate" "$(grep -o '"estimate":[a-z]*' plan.json)" '"estimate":false'
}

small="256 64 32 128 2" llama70="128256 8192 1024 28672 80" llama405="128256 16384 1024 53248 126"
mkdir 70b 405b
# shellcheck disable=SC2086
{ header small.safetensors $small; header 70b/model.safetensors $llama70; header 405b/model.safetensors $llama405; }
check small.safetensors 106816 "$small" 1 1 0 device --optimizer sgd
check 70b/model.safetensors 70553706496 "$llama70" 1 1 2 device
if [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ]; then
  check 70b/model.safetensors 70553706496 "$llama70" 8 8 1 device --optimizer sgd --momentum 0.9
  check 70b 70553706496 "$llama70" 7 7 2 device --optimizer adadelta
  check 70b 70553706496 "$llama70" 512 1 2 device --strategy none --optimizer adam
  check 70b 70553706496 "$llama70" 512 8 2 device --strategy hybrid:8
  check 405b 405853388800 "$llama405" 4096 4096 2 device --strategy grad_op
  check 405b 405853388800 "$llama405" 1000000 1000000 2 device
  [ ! -e "$BUILD/plugins/libtessera-offload-cpu.so" ] || check 70b 70553706496 "$llama70" 64 64 2 host --offload cpu
  check 405b 405853388800 "$llama405" 16384 16384 2 device
  echo "405 B parameters on 16,384 ranks were planned in $(value plan_seconds) s"
fi

# with config.json: an estimate of the activations, said so
cat >70b/config.json <<EOF
{"architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
 "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "max_position_embeddings": 131072,
 "tie_word_embeddings": false, "rope_scaling": {"factor": 8.0}}
EOF
expect 0 "$TESSERA" plan 70b --batch 2 --json=events
tail -n 1 events >plan.json
same "estimate" "$(grep -o '"estimate":[a-z]*' plan.json)" '"estimate":true'
grep -q "an estimate for a decoder, batch 2, context 4096, 4 bytes each" out || fail "no word of the estimate: $(cat out)"
# The peak is in the last layer's backward: 80 layers have saved T (4 (3 h + 2 a d + 2 k d + 3 f) + 4 a + 8); the outputs
# of the embedding and of all layers live, and the gradients of that layer's output and input.
tokens=8192
activations=$((80 * tokens * (4 * (3 * 8192 + 2 * 8192 + 2048 + 3 * 28672) + 4 * 64 + 8) + (81 + 2) * tokens * 8192 * 4))
same "the activations" "$(sed 's/.*"categories":{"device":{\([^}]*\)}.*/\1/; s/.*"activation":\([0-9]*\).*/\1/' plan.json)" $activations

# The simulated time counts the tokens that memory counts: a default context, written out, changes nothing.
if [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ]; then
  for options in "" "--batch 1 --context 4096" "--context 2048"; do
    # shellcheck disable=SC2086
    expect 0 "$TESSERA" plan 70b -n 8 $options --comm gloo --machine cpu-2-cores --json --quiet
    sed -n 's/.*"event":"time".*"busy":{"compute":\([0-9.e+]*\).*/\1/p' out >>times
  done
  [ "$(sed -n 1p times)" = "$(sed -n 2p times)" ] || fail "time and memory count other tokens: $(cat times)"
  # So does tune: its one candidate is that plan.
  expect 0 "$TESSERA" tune 70b -n 8 --comm gloo --machine cpu-2-cores --wrap scopes --strategy full --activations keep --offload none \
    --precision fp32 --prefetch 1 --json --quiet
  sed -n 's/.*"event":"candidate".*"seconds":\([0-9.e+]*\).*/\1/p' out >candidate
  expect 0 "$TESSERA" plan 70b -n 8 --comm gloo --machine cpu-2-cores --prefetch 1 --json --quiet
  sed -n 's/.*"event":"plan".*"seconds":\([0-9.e+]*\).*/\1/p' out >planned
  [ -s planned ] && cmp -s planned candidate || fail "tune counts other tokens than plan: $(cat candidate) s against $(cat planned) s"
  awk 'NR > 1 { t[NR] = $1 } END { exit !(t[2] > 1.7 * t[3] && t[2] < 2.3 * t[3]) }' times || fail "half the tokens: $(cat times)"
fi

# a folder with an index, and MODEL.json as its page shows it
mkdir folder
header folder/a.safetensors 256 64 32 128 2
echo '{"weight_map":{"model.norm.weight":"a.safetensors","lm_head.weight":"a.safetensors"}}' >folder/model.safetensors.index.json
expect 0 "$TESSERA" plan folder --json
grep -q '"parameters":16448,' out || fail "the folder: $(cat out)"
sed -n '/^```json/,/^```/p' "$SOURCE/docs/model-json.md" | grep -v '```' >model.json
expect 0 "$TESSERA" plan model.json --json
grep -q '"parameters":22678528,' out || fail "docs/model-json.md: $(cat out)"

# refuse PATTERN FILE: exit code 6 and one line
refuse() {
  expect 6 "$TESSERA" plan "$2"
  [ "$(wc -l <err)" = 1 ] && grep -qE -- "$1" err && [ ! -s out ] || fail "no line '$1' alone: $(cat out err)"
}
refuse "nowhere.safetensors: No such file" nowhere.safetensors
head -c 1000 small.safetensors >cut.safetensors
refuse "cut.safetensors: offset 0: a header of [0-9]+ bytes, expected at most 992" cut.safetensors
refuse "neither model.safetensors.index.json nor model.safetensors" "$PWD"
# A folder of a model that the command trains: what plans the model itself, with the activations that it has.
cp -r "$SOURCE/tests/reference/data/hf-llama-tied" l8b
expect 0 "$TESSERA" plan l8b
grep -q '^activations: an estimate .*; `tessera plan llama --model l8b` plans the model itself$' out || fail "no hint: $(cat out)"
expect 0 "$TESSERA" plan llama --model l8b
rm l8b/*.safetensors
refuse "model.safetensors is in this folder; .tessera plan llama --config l8b/config.json. plans the model itself" l8b/
expect 0 "$TESSERA" plan llama --config l8b/config.json
sed 's/BF16/F12/' small.safetensors >type.safetensors # one byte less than the length says
refuse "type.safetensors: offset" type.safetensors
echo '{"weight_map":{"x":"b.safetensors"}}' >folder/model.safetensors.index.json
refuse "folder/b.safetensors: No such file" folder
echo '{"hidden_size": "wide"}' >70b/config.json
refuse "config.json: offset 16: expected a whole number" 70b
printf '[%.0s' {1..100000} >deep.json
refuse "deep.json: offset 0: expected '\{'" deep.json
echo "every mistake was named in one line"
