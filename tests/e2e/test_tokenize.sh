#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# Text to tokens: those that the Hugging Face tokenizers give for every script, control characters and broken UTF-8
# (tests/reference/make_tokenizers.py), whatever the threads; training and samples on text; what is refused, in one line.
. "$SOURCE/tests/e2e/lib.sh"
data=$SOURCE/tests/reference/data/tokenizers
export TESSERA_LOG=warning TESSERA_DETERMINISTIC=1
"$TESSERA" --version | grep 'left out' | grep -q 'tokenizers (PCRE2)' && { echo "skipped: this build has no PCRE2"; exit 77; }

lacks() { "$TESSERA" --version | grep 'left out' | grep -q "$1"; }
names="gpt2 llama3 digits llama2 gemma mistral metaspace crossing"
lacks utf8proc || names="$names qwen"
lacks sentencepiece || names="$names pieces unigram"
for name in $names; do
  expect 0 "$TESSERA" tokenize "$data/$name" --out $name --jobs 3 "$data/documents"
  cmp $name/train_000000.bin "$data/$name.bin" || fail "$name: other tokens than the reference's"
done
expect 0 "$TESSERA" tokenize "$data/gpt2" --out one --jobs 1 "$data/documents"
cmp one/train_000000.bin "$data/gpt2.bin" || fail "one thread: other tokens than three"
expect 0 "$TESSERA" tokenize "$data/gpt2" --tokenizer "$data/llama2/tokenizer.json" --out other "$data/documents"
cmp other/train_000000.bin "$data/llama2.bin" || fail "--tokenizer: other tokens than by its folder"

# Parts of the documents by two processes at once: their files, one behind the other, are those of one.
ls "$data/documents" | awk -v d="$data/documents/" '{ print d $0 >(NR <= 40 ? "first" : "second") }'
xargs -a first "$TESSERA" tokenize "$data/gpt2" --out p1 >p1.log 2>&1 & pid=$!
xargs -a second "$TESSERA" tokenize "$data/gpt2" --out p2 >p2.log 2>&1 || fail "the second process: $(cat p2.log)"
wait $pid || fail "the first process: $(cat p1.log)"
cat <(tail -c +1025 p1/train_000000.bin) <(tail -c +1025 p2/train_000000.bin) | cmp - <(tail -c +1025 "$data/gpt2.bin") ||
  fail "two processes: other tokens than one"

# A file by itself, a line of JSON and a held-out part are the same documents.
printf 'Shards meet\n"here" \\ 12' >a.txt
printf 'again, \303\251t\303\251' >b.txt
printf '{"id": 1, "text": "Shards meet\\n\\"here\\" \\\\ 12"}\n\n{"text": "again, \\u00e9t\\u00e9"}\n' >lines.jsonl
expect 0 "$TESSERA" tokenize "$data/gpt2" --out files --val b.txt --val a.txt a.txt b.txt
expect 0 "$TESSERA" tokenize "$data/gpt2" --out lines lines.jsonl
cmp files/train_000000.bin lines/train_000000.bin || fail "lines of JSON: other tokens than files"
[ "$(stat -c %s files/val_000000.bin)" = "$(stat -c %s files/train_000000.bin)" ] || fail "the held-out part has another size"
! cmp -s files/val_000000.bin files/train_000000.bin || fail "--val: not the order that was given"
expect 0 "$TESSERA" tokenize "$data/gpt2" --end none --out bare a.txt b.txt
[ $(($(stat -c %s files/train_000000.bin) - $(stat -c %s bare/train_000000.bin))) = 4 ] || fail "--end none: not two tokens fewer"

# Training on text is training on its tokens, and a sample is text.
mkdir model && cp "$data/gpt2/"* model
echo '{"model_type":"gpt2","vocab_size":600,"n_positions":32,"n_embd":16,"n_layer":1,"n_head":2,"layer_norm_epsilon":1e-5,
"resid_pdrop":0.0,"embd_pdrop":0.0,"attn_pdrop":0.0,"activation_function":"gelu_new"}' >model/config.json
cat "$SOURCE"/docs/train.md "$SOURCE"/docs/quickstart.md "$SOURCE"/README.md >text.txt 2>/dev/null || cp "$SOURCE/README.md" text.txt
expect 0 "$TESSERA" tokenize model --out tokens text.txt
train() { expect 0 "$TESSERA" train gpt2 -n 2 --config model/config.json --steps 3 --batch 2 --quiet --json "$@"; }
digest() { sed -n '/"event":"summary"/s/.*"params_digest":"\([0-9a-f]*\)".*/\1/p' out; }
train --data tokens
tokens=$(digest)
train --data text.txt --sample 5 --prompt "The ranks"
[ -n "$tokens" ] && [ "$tokens" = "$(digest)" ] || fail "text trains other parameters than its tokens: $tokens and $(digest)"
grep -q '"event":"sample","text":"' out || fail "the sample is no text: $(grep sample out)"
train --data tokens --sample 5 --prompt 5,6 # numbers are tokens still

# refuse LINE ARGUMENT…: exit code 6 (or $code) and that one line.
refuse() {
  local line=$1
  shift
  expect "${code:-6}" "$TESSERA" "$@"
  [ "$(wc -l <err)" = 1 ] && grep -Eq "$line" err || fail "expected one line '$line', got: $(cat err)"
}
# changed SED: the tokenizer of GPT-2's form with that change, in changed/.
changed() { mkdir -p changed && sed "$1" "$data/gpt2/tokenizer.json" >changed/tokenizer.json && cp "$data/gpt2/tokenizer_config.json" changed; }
refuse 'tokens/train_000000.bin exists: choose another --out' tokenize model --out tokens text.txt
refuse 'nowhere/tokenizer.json: No such file' tokenize nowhere --out t text.txt
refuse 'nowhere: No such file' tokenize model --out t nowhere
echo '{"texts": ""}' >bad.jsonl
refuse 'bad.jsonl: line 1: expected an object with a "text"' tokenize model --out t bad.jsonl
printf '{"text": "a"}\n{"text": "\\u0000"}\n' >bad.jsonl
refuse 'bad.jsonl: line 2: offset [0-9]+: expected no null character' tokenize model --out t bad.jsonl
echo '{"prompt": "a", "completion": "b"}' >bad.jsonl
refuse 'bad.jsonl: line 1: expected an object with a "text"$' tokenize model --out t bad.jsonl
mkdir held && : >held/val_000000.bin
refuse 'held/val_000000.bin exists: choose another --out' tokenize model --out held --val a.txt b.txt
[ ! -e held/train_000000.bin ] || fail "the held-out part was refused after the other was written"
changed 's/"type":"BPE"/"type":"WordPiece"/'
refuse "changed/tokenizer.json: the model 'WordPiece' is not read here" tokenize changed --out t text.txt
cp model/config.json changed
refuse "the model 'WordPiece' is not read here" train gpt2 --config changed/config.json --data text.txt
changed 's/"type":"ByteLevel","add_prefix_space"/"type":"Whitespace","add_prefix_space"/'
refuse "the pre_tokenizer 'Whitespace' is not read here" tokenize changed --out t text.txt
changed 's/"normalizer":null/"normalizer":{"type":"Lowercase"}/'
refuse "the normalizer 'Lowercase' is not read here" tokenize changed --out t text.txt
changed 's/"single_word":false/"single_word":true/'
refuse "an added token's 'single_word' is not read here" tokenize changed --out t text.txt
changed 's/"dropout":null/"dropout":0.1/'
refuse "the model's 'dropout' is not read here" tokenize changed --out t text.txt
changed 's/"!":1,//'
refuse "changed/tokenizer.json: (byte 33 has no token|merge [0-9]+ has or makes what is no token)" tokenize changed --out t text.txt
changed 's/"!":1,/"!":1,"zzz":1,/'
refuse "changed/tokenizer.json: two tokens have the number 1$" tokenize changed --out t text.txt
changed 's/"!":1,/"!":1,"!":599000,/'
refuse "a tokenizer's tokens 1 and 599000 are the same" tokenize changed --out t text.txt
changed 's/"!":1,/"!":1.5,/'
refuse "changed/tokenizer.json: offset [0-9]+: expected" tokenize changed --out t text.txt
changed 's/"!":1,/"!":4194304,/'
refuse "changed/tokenizer.json: token 4194304, expected 0 to" tokenize changed --out t text.txt
changed 's/"normalizer":null/"normalizer":[]/'
refuse "changed/tokenizer.json: its normalizer is not an object" tokenize changed --out t text.txt
changed $'s/<|endoftext|>"/\x80"/'
refuse "changed/tokenizer.json: it is not UTF-8" tokenize changed --out t text.txt
# added TOKEN…: added tokens of those contents and numbers, "<a>:600".
added() {
  local list= token
  for token in "$@"; do
    list="$list,{\"id\":${token##*:},\"content\":\"${token%:*}\"}"
  done
  changed "s/\"added_tokens\":\[[^]]*\]/\"added_tokens\":[${list#,}]/"
}
added '<|endoftext|>:0' '<a>:601' # which the Hugging Face tokenizers would call 600
refuse "added token '<a>' has the number 601, expected 600, the next one" tokenize changed --out t text.txt
added '<|endoftext|>:0' '<a>:1'
refuse "added token '<a>' has the number 1, expected 600" tokenize changed --out t text.txt
added '<|endoftext|>:0' '<a>:600' '<a>:600'
refuse "added token '<a>' (is there twice|has the number)" tokenize changed --out t text.txt
for pattern in '\\\\w+' '\\\\p{N}{1,3}+' '[a[b]]' '(?m:a.b)' '\\\\C' 'a*'; do
  changed 's/"pre_tokenizer":{/"pre_tokenizer":{"type":"Split","pattern":{"Regex":"'"$pattern"'"},"behavior":"Isolated"},"was":{/'
  refuse "a tokenizer's pattern is not read here: " tokenize changed --out t text.txt
done
# template SINGLE NUMBER: what stands around a text.
template() {
  changed 's/"post_processor":{[^}]*}/"post_processor":{"type":"TemplateProcessing","single":['"$1"'],"special_tokens":{"e":{"id":"e","ids":['"$2"']}}}/'
}
text='{"Sequence":{"id":"A"}}' special='{"SpecialToken":{"id":"e"}}'
template "$text,$special" 70000
refuse "a TemplateProcessing has token 70000, which there is not" tokenize changed --out t text.txt
template "$text,$text" 0
refuse "a TemplateProcessing has the text twice" tokenize changed --out t text.txt
template "$special" 0
refuse "a TemplateProcessing has no place for the text" tokenize changed --out t text.txt

# same TEXT IDS: the tokens of TEXT by changed/, as PyPI's tokenizers 0.23.3 gave them.
same() {
  rm -rf same && printf "$1" >same.txt
  expect 0 "$TESSERA" tokenize changed --out same --end none same.txt
  local ids=$(od -An -v -tu2 -j1024 same/train_000000.bin | tr -s ' \n' ' ')
  [ "$ids" = " $2 " ] || fail "tokens of '$1':$ids, expected $2"
}
changed 's/"added_tokens":\[[^]]*\]/"added_tokens":[{"id":0,"content":"<|endoftext|>"},{"id":600,"content":"<a>","rstrip":true},{"id":601,"content":" <b>"},{"id":602,"content":"  ","lstrip":true}]/'
same 'x<a> <b>y<a>  z' '88 600 601 89 600 90' # a token begins in the space that another takes; one is all of it
changed 's/"merges":\[\(.*\]\)\]/"merges":[\1,["Ġ","t"]]/'
same ' that to  t' '321 221 578 221 258' # of equal merges the last counts
if ! "$TESSERA" --version | grep 'left out' | grep -q utf8proc; then
  mkdir -p changed && cp "$data/qwen/"* changed
  sed -i 's/"added_tokens":\[[^]]*\]/"added_tokens":[{"id":0,"content":"<|endoftext|>"},{"id":600,"content":"A\\u030aq","normalized":true}]/' changed/tokenizer.json
  same 'x\303\205qA\314\212q' '88 600 600' # an added token is composed as the text is
fi
mkdir cut && head -c 9000 "$data/gpt2/tokenizer.json" >cut/tokenizer.json
refuse "cut/tokenizer.json: offset [0-9]+: expected" tokenize cut --out t text.txt
rm changed/tokenizer_config.json && cp "$data/gpt2/tokenizer.json" changed
code=3 refuse "changed names no token that ends a document: --end must be one" tokenize changed --out t text.txt
code=3 refuse "the tokenizer has no added token '<none>'" tokenize model --end '<none>' --out t text.txt
code=2 refuse "tessera tokenize: where to. --out DIR is missing" tokenize model text.txt
code=2 refuse "tessera tokenize: which TEXT" tokenize model
[ -z "$(find t -type f 2>/dev/null)" ] || fail "a refusal left a file: $(find t -type f)"
if [ -w /dev/full ]; then
  mkdir full && ln -s /dev/full full/train_000000.bin.tmp
  refuse "full/train_000000.bin.tmp: No space left on device" tokenize model --out full text.txt
fi
# Forms of words of characters that are not read.
form() { mkdir -p changed && sed "$2" "$data/$1/tokenizer.json" >changed/tokenizer.json; }
form llama2 's/"byte_fallback":true/"byte_fallback":false/'
refuse "a model without 'byte_fallback' is not read here" tokenize changed --out t text.txt
form llama2 's/"<0x41>":/"<0xxx>":/'
refuse "changed/tokenizer.json: byte 65 has no token" tokenize changed --out t text.txt
form llama2 's/"type":"Prepend","prepend":"[^"]*"/"type":"Prepend","prepend":"x"/'
refuse "the normalizer 'Prepend' is not read here" tokenize changed --out t text.txt
form llama2 's/{"type":"Replace"[^}]*}[^}]*}/{"type":"NFC"}/'
refuse "without a Replace the normalizer 'Prepend' is not read here|libutf8proc-dev" tokenize changed --out t text.txt
form llama2 's/"pre_tokenizer":null/"pre_tokenizer":{"type":"ByteLevel"}/'
refuse "with U.2581 for blanks the pre_tokenizer 'ByteLevel' is not read here" tokenize changed --out t text.txt
form mistral 's/"prepend_scheme":"first"/"prepend_scheme":"second"/'
refuse "with these members the pre_tokenizer 'Metaspace' is not read here" tokenize changed --out t text.txt
changed 's/"byte_fallback":false/"byte_fallback":true/'
refuse "the model's 'byte_fallback' is not read here" tokenize changed --out t text.txt
mkdir piece
if lacks sentencepiece; then
  cp "$data/pieces/tokenizer.model" piece
  code=3 refuse "piece/tokenizer.model: this build reads no sentencepiece models: .*libsentencepiece-dev" tokenize piece --out t text.txt
else
  for bytes in 0 1 5000 10000; do
    head -c $bytes "$data/pieces/tokenizer.model" >piece/tokenizer.model
    refuse "piece/tokenizer.model: no sentencepiece model: " tokenize piece --out t text.txt
  done
  cp "$data/pieces/tokenizer.model" piece # a config may leave out what begins a text
  echo '{"add_bos_token": false, "eos_token": "</s>"}' >piece/tokenizer_config.json
  printf a >a.txt
  expect 0 "$TESSERA" tokenize piece --out bare-piece a.txt
  expect 0 "$TESSERA" tokenize "$data/pieces" --out piece-tokens a.txt
  [ $(($(stat -c %s piece-tokens/train_000000.bin) - $(stat -c %s bare-piece/train_000000.bin))) = 2 ] || fail "add_bos_token"
fi
echo "equal tokens for: $names"
