#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# What a user or a file gets wrong ends in one line that names it, and in the exit code of its kind.
set -u
failures=0
# refuse CODE PATTERN COMMAND...: exit code CODE, one line on standard error that matches PATTERN, nothing else.
refuse() {
  local code=$1 pattern=$2 found
  shift 2
  timeout 60 "$@" >out 2>err </dev/null
  found=$?
  if [ $found != "$code" ]; then
    echo "FAILED: exit code $found, expected $code: $*"; cat err
  elif [ "$(wc -l <err)" != 1 ]; then
    echo "FAILED: $(wc -l <err) lines, expected 1: $*"; cat err
  elif ! grep -qE -- "$pattern" err; then
    echo "FAILED: no '$pattern' in: $(cat err)"
  else
    return
  fi
  failures=$((failures + 1))
}
train() { local code=$1 pattern=$2; shift 2; refuse "$code" "$pattern" "$TESSERA" train "$@"; }

# the command line
refuse 2 "unknown command 'trian'; did you mean 'train'" "$TESSERA" trian
refuse 2 "no command" "$TESSERA"
train 2 "no model given"
train 2 "unknown model 'minst'; did you mean 'mnist'" minst
train 2 "one model at a time" mnist gpt
train 2 "unknown option '--optimiser'; did you mean '--optimizer'" mnist --optimiser sgd
train 2 "'--steps' needs a value" mnist --steps
train 2 "--ranks is '0', expected" mnist -n 0
train 2 "--ranks is '2:4', expected one number; .tessera run --ranks 2:4 -- PROGRAM. goes on with fewer" mnist -n 2:4
train 2 "--batch is 'x', expected" mnist --batch x
train 3 "optimizer plugin 'sdg' not found; did you mean sgd?" mnist --optimizer sdg
train 2 "--device-memory is '10 kg', expected" mnist --device-memory "10 kg"
# the environment
refuse 3 "TESSERA_LR is 'x', expected" env TESSERA_LR=x "$TESSERA" train linear
for command in "train linear" "plan gpt" "tune gpt" "bench comm"; do
  refuse 3 "TESSERA_RANKS is '2:4', expected one number; .tessera run --ranks 2:4 -- PROGRAM. goes on with fewer" env TESSERA_RANKS=2:4 "$TESSERA" $command
done
refuse 3 "TESSERA_BATCH is '0', expected" env TESSERA_BATCH=0 "$TESSERA" train linear
refuse 3 "TESSERA_SYNC is 'often', expected" env TESSERA_SYNC=often "$TESSERA" train linear
# settings that do not go together
train 3 "width 10 is not a multiple of heads 4" gpt --width 10
train 3 "only sgd has" mnist --momentum 0.9
train 2 "gpt takes no --epochs, only mnist" gpt --epochs 2
refuse 3 "gpt counts steps" env TESSERA_EPOCHS=2 "$TESSERA" train gpt
# what the engine refuses: once, though there are two ranks
train 3 "comm plugin 'nope' not found" linear -n 2 --comm nope
if [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ]; then
  train 3 "wrap plugin 'size'.*got \"x\"" linear -n 2 --wrap size:x
  train 3 "wrap plugin 'nope' not found" linear -n 2 --wrap nope
  train 3 "TESSERA_STRATEGY=half: expected" linear -n 2 --strategy half
  train 4 "needs [0-9]+ bytes of device memory.* allows 4194304" mnist -n 2 --batch 8 --device-memory 4MiB
fi
# data: one line, though every rank meets the same
export TESSERA_LOG=warning # "comm=auto picked …" is information
for ranks in 1 2; do
  [ $ranks = 1 ] || [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || continue
  mkdir -p empty
  train 6 "empty/train-images-idx3-ubyte: no such file" mnist -n $ranks --data empty
  train 6 "nowhere/train-images-idx3-ubyte: no such file" mnist -n $ranks --data nowhere
  printf '' >nothing.txt
  train 6 "nothing.txt: no text: 0 bytes" gpt -n $ranks --data nothing.txt
  printf 'too short' >short.txt
  train 6 "short.txt: 9 bytes of text, expected at least 650" gpt -n $ranks --data short.txt
  train 6 "nowhere: No such file" gpt -n $ranks --data nowhere
  train 6 "nowhere: No such file" linear -n $ranks --resume nowhere
  train 6 "--json=/nowhere/x: No such file" linear -n $ranks --json=/nowhere/x
  train 6 "--save $PWD/nothing.txt: cannot be made a directory" linear -n $ranks --quiet --save "$PWD/nothing.txt"
done
# IDX files: written here, wrong in one way each (the unit tests have the rest)
mkdir -p idx
bytes() { printf "$(printf '\\x%s' "$@")"; }
{ bytes 00 00 08 03 00 00 00 02 00 00 00 1c 00 00 00 1c; head -c 1568 /dev/zero; } >idx/train-images-idx3-ubyte
bytes 00 00 08 01 00 00 00 02 05 0a >idx/train-labels-idx1-ubyte
train 6 "train-labels-idx1-ubyte: offset 9: label 10, expected 0 to 9" mnist --data idx
head -c 1000 idx/train-images-idx3-ubyte >cut && mv cut idx/train-images-idx3-ubyte
train 6 "train-images-idx3-ubyte: offset 4: 2 items need 1584 bytes, the file holds at most 1000" mnist --data idx
# a full disk: one line, and no file is left
head -c 5000 "$0" >text.txt
mkdir -p full
refuse 6 "full/step-000001/data-1-00000-of-00001.safetensors: cannot write at offset [0-9]+: File too large" bash -c "ulimit -f 64; exec '$TESSERA' \
  train gpt --data text.txt --layers 1 --heads 2 --width 64 --context 16 --batch 1 --steps 1 --quiet --save full"
[ -z "$(ls full)" ] || { echo "FAILED: left behind: $(ls full)"; failures=$((failures + 1)); }

[ $failures = 0 ] || { echo "FAILED: $failures cases"; exit 1; }
echo "every mistake was named in one line"
