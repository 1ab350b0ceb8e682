#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# gpt2 and llama from Hugging Face folders on token files: the same bits whatever the ranks, wrap policy and file format;
# and what is wrong with a file or folder is one line and exit code 6.
. "$SOURCE/tests/e2e/lib.sh"
data=$SOURCE/tests/reference/data
export TESSERA_LOG=warning TESSERA_DETERMINISTIC=1
python=$(command -v python3) || { echo "skipped: python3 not found, which writes the token files"; exit 77; }
"$python" - <<'EOF'
import random, struct
random.seed(1)
tokens = [random.randrange(64) for _ in range(3000)]
def llmc(name, magic, version, n, kind, tokens):
    head = [magic, version, n] + [0] * 253
    open(name, "wb").write(struct.pack("<256i", *head) + struct.pack(f"<{len(tokens)}{kind}", *tokens))
llmc("gpt2.bin", 20240520, 1, 3000, "H", tokens)
llmc("llama3.bin", 20240801, 7, 3000, "I", tokens)
open("nano.bin", "wb").write(struct.pack("<3000H", *tokens))
llmc("cut.bin", 20240520, 1, 3001, "H", tokens)
llmc("version.bin", 20240520, 2, 3000, "H", tokens)
llmc("magic.bin", 20240521, 1, 3000, "H", tokens)
llmc("beyond.bin", 20240520, 1, 3000, "H", tokens[:2000] + [64] + tokens[2001:])
open("odd.bin", "wb").write(b"abc")
open("wide.bin", "wb").write(struct.pack("<3000I", *tokens))
llmc("few.bin", 20240520, 1, 30, "H", tokens[:30])
EOF
mkdir -p two && head -c 3000 nano.bin >two/a.bin && tail -c +3001 nano.bin >two/b_val.bin

digest() { sed -n '/"event":"summary"/s/.*"params_digest":"\([0-9a-f]*\)".*/\1/p' out; }
# run MODEL FOLDER OPTION…: trains, checks planned against measured bytes and leaves the digest in $found.
run() {
  local model=$1 folder=$2
  shift 2
  expect 0 "$TESSERA" train "$model" --model "$data/$folder" --context 16 --steps 3 --quiet --json "$@"
  found=$(digest)
  [ -n "$found" ] || fail "no params_digest: $(cat out)"
  local peak planned
  peak=$(sed -n '/"event":"summary"/s/.*"peak_device_bytes":\([0-9]*\),.*/\1/p' out)
  planned=$(sed -n '/"event":"summary"/s/.*"planned_peak_device_bytes":\([0-9]*\).*/\1/p' out)
  [ -n "$peak" ] && [ "$peak" = "$planned" ] || fail "peak $peak, planned $planned: $*"
}
same() { [ "$found" = "$1" ] || fail "digest $found, expected $1: $2"; }

for model in llama:hf-llama gpt2:hf-gpt2 llama:hf-llama-tied; do
  run "${model%:*}" "${model#*:}" --data gpt2.bin --batch 2 --accum 4
  one=$found
  run "${model%:*}" "${model#*:}" --data nano.bin --batch 2 --accum 4 --activations recompute
  same "$one" "nanoGPT's format, recompute"
  run "${model%:*}" "${model#*:}" --data wide.bin --token-bits 32 --batch 2 --accum 4
  same "$one" "bare numbers of 32 bits"
  [ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || continue
  run "${model%:*}" "${model#*:}" --data llama3.bin --batch 2 --accum 2 -n 2 --wrap size:2000
  same "$one" "two ranks, 32 bits, wrap size:2000"
  run "${model%:*}" "${model#*:}" --data gpt2.bin --batch 2 -n 4 --strategy grad_op
  same "$one" "four ranks, grad_op"
done
# Three ranks have the bits of one with three microbatches.
for model in llama:hf-llama gpt2:hf-gpt2; do
  run "${model%:*}" "${model#*:}" --data gpt2.bin --batch 2 --accum 3
  one=$found
  [ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || continue
  run "${model%:*}" "${model#*:}" --data gpt2.bin --batch 2 -n 3
  same "$one" "three ranks of ${model%:*}"
done
run llama hf-llama --data two --batch 2 -n 3 --precision bf16
has_frozen() { sed -n 's/.*"optimizer":\([0-9]*\).*/\1/p' out; }
run llama hf-llama --data gpt2.bin --batch 2
all=$(sed -n '/"event":"summary"/s/.*"peak_device_bytes":\([0-9]*\),.*/\1/p' out)
run llama hf-llama --data gpt2.bin --batch 2 --freeze 'embed.*'
frozen=$(sed -n '/"event":"summary"/s/.*"peak_device_bytes":\([0-9]*\),.*/\1/p' out)
[ "$frozen" -lt "$((all - 2 * 64 * 16 * 4 + 1))" ] || fail "frozen embeddings need $frozen bytes, all trained $all"

# From scratch, by a config alone: starting values of the seed's.
expect 0 "$TESSERA" train llama --config "$data/hf-llama/config.json" --data gpt2.bin --context 16 --batch 2 --steps 2 --quiet --json
[ -n "$(digest)" ] && [ "$(digest)" != "$one" ] || fail "--config: $(cat out)"

# An exported folder reads back to the same parameters: after training, over two ranks, in pieces, from a checkpoint.
back() { # back MODEL FOLDER: digest of its parameters, unchanged by a rate of 0
  expect 0 "$TESSERA" train "$1" --model "$2" --context 16 --steps 1 --lr 0 --batch 2 --data nano.bin --quiet --json
  found=$(digest)
}
for model in llama:hf-llama gpt2:hf-gpt2 llama:hf-llama-tied; do
  name=${model%:*} folder=${model#*:}
  run "$name" "$folder" --data nano.bin --batch 2 -n 2 --export "out-$folder" --save "run-$folder"
  trained=$found
  back "$name" "out-$folder"
  same "$trained" "read back from --export: $folder"
  expect 0 "$TESSERA" ckpt export "run-$folder" "ckpt-$folder" --max-file 8KiB
  [ -f "ckpt-$folder/model.safetensors.index.json" ] || fail "ckpt export: $(ls "ckpt-$folder")"
  back "$name" "ckpt-$folder"
  same "$trained" "read back from ckpt export: $folder"
  cmp "out-$folder/config.json" "ckpt-$folder/config.json" || fail "config.json of train and of ckpt differ"
  expect 0 "$TESSERA" ckpt reshard "run-$folder" "five-$folder" --to 5
  expect 0 "$TESSERA" ckpt export "five-$folder" "ckpt-$folder"
  [ "$(ls "ckpt-$folder" | tr '\n' ' ')" = "config.json model.safetensors " ] || fail "files of another export stay: $(ls "ckpt-$folder")"
  cmp "out-$folder/model.safetensors" "ckpt-$folder/model.safetensors" || fail "ckpt export after reshard"
  expect 0 "$TESSERA" train "$name" --model "$data/$folder" --resume "out-$folder" --context 16 --steps 1 --lr 0 --batch 2 --data nano.bin --quiet --json
  found=$(digest)
  same "$trained" "--resume of an exported folder"
  rm -rf imported again
  expect 0 "$TESSERA" ckpt import "ckpt-$folder" imported
  expect 0 "$TESSERA" train "$name" --model "$data/$folder" --resume imported --context 16 --steps 1 --lr 0 --batch 2 --data nano.bin --quiet --json
  found=$(digest)
  same "$trained" "--resume of what ckpt import made of ckpt export: $folder"
  ! grep -q -- "other bits from here on" err || fail "it warns: $(cat err)"
  expect 0 "$TESSERA" ckpt export imported again
  for file in config.json model.safetensors; do cmp "ckpt-$folder/$file" "again/$file" || fail "exported, imported, exported: $folder"; done
done
cp -r "$data/hf-llama-tied" untold && chmod -R u+w untold && sed -i 's/"tie_word_embeddings": true/"tie_word_embeddings": "yes"/' untold/config.json
expect 6 "$TESSERA" ckpt import untold imported-untold
grep -q 'untold/config.json: "tie_word_embeddings": expected true or false' err || fail "a head that is neither tied nor its own: $(cat err)"
grep -q '"dtype":"float32"' out-hf-llama-tied/config.json && ! grep -q bfloat16 out-hf-llama-tied/config.json || fail "dtype: $(cat out-hf-llama-tied/config.json)"
for name in llama gpt2; do
  expect 0 "$TESSERA" train $name --layers 2 --heads 2 --width 16 --context 16 --batch 2 --steps 2 --quiet --json --export "scratch-$name"
  trained=$(digest)
  back "$name" "scratch-$name"
  same "$trained" "made from nothing, exported, read back: $name"
done
# A tokenizer's files go along; one that cannot be read is one line.
cp -r "$data/hf-llama" tok && chmod -R u+w tok && echo '{"of": "the tokenizer"}' >tok/tokenizer.json
expect 0 "$TESSERA" train llama --model tok --data nano.bin --context 16 --batch 2 --steps 1 --quiet --export out-tok -n 2
cmp tok/tokenizer.json out-tok/tokenizer.json && [ ! -e out-tok/vocab.json ] || fail "tokenizer: $(ls out-tok)"
mkdir tok/merges.txt
expect 6 "$TESSERA" train llama --model tok --data nano.bin --context 16 --batch 2 --steps 1 --quiet --export out-tok
grep -q "merges.txt: cannot be copied: Is a directory" err && [ "$(wc -l <err)" = 1 ] || fail "a tokenizer's directory: $(cat err)"
# No step: what is loaded is evaluated and writes a sample.
back llama "$data/hf-llama"
loaded=$found
expect 0 "$TESSERA" train llama --model "$data/hf-llama" --context 16 --batch 2 --data nano.bin --steps 0 --sample 3 --quiet --json
[ "$(digest)" = "$loaded" ] && grep -q '"event":"validation","step":0,"loss":[0-9]' out && grep -q '"event":"sample"' out &&
  grep -q '"event":"summary".*"steps":0,.*"loss":null' out && ! grep -q '"event":"step"' out || fail "--steps 0: $(cat out)"
expect 0 "$TESSERA" train llama --model "$data/hf-llama" --context 16 --batch 2 --data nano.bin --steps 0
! grep -iq 'nan\|of the last step' out err || fail "--steps 0 shows a loss: $(cat out)"
touch file
expect 6 "$TESSERA" train llama --layers 1 --context 16 --batch 1 --steps 1 --quiet --export file
grep -q "^tessera: error: file: cannot be made a directory: " err && [ "$(wc -l <err)" = 1 ] || fail "--export to a file: $(cat err)"

# refuse PATTERN OPTION…: exit code 6 and one line.
refuse() {
  local pattern=$1
  shift
  expect 6 "$TESSERA" train "$@" --context 16 --batch 2 --steps 1 --quiet
  [ "$(wc -l <err)" = 1 ] || fail "$(wc -l <err) lines, expected 1: $(cat err)"
  grep -qE -- "$pattern" err || fail "no '$pattern' in: $(cat err)"
}
llama="llama --model $data/hf-llama"
refuse "cut.bin: 7024 bytes, expected 7026 by its header" $llama --data cut.bin
refuse "version.bin: offset 4: version 2, expected 1" $llama --data version.bin
refuse "magic.bin: offset 0: magic 20240521, expected 20240520 or 20240801" $llama --data magic.bin
refuse "beyond.bin: offset 5024: token 64, but the model's vocabulary has 64" $llama --data beyond.bin
refuse "beyond.bin: offset 5024: token 64" $llama --data beyond.bin -n 2
refuse "odd.bin: 3 bytes, expected a multiple of 2" $llama --data odd.bin
refuse "odd.bin: 3 bytes, expected a multiple of 4" $llama --data odd.bin --token-bits 32
refuse "wide.bin: its bytes are tokens as numbers of 16 and of 32 bits: --token-bits must say which" $llama --data wide.bin
refuse "nano.bin: offset 0: token [0-9]{5,}, but the model's vocabulary has 64" $llama --data nano.bin --token-bits 32
refuse "few.bin: too few tokens" $llama --data few.bin
refuse "nowhere: No such file" $llama --data nowhere
refuse "nowhere: No such file" llama --model nowhere --data nano.bin
cp -r "$data/hf-llama" missing && chmod -R u+w missing && rm missing/model-00002-of-00002.safetensors
refuse "missing: no tensor '.*' in" llama --model missing --data nano.bin
refuse "missing: no tensor '.*' in" llama --model missing --data nano.bin -n 2
mkdir -p other && sed 's/"llama"/"mamba"/' "$data/hf-llama/config.json" >other/config.json
refuse 'model_type "mamba": expected gpt2, llama, qwen2, qwen3, mistral, gemma2 or gemma3_text' llama --model other --data nano.bin
cp -r "$data/hf-gpt2" shape && chmod -R u+w shape && sed -i 's/"n_positions": 32/"n_positions": 48/' shape/config.json
refuse "tensor 'transformer.wpe.weight' has shape 32 x 16, expected 48 x 16" gpt2 --model shape --data nano.bin
# Text is bytes: tokens of a model that has the 256 and no tokenizer, and of no other.
yes "some text" | head -n 500 >text.txt
refuse "^tessera: error: text.txt is text, whose bytes are 256 tokens, but the model's vocabulary has 64: give --data token files" $llama --data text.txt
refuse "the documentation, for want of --data, is text" $llama
expect 0 "$TESSERA" train gpt2 --layers 1 --heads 2 --width 16 --context 16 --batch 2 --data text.txt --steps 1 --quiet --export bytes
expect 0 "$TESSERA" train gpt2 --model bytes --batch 2 --data text.txt --steps 1 --quiet --sample 3 --prompt hello
expect 0 "$TESSERA" train gpt2 --model bytes --batch 2 --steps 1 --quiet
for name in vocab.json merges.txt; do
  echo '{}' >"bytes/$name"
  for from in "--model bytes" "--config bytes/config.json" "--resume bytes"; do
    refuse "text.txt is text, whose bytes are not the tokens of bytes/$name: give --data token files" gpt2 $from --data text.txt
    refuse "whose bytes are not the tokens of bytes/$name" gpt2 $from --sample 3 --prompt hello
  done
  rm "bytes/$name"
done
echo '{}' >bytes/tokenizer.json
refuse "bytes/tokenizer.json: a pre_tokenizer without 'ByteLevel' is not read here" gpt2 --model bytes --data text.txt
rm bytes/tokenizer.json
sed 's/"vocab_size":256/"vocab_size":50257/' bytes/config.json >bpe.json
refuse "whose bytes are 256 tokens, but the model's vocabulary has 50257" gpt2 --config bpe.json --data text.txt
expect 0 "$TESSERA" train gpt2 --config bpe.json --batch 2 --steps 1 --quiet # from nothing, on nothing of the user's

# A member of config.json that changes the function: done, or refused by its name. config NAME JSON: hf-NAME with other members.
config() { "$python" -c 'import json, sys; c = json.load(open(sys.argv[1])); c.update(json.loads(sys.argv[2])); json.dump(c, sys.stdout)' "$data/hf-$1/config.json" "$2" >changed.json; }
while read -r name json; do
  key=${json#'{"'} key=${key%%\"*}
  config "$name" "$json"
  refuse "^tessera: error: changed.json: \"$key\": expected " "$name" --config changed.json --data nano.bin
done <<'END'
gpt2 {"scale_attn_weights": false}
gpt2 {"scale_attn_weights": 1}
gpt2 {"scale_attn_by_inverse_layer_idx": true}
gpt2 {"add_cross_attention": true}
gpt2 {"activation_function": "relu"}
gpt2 {"pruned_heads": {"0": [1]}}
gpt2 {"quantization_config": {"bits": 4}}
gpt2 {"embd_pdrop": 0.1}
gpt2 {"attn_pdrop": 1}
gpt2 {"resid_pdrop": "0.1"}
llama {"attention_bias": true}
llama {"mlp_bias": "yes"}
llama {"hidden_act": "gelu"}
llama {"partial_rotary_factor": 0.5}
llama {"attention_dropout": -0.1}
llama {"quantization_config": {"bits": 4}}
END
config gpt2 '{"pruned_heads": {}, "quantization_config": null, "scale_attn_weights": null}'
expect 0 "$TESSERA" train gpt2 --config changed.json --data nano.bin --batch 2 --steps 2 --quiet --json
one=$(digest)
config gpt2 '{"embd_pdrop": 0.5, "resid_pdrop": 0.5}'
expect 0 "$TESSERA" train gpt2 --config changed.json --data nano.bin --batch 2 --steps 2 --quiet --json
[ ! -s err ] && [ "$(digest)" != "$one" ] || fail "dropout changes nothing: $(cat err out)"
config gpt2 '{"attn_pdrop": 0.1}'
expect 0 "$TESSERA" train gpt2 --config changed.json --data nano.bin --batch 2 --steps 2 --quiet --json
one_line err "tessera: warning: config.json: attention's dropout of 0.1 is left out: no model here has one"
[ "$(digest)" = "$one" ] || fail "dropout of attention alone: $(cat out)"
config llama '{"attention_dropout": 0.25}'
expect 0 "$TESSERA" train llama --config changed.json --data nano.bin --batch 2 --steps 1 --quiet
grep -q "attention's dropout of 0.25 is left out" err || fail "llama's dropout: $(cat err)"
echo "token files and folders: same bits on 1, 2 and 4 ranks, planned bytes exact, every mistake one line"
