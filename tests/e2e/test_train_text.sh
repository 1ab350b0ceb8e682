#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# Lines of JSON as training data: text as tokens are; a prompt and its completion with the loss on the completion alone,
# the mean of a step over all ranks and microbatches; documents that share a window; what is held out; --tokenizer.
. "$SOURCE/tests/e2e/lib.sh"
data=$SOURCE/tests/reference/data/tokenizers
export TESSERA_LOG=warning TESSERA_DETERMINISTIC=1
"$TESSERA" --version | grep 'left out' | grep -q 'tokenizers (PCRE2)' && { echo "skipped: this build has no PCRE2"; exit 77; }

mkdir model && cp "$data/gpt2/"* model
echo '{"model_type":"gpt2","vocab_size":600,"n_positions":32,"n_embd":16,"n_layer":1,"n_head":2,"layer_norm_epsilon":1e-5,
"resid_pdrop":0.0,"embd_pdrop":0.0,"attn_pdrop":0.0,"activation_function":"gelu_new"}' >model/config.json
words=(shard rank unit gather reduce tree wire plan byte step mirror ledger)
word() { echo "${words[$(($1 % 12))]}"; }
for i in $(seq 60); do
  prompt="the $(word $i) of $((i * 37 % 100))" completion=
  for k in $(seq $((i % 5 + 1))); do completion="$completion $(word $((i * k)))"; done
  echo "{\"prompt\": \"$prompt\", \"completion\": \"$completion\"}" >>samples.jsonl
  echo "{\"text\": \"$prompt$completion\"}" >>text.jsonl
  printf '%s' "$prompt$completion" >>text.txt
done

train() { expect 0 "$TESSERA" train gpt2 --config model/config.json --context 31 --quiet --json "$@"; }
value() { sed -n "s/.*\"event\":\"$1\".*\"$2\":\"*\([-0-9a-f.e+]*\).*/\1/p" out | tail -n 1; }
digest() { value summary params_digest; }
same() { [ -n "$2" ] && [ "$1" = "$2" ] || fail "$3: $1 and $2"; }
differs() { [ -n "$2" ] && [ "$1" != "$2" ] || fail "$3: both $1"; }
# near A B WITHIN WHAT
near() { awk -v a="$1" -v b="$2" -v w="$3" 'BEGIN { d = a - b; exit !(d * d <= w * w) }' || fail "$4: $1 and $2"; }

# Text by lines is its tokens; so is a folder of it.
expect 0 "$TESSERA" tokenize model --out tokens text.jsonl
train --data tokens --batch 2 --steps 3 --val tokens
tokens=$(digest)
train --data text.jsonl --batch 2 --steps 3 --val text.jsonl
same "$tokens" "$(digest)" "lines of text and their tokens"
mkdir lines && cp text.jsonl lines/a.jsonl && cp text.jsonl lines/b_val.jsonl
train --data lines --batch 2 --steps 3
same "$tokens" "$(digest)" "a folder with one held out"

# Samples: the same bits on any ranks; the mean over all completions of the step, however they lie in microbatches.
for pack in "" --pack; do
  train --data samples.jsonl $pack --batch 2 --accum 4 --steps 4
  one=$(digest) loss=$(value summary loss)
  if [ -e "$BUILD/plugins/libtessera-comm-shm.so" ]; then
    train --data samples.jsonl $pack --batch 2 --accum 2 -n 2 --steps 4
    same "$one" "$(digest)" "two ranks $pack"
    train --data samples.jsonl $pack --batch 2 -n 4 --steps 4 --sync end
    same "$one" "$(digest)" "four ranks $pack"
  fi
  train --data samples.jsonl $pack --batch 8 --steps 4
  near "$loss" "$(value summary loss)" 1e-5 "one microbatch of 8 and four of 2 $pack"
  train --data samples.jsonl $pack --batch 1 --accum 8 --steps 4
  near "$loss" "$(value summary loss)" 1e-5 "eight microbatches of 1 and four of 2 $pack"
done

# A prompt is no target: its loss is that of the completions alone, and not that of the text.
train --data samples.jsonl --val samples.jsonl --batch 4 --steps 0
samples=$(value validation loss)
sed 's/"prompt": "\([^"]*\)", "completion": "/"prompt": "", "completion": "\1/' samples.jsonl >whole.jsonl
train --data whole.jsonl --val whole.jsonl --batch 4 --steps 0
differs "$samples" "$(value validation loss)" "with and without a prompt"
# Packed, the evaluation over all samples has the same loss: none sees another, positions begin again.
whole=$(value validation loss)
train --data samples.jsonl --val samples.jsonl --batch 4 --steps 0 --pack
near "$samples" "$(value validation loss)" 1e-6 "samples packed and alone"
train --data whole.jsonl --val whole.jsonl --batch 4 --steps 0 --pack
near "$whole" "$(value validation loss)" 1e-6 "whole texts packed and alone"
# Tokens: documents end at the token that ends one, as in the lines that they are of.
train --data tokens --val tokens --batch 2 --steps 3 --pack
packed=$(digest)
differs "$tokens" "$packed" "tokens with and without --pack"
train --data text.jsonl --val text.jsonl --batch 2 --steps 3 --pack
same "$packed" "$(digest)" "packed lines of text and their tokens"
# So with windows, normalised heads and capped logits, and with adapters; each document by itself, on two ranks too.
for of in qwen3 gemma3; do
  mkdir $of && cp "$data/gpt2/"* $of
  sed 's/"vocab_size": 64/"vocab_size": 600/' "$SOURCE/tests/reference/data/hf-$of-2/config.json" >$of/config.json
  for with in "" "--lora rank=3,alpha=6,targets=all-linear,base=nf4"; do
    family() { expect 0 "$TESSERA" train $of --config $of/config.json --context 31 --quiet --json --data samples.jsonl --val samples.jsonl $with "$@"; }
    family --batch 4 --steps 0
    alone=$(value validation loss)
    family --batch 4 --steps 0 --pack
    near "$alone" "$(value validation loss)" 1e-6 "$of: samples packed and alone $with"
    family --batch 2 --accum 2 --steps 3 --pack
    one=$(digest)
    [ "$(value summary peak_device_bytes)" = "$(value summary planned_peak_device_bytes)" ] || fail "$of $with: $(cat out)"
    [ ! -e "$BUILD/plugins/libtessera-comm-shm.so" ] || family --batch 2 -n 2 --steps 3 --pack --activations recompute
    same "$one" "$(digest)" "$of: two ranks, packed $with"
  done
done

# What is held out: a tenth, another share, a file; never what is trained on.
cat text.jsonl text.jsonl text.jsonl >more.jsonl
train --data more.jsonl --batch 2 --steps 3
tenth=$(digest)
train --data more.jsonl --batch 2 --steps 3 --val 0.1
same "$tenth" "$(digest)" "the default and a tenth"
train --data more.jsonl --batch 2 --steps 3 --val 0.5
differs "$tenth" "$(digest)" "a tenth and a half"
# Another tokenizer than the folder's, which has none.
mkdir bare && cp model/config.json bare
expect 0 "$TESSERA" train gpt2 --config bare/config.json --context 31 --quiet --json --data text.jsonl --val text.jsonl \
  --batch 2 --steps 3 --tokenizer "$data/gpt2"
same "$tokens" "$(digest)" "--tokenizer and the folder's own"

# refuse LINE OPTION…: exit code 6 (or $code) and that one line.
refuse() {
  local line=$1
  shift
  expect "${code:-6}" "$TESSERA" train gpt2 --config model/config.json --context 31 --batch 2 --steps 1 --quiet "$@"
  [ "$(wc -l <err)" = 1 ] && grep -Eq "$line" err || fail "expected one line '$line', got: $(cat err)"
}
(cat samples.jsonl && echo '{"text": "a"}') >mixed.jsonl
refuse 'mixed.jsonl: document 61 is a text, those before it are not' --data mixed.jsonl
echo '{"prompt": "a"}' >half.jsonl
refuse 'half.jsonl: line 1: expected an object with a "text", or with a "prompt" and a "completion"' --data half.jsonl
echo '{"prompt": [{"role": "user"}], "completion": "b"}' >chat.jsonl
refuse 'chat.jsonl: line 1: expected an object with a "text", or with a "prompt" and a "completion"' --data chat.jsonl
sed 's/"completion": "/"completion": "\\u0000/' samples.jsonl >null.jsonl
refuse 'null.jsonl: line 1' --data null.jsonl
long=$(printf 'shard %.0s' $(seq 60))
echo "{\"prompt\": \"$long\", \"completion\": \"a\"}" >long.jsonl
refuse 'long.jsonl: no completion of 1 samples has a place in 32 tokens: --context' --data long.jsonl
cat samples.jsonl long.jsonl >some.jsonl
expect 0 "$TESSERA" train gpt2 --config model/config.json --context 31 --batch 2 --steps 1 --quiet --data some.jsonl
one_line err "tessera: warning: some.jsonl: 1 of 61 samples are left out: with a context of 31 their completion has no place"
code=3 refuse "val is '1.5', expected a path, or a share between 0 and 1" --data more.jsonl --val 1.5
refuse "nowhere: No such file" --data more.jsonl --val nowhere
refuse "nowhere/tokenizer.json: No such file" --data more.jsonl --tokenizer nowhere
rm -r bare && mkdir bare && sed 's/"vocab_size":600/"vocab_size":256/' model/config.json >bare/config.json
expect 6 "$TESSERA" train gpt2 --config bare/config.json --context 31 --batch 2 --steps 1 --quiet --data text.jsonl
grep -q 'text.jsonl: lines of JSON, and no tokenizer: --tokenizer must name one' err || fail "no tokenizer: $(cat err)"
expect 3 "$TESSERA" train gpt2 --config bare/config.json --context 31 --batch 2 --steps 1 --quiet --data tokens --pack
one_line err "tessera: error: --pack is on, but no tokenizer names the token that ends a document: --tokenizer"
echo "lines of JSON, completions, packing, what is held out: the same means on any ranks"
