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
refuse "odd.bin: 3 bytes, expected an even number" $llama --data odd.bin
refuse "few.bin: too few tokens" $llama --data few.bin
refuse "nowhere: No such file" $llama --data nowhere
refuse "nowhere: No such file" llama --model nowhere --data nano.bin
cp -r "$data/hf-llama" missing && chmod -R u+w missing && rm missing/model-00002-of-00002.safetensors
refuse "missing: no tensor '.*' in" llama --model missing --data nano.bin
refuse "missing: no tensor '.*' in" llama --model missing --data nano.bin -n 2
mkdir -p other && sed 's/"llama"/"mamba"/' "$data/hf-llama/config.json" >other/config.json
refuse 'model_type "mamba": expected gpt2 or llama' llama --model other --data nano.bin
cp -r "$data/hf-gpt2" shape && chmod -R u+w shape && sed -i 's/"n_positions": 32/"n_positions": 48/' shape/config.json
refuse "tensor 'transformer.wpe.weight' has shape 32 x 16, expected 48 x 16" gpt2 --model shape --data nano.bin
echo "token files and folders: same bits on 1, 2 and 4 ranks, planned bytes exact, every mistake one line"
