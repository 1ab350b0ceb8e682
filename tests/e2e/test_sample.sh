#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# What a language model writes at the end: the same bytes whatever the ranks, from the seed, after a prompt; one pass of one
# position for each token; and what is wrong with a prompt is one line.
. "$SOURCE/tests/e2e/lib.sh"
unset TESSERA_SAMPLE
data=$SOURCE/tests/reference/data
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
gpt="gpt $(brief_text) --layers 2 --heads 2 --width 32 --batch 2 --steps 4 --quiet --json"
head -c 20000 /dev/zero | tr '\0' 'a' >a.txt
tr -d '\r' <"$SOURCE/README.md" >text.txt

# write OPTION…: trains and leaves the tokens in $tokens, the passes in $passes.
write() {
  expect 0 "$TESSERA" train "$@"
  [ "$(grep -c '"event":"sample"' out)" = 1 ] || fail "no sample: $(cat out)"
  tokens=$(sed -n '/"event":"sample"/s/.*"tokens":\[\([0-9,]*\)\].*/\1/p' out)
  passes=$(sed -n '/"event":"sample"/s/.*"passes":\([0-9]*\).*/\1/p' out)
}
count() { tr ',' '\n' <<<"$1" | wc -l; }

# As many passes as tokens while the context lasts: 1 before the first token, 49 after.
write $gpt --context 64 --accum 2 --sample 50
one=$tokens
[ "$(count "$one")" = 50 ] && [ "$passes" = 50 ] || fail "$(count "$one") tokens, $passes passes, expected 50 and 50"
text=$(sed -n '/"event":"sample"/s/.*"text":"\(.*\)","tokens".*/\1/p' out)
[ -n "$text" ] || fail "no text: $(cat out)"
if [ -e "$BUILD/plugins/libtessera-comm-shm.so" ]; then
  write $gpt --context 64 -n 2 --sample 50
  [ "$tokens" = "$one" ] || fail "two ranks write $tokens, one $one"
fi
write $gpt --context 64 --accum 2 --sample 50 --seed 2
[ "$tokens" != "$one" ] || fail "another seed, the same text"

# A full context begins anew with its later half: never more than two passes for a token.
write $gpt --context 16 --sample 100
[ "$(count "$tokens")" = 100 ] && [ "$passes" -gt 100 ] && [ "$passes" -lt 200 ] || fail "$passes passes for 100 tokens"

# Temperature 0 and top-k 1 take the likeliest; a model of nothing but 'a' writes nothing else.
write $gpt --context 16 --sample 20 --temperature 0
greedy=$tokens
write $gpt --context 16 --sample 20 --top-k 1 --temperature 3
[ "$tokens" = "$greedy" ] || fail "top-k 1 writes $tokens, temperature 0 $greedy"
write gpt --layers 1 --heads 2 --width 16 --batch 4 --context 16 --steps 60 --lr 0.02 --quiet --json --data a.txt --sample 12 --prompt aa
[ "$tokens" = "$(printf '97,%.0s' {1..11})97" ] || fail "after a text of a's: $tokens"
write $gpt --context 64 --sample 5 --prompt "The model"
[ "$passes" = 13 ] || fail "$passes passes for a prompt of 9 bytes and 5 more, expected 13"

# Tokens: the prompt is their numbers. Text as data: bytes. Keys and values are booked.
llama="llama --token-bits 16 --model $data/hf-llama --context 16 --batch 2 --steps 1 --quiet --json"
head -c 4000 /dev/zero >t.bin
write $llama --data t.bin --sample 6 --prompt 3,5,7
ids=$tokens
[ "$(count "$ids")" = 6 ] && [ "$passes" = 8 ] || fail "$ids in $passes passes"
write $llama --data t.bin --sample 6 --prompt "3, 5 7" --precision bf16
[ "$(count "$tokens")" = 6 ] || fail "bf16: $tokens"
write gpt2 --layers 1 --heads 2 --width 16 --context 16 --batch 2 --steps 1 --quiet --json --data text.txt --sample 4 --prompt hello
grep -q '"event":"sample","text":"' out || fail "gpt2 on text: $(cat out)"
expect 0 "$TESSERA" train $llama --data t.bin
! grep -q '"event":"sample"' out || fail "a sample that nobody asked for"

# refuse PATTERN CODE OPTION…: one line.
refuse() {
  local pattern=$1 code=$2
  shift 2
  expect "$code" "$TESSERA" train "$@"
  [ "$(wc -l <err)" = 1 ] && grep -qE -- "$pattern" err || fail "expected one line with '$pattern': $(cat err)"
}
refuse "prompt: 'hello' is no token: " 3 $llama --data t.bin --sample 2 --prompt hello
refuse "prompt: '5x' is no token: " 3 $llama --data t.bin --sample 2 --prompt 4,5x
refuse "prompt: token 64, but the model's vocabulary has 64" 3 $llama --data t.bin --sample 2 --prompt 1,64
refuse "prompt: token -1, but" 3 $llama --data t.bin --sample 2 --prompt=-1
refuse "prompt is empty" 3 $llama --data t.bin --sample 2 --prompt ","
refuse "prompt is empty" 2 $gpt --context 16 --sample 2 --prompt ""
refuse "sample" 2 mnist --sample 2
refuse "sample" 2 $gpt --sample -1
refuse "temperature" 2 $gpt --temperature warm
refuse "top-k" 2 $gpt --top-k many
echo "samples: one pass for each token, the same on two ranks, prompts checked"
