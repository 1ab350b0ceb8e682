#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# fp16 with a scale of losses: bytes as planned, one digest in every strategy and with offload, losses near those of fp32. A
# scale that is too large leaves steps out, the same ones on any number of ranks, and is shown. A run that goes on, from a
# checkpoint, after a death or on fewer ranks, has the same scale and the same bits.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-precision-fp16.so" ] || { echo "skipped: no precision-fp16 in this build"; exit 77; }
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: no comm-gloo in this build"; exit 77; }
gpt="gpt $(brief_text) --batch 2 --layers 2 --heads 2 --width 32 --context 16 --steps 12 --threads 1 --seed 3 --quiet"
planned() { # FILE WORDS
  for domain in device host; do
    [ "$(summary peak_${domain}_bytes "$1")" = "$(summary planned_peak_${domain}_bytes "$1")" ] || fail "$domain bytes: $2"
  done
  [ "$(summary step_allocations "$1")" = 0 ] || fail "$(summary step_allocations "$1") allocations in steps: $2"
}
steps() { sed -n 's/.*"event":"step".*"loss_scale":\([0-9.]*\),"overflows":\([0-9]*\).*/\1 \2/p' "$1"; }
train() { # FILE OPTIONS
  local file=$1
  shift
  expect 0 "$TESSERA" train $gpt "$@" --json="$file"
}

# One digest, and losses near those of fp32.
rm -f digests
copies() { "$TESSERA" plan gpt --layers 2 --heads 2 --width 32 --context 16 -n 2 --strategy none --precision fp16 --quiet --json "$@" | grep -o '"parameter_copy": *[0-9]*' | head -n 1; }
[ -z "$(copies)" ] && [ "$(copies --low-copy | grep -o '[0-9]*$')" -gt 0 ] || fail "copies in fp16: $(copies --low-copy)"
for optimizer in lion adamw; do
  train run.json -n 2 --precision fp16:init=1024 --clip 0 --optimizer $optimizer
  train copy.json -n 2 --precision fp16:init=1024 --clip 0 --optimizer $optimizer --low-copy
  planned copy.json "$optimizer with copies"
  [ "$(summary params_digest run.json) $(summary loss run.json)" = "$(summary params_digest copy.json) $(summary loss copy.json)" ] ||
    fail "$optimizer: copies change the result"
done
for options in "" "--low-copy" "--low-copy --offload cpu" "--low-copy --strategy none" "--strategy grad_op" "--strategy none" "--offload cpu" "--activations recompute" "--wrap none" "--strict" "--clip 1e30"; do
  train run.json -n 2 --precision fp16:init=1024 --clip 0 $options
  planned run.json "$options"
  summary params_digest run.json >>digests
done
[ "$(sort -u digests | wc -l)" = 1 ] || fail "digests differ: $(cat digests)"
[ "$(summary loss_scale run.json) $(summary overflows run.json)" = "1024 0" ] || fail "the scale: $(tail -n 1 run.json)"
train fp32.json -n 2 --clip 0
awk -v a="$(summary loss run.json)" -v b="$(summary loss fp32.json)" 'BEGIN { exit !(a != b && a / b - 1 < 2e-3 && b / a - 1 < 2e-3) }' ||
  fail "the loss is $(summary loss run.json), in fp32 $(summary loss fp32.json)"
grep -q '"loss_scale"' fp32.json && fail "a scale in fp32"
for model in mnist llama; do
  small="$model $(if [ $model = mnist ]; then brief_digits; else brief_text; fi) --batch 2 --steps 4 --threads 1 --quiet --optimizer sgd --lr 0.01"
  [ $model != llama ] || small="$small --layers 1 --heads 2 --width 32 --context 16"
  expect 0 "$TESSERA" train $small -n 2 --precision fp16:init=1024 --json=run.json
  planned run.json "$model"
  expect 0 "$TESSERA" train $small -n 2 --json=fp32.json
  awk -v a="$(summary loss run.json)" -v b="$(summary loss fp32.json)" 'BEGIN { exit !(a / b - 1 < 2e-2 && b / a - 1 < 2e-2) }' ||
    fail "$model: the loss is $(summary loss run.json), in fp32 $(summary loss fp32.json)"
done
expect 0 "$TESSERA" train linear -n 2 --precision fp16:init=64
grep -q "both equal the closed form" out || fail "linear in fp16: $(cat out)"

# Too large a scale, which grows again: the same on any number of ranks.
large="--precision fp16:init=16777216,every=3 --deterministic --sync each"
train one.json -n 1 --accum 4 $large
[ "$(summary overflows one.json)" -gt 2 ] && [ "$(summary steps_skipped one.json)" = "$(summary overflows one.json)" ] ||
  fail "steps left out: $(tail -n 1 one.json)"
steps one.json | awk '$1 > last && NR > 1 { grown = 1 } { last = $1 } END { exit !grown }' || fail "the scale never grew: $(steps one.json)"
for options in "-n 2 --accum 2" "-n 4 --low-copy" "-n 2 --accum 2 --strategy none --offload cpu"; do
  train other.json $options $large --csv run.csv
  planned other.json "$options"
  [ "$(steps one.json)" = "$(steps other.json)" ] || fail "$options: other scales: $(steps other.json)"
  [ "$(summary params_digest one.json)" = "$(summary params_digest other.json)" ] || fail "$options: another digest"
done
cut -d, -f 9,10 run.csv | tail -n +2 | tr , ' ' | awk 'NF == 2' >csv
[ "$(cat csv)" = "$(steps one.json)" ] || fail "--csv: $(cat run.csv)"
expect 0 "$TESSERA" train ${gpt/--quiet/} -n 1 $large --tensorboard board --report=page.html
grep -q 'scale [0-9]*, [0-9]* skipped' out && grep -q 'loss scale  *[0-9]*, and [0-9]* steps left out' out || fail "no word of the scale: $(cat out)"
grep -aq train/loss_scale board/* && grep -aq train/overflows board/* || fail "no scale in TensorBoard's file"
grep -q 'Loss scale' page.html || fail "no curve of the scale"

# At the least scale it is the gradients' fault, and --on-nan decides.
expect 1 "$TESSERA" train $gpt -n 2 --precision fp16:init=16777216,least=16777216
grep -q 'step 1: the gradient norm is .* with losses times 16777216, the least scale: rank [01], unit ' err || fail "at the least scale: $(cat err)"
expect 0 "$TESSERA" train $gpt -n 2 --precision fp16:init=16777216,least=16777216 --on-nan skip

# Gone on with from a checkpoint of step 5, on two ranks and on one.
train saved.json -n 2 --accum 2 $large --steps 5 --save run --save-every 5
for options in "-n 2 --accum 2" "-n 4"; do
  train resumed.json $options $large --resume run
  [ "$(summary params_digest one.json)" = "$(summary params_digest resumed.json)" ] || fail "$options: another digest after a resume"
  [ "$(steps one.json | tail -n +6)" = "$(steps resumed.json)" ] || fail "$options: scales after a resume: $(steps resumed.json)"
  [ "$(summary overflows one.json)" = "$(summary overflows resumed.json)" ] || fail "$options: $(tail -n 1 resumed.json)"
done

# A rank is killed: another process takes its place, or nobody does. The scale goes back with the rest.
long="--steps 300 -n 4 --precision fp16:init=1048576,every=7 --deterministic"
train whole.json $long
[ "$(summary overflows whole.json)" -gt 5 ] || fail "few overflows: $(tail -n 1 whole.json)"
want="$(summary params_digest whole.json) $(summary loss_scale whole.json) $(summary overflows whole.json)"
seen() { [ -e run.json ] && [ "$(grep -c '"event":"step"' run.json)" -ge 20 ] || gone $pid; }
killed() { # COMMAND…, until the death comes in time
  local recoveries=0 try
  for ((try = 0; try < 5 && recoveries == 0; try++)); do
    rm -f run.json
    "$@" $gpt $long --json=run.json >out 2>err & pid=$!
    within 100 seen || fail "no steps: $(cat err)"
    kill -KILL "$(pgrep -P $pid | tail -n 1)" 2>/dev/null || true
    ends $pid 100
    [ $code = 0 ] || fail "$*: exit code $code: $(cat err)"
    recoveries=$(summary recoveries run.json)
    [ "$(summary params_digest run.json) $(summary loss_scale run.json) $(summary overflows run.json)" = "$want" ] ||
      fail "$*: $(tail -n 1 run.json), expected $want: $(cat err)"
    planned run.json "$*"
  done
  [ "$recoveries" -ge 1 ] || fail "$*: no recovery"
}
if [ -e "$BUILD/plugins/libtessera-comm-shm.so" ]; then
  gpt="$gpt --comm shm"
  long=${long/-n 4/}
  killed env TESSERA_MIRROR=5 "$TESSERA" run -n 4 -- "$TESSERA" train
  killed env TESSERA_MIRROR=5 "$TESSERA" run --ranks 1:4 --replacements 0 -- "$TESSERA" train
fi

expect 3 "$TESSERA" train linear -n 1 --precision fp16:init=3
grep -q 'TESSERA_PRECISION=fp16:init=3: a loss scale from 3, .* expected powers of two' err || fail "init=3: $(cat err)"
echo "fp16: bytes as planned, one digest, the same scales on any number of ranks and after a resume"
