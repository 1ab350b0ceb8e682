#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 60
# Files that plan must refuse in one line, or take, and never wait for: odd names, FIFOs, parameters in no block, a tied
# head with a bias, f64.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error

# header FILE JSON: a safetensors header without data.
header() {
  local n=${#2} i bytes=
  for ((i = 0; i < 8; i++)); do bytes+=$(printf '\\x%02x' $((n >> 8 * i & 255))); done
  { printf "$bytes"; printf %s "$2"; } >"$1"
}
plan() { timeout 20 "$TESSERA" plan "$@"; }
refused() { # FILE PATTERN
  expect 6 plan "./$1"
  one_line <(grep -c . err) 1
  grep -Eq "^tessera: error: \./$1: $2" err || fail "$1: $(cat err)"
}

# Names with an empty part between dots.
for name in .a.b a..b a. . ..; do
  header odd.safetensors '{"'"$name"'":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
  refused odd.safetensors ".*: a part between its dots is empty"
  echo '{"tessera_model":1,"parameters":[{"name":"'"$name"'","shape":[4]}],"blocks":[{"name":""}]}' >odd.json
  refused odd.json ".*: a part between its dots is empty"
done

# Control characters never reach the terminal.
for escape in '\u001b[31m' '\u007f' '\u009b31m' '\n'; do
  header odd.safetensors '{"a'"$escape"'.w":{"dtype":"F32","shape":[4],"data_offsets":[0,16]}}'
  refused odd.safetensors '.*: its name holds a control character'
  echo '{"tessera_model":1,"parameters":[{"name":"a'"$escape"'.w","shape":[4]}],"blocks":[{"name":""}]}' >odd.json
  expect 6 plan ./odd.json
  if LC_ALL=C grep -q $'[\x01-\x08\x0b-\x1f\x7f]\|\xc2[\x80-\x9f]' out err; then fail "raw control characters: $(cat -v err)"; fi
done
expect 6 plan $'./\e[31mno.json'
if grep -q $'\e' err; then fail "an escape in a file's name is printed raw"; fi

mkfifo fifo.safetensors fifo.json fifo.index.json
refused fifo.safetensors 'not a file, expected a safetensors file'
refused fifo.json 'not a file, expected JSON'
refused fifo.index.json 'not a file, expected JSON'

echo '{"tessera_model":1,"parameters":[{"name":"a.w","shape":[64]},{"name":"b.w","shape":[64]}],"blocks":[{"name":"a"}]}' >in_none.json
refused in_none.json 'parameter "b\.w" lies in no declared scope'

# A tied head that has a bias of its own: the matrix once, the bias beside it.
mkdir tied
header tied/model.safetensors '{"model.embed_tokens.weight":{"dtype":"F32","shape":[32,16],"data_offsets":[0,2048]},
"model.layers.0.w":{"dtype":"F32","shape":[16,16],"data_offsets":[2048,3072]},
"lm_head.bias":{"dtype":"F32","shape":[64],"data_offsets":[3072,3328]}}'
echo '{"hidden_size":16,"num_attention_heads":2,"vocab_size":32,"num_hidden_layers":1,"tie_word_embeddings":true}' >tied/config.json
expect 0 plan tied --json
grep -q '"resting":{"device":{"sharded_parameter":3328,' out || fail "the tied head: $(cat out)"

for n in 1 2 3; do
  for comm in shm gloo; do
    [ -f "$BUILD/plugins/libtessera-comm-$comm.so" ] || fail "comm $comm is not built"
    echo '{"tessera_model":1,"parameters":[{"name":"a.w","shape":[64,6],"dtype":"F64"}],"blocks":[{"name":"a"}]}' >f64.json
    expect 0 plan ./f64.json -n $n --comm $([ $n = 1 ] && echo self || echo $comm) --json
    elems=$(((64 * 6 / n + 63) / 64 * 64))
    grep -q "\"resting\":{\"device\":{\"sharded_parameter\":$((8 * elems))," out || fail "f64 at $n ranks: $(cat out)"
  done
done
