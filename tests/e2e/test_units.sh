#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# --units half: the halves of a layer are blocks and units of their own. The peak is the planned one, and lower; a checkpoint of
# either goes on as the other. That the bits are those of whole layers, in cells of the matrix: test_model_cells.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1
number() { sed -n "/\"event\":\"summary\"/s/.*\"$1\":\([0-9]*\).*/\1/p" out; }
text() { sed -n "/\"event\":\"summary\"/s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" out; }
brief=$(brief_text) bf16=
[ ! -f "$BUILD/plugins/libtessera-precision-bf16.so" ] || bf16=bf16

# run OPTION…: trains; the peak is the planned one.
run() {
  expect 0 "$TESSERA" train "$@" --quiet --json
  peak=$(number peak_device_bytes)
  [ -n "$peak" ] && [ "$peak" = "$(number planned_peak_device_bytes)" ] || fail "peak $peak, planned $(number planned_peak_device_bytes): $*"
  [ "$(number step_allocations)" = 0 ] || fail "a step allocates: $*"
}

# Less, where a layer's parameters and gradient count.
for precision in fp32 $bf16; do
  for activations in keep recompute; do
    common="gpt -n 2 $brief --layers 4 --width 128 --context 32 --batch 2 --steps 2 --precision $precision --activations $activations"
    run $common
    whole=$peak
    run $common --units half
    [ "$peak" -lt "$whole" ] || fail "$precision, $activations: halves take $peak bytes, whole layers $whole"
    expect 0 "$TESSERA" plan gpt -n 2 --layers 4 --width 128 --context 32 --batch 2 --precision $precision \
      --activations $activations --units half --json
    grep -q "\"planned_peak_device_bytes\":$peak," out || fail "plan says another peak than $peak: $(cat out)"
  done
done

# Dropout's masks, a text written position by position, and a checkpoint, are those of whole layers.
common="gpt $brief --layers 2 --width 32 --heads 2 --context 32 --batch 2"
for units in layer half; do
  expect 0 "$TESSERA" train $common --steps 2 --units $units --sample 20 --save $units --json=summary
  sed -n '/^a sample of what it writes/,/^gpt, 1 rank/p' out > sample_$units
  [ "$(wc -l < sample_$units)" -ge 3 ] || fail "no sample: $(cat out)"
  grep -o '"params_digest":"[0-9a-f]*"' summary > digest_$units
done
cmp -s sample_layer sample_half || fail "another text: $(cat sample_layer sample_half)"
cmp -s digest_layer digest_half || fail "another digest"
run $common --steps 4 --resume layer
digest=$(text params_digest)
run $common --steps 4 --units half --resume layer
[ "$(text params_digest)" = "$digest" ] || fail "a checkpoint of whole layers went on to other bits as halves"
run $common --steps 4 --resume half
[ "$(text params_digest)" = "$digest" ] || fail "a checkpoint of halves went on to other bits as whole layers"

# A program that declares such blocks is planned as what it is.
expect 0 "$TESSERA" plan $common --units half -n 2 --json
want=$(grep -o '"planned_peak_device_bytes":[0-9]*' out)
expect 0 "$TESSERA" plan -n 2 --json -- "$TESSERA" train $common --units half --steps 1 --quiet
[ "$(grep -o '"planned_peak_device_bytes":[0-9]*' out)" = "$want" ] || fail "as a program: $(cat out), expected $want"

expect 2 "$TESSERA" train gpt --units third --steps 1
grep -q "units.*third.*layer.*half" err || fail "$(cat err)"
expect 2 "$TESSERA" train mnist --units half --steps 1
