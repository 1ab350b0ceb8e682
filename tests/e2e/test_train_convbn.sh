#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# convbn on one rank to three: one digest per number of ranks over strategies, wrap policies and recomputation, bytes as
# planned, and the loss with the running statistics the same whether forward ran once or twice; they are saved and read
# back; bf16.
. "$SOURCE/tests/e2e/lib.sh"
most=3
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || most=1
train() { expect 0 "$TESSERA" train convbn --image-size 20 --hidden 16 --lr 0.01 "$@" --json=run.json; }
planned() {
  [ "$(summary peak_device_bytes run.json)" = "$(summary planned_peak_device_bytes run.json)" ] ||
    fail "$*: peak $(summary peak_device_bytes run.json), planned $(summary planned_peak_device_bytes run.json)"
  [ "$SANITIZE" ] || [ "$(summary step_allocations run.json)" = 0 ] || fail "$*: $(summary step_allocations run.json) allocations"
}

# With scopes each BatchNorm is a unit inside another.
expect 0 "$TESSERA" plan convbn -n 2 --json
nested=$(sed -n 's/.*"event":"unit".*"name":"\([a-z]*\.[0-9]*\)".*/\1/p' out | tr '\n' ' ')
[ "$nested" = "stem.1 blocks.1 blocks.4 blocks.7 " ] || fail "units inside units: $nested"

for ranks in $(seq $most); do
  rm -f digests running
  for how in "" "--activations recompute" "--strategy grad_op" "--strategy none --activations recompute" "--wrap none" \
    "--wrap size:100"; do
    train -n "$ranks" $how
    planned "$ranks ranks $how"
    summary params_digest run.json >>digests
    grep "loss with the running statistics" out >>running || fail "no evaluation: $(cat out)"
  done
  [ "$(sort -u digests | wc -l)" = 1 ] || fail "$ranks ranks: digests differ: $(cat digests)"
  [ "$(sort -u running | wc -l)" = 1 ] || fail "$ranks ranks: recomputation moved the statistics: $(cat running)"
done

# A library's workspaces are scratch of the blocks, in the plan and its totals. What it allocates behind our back is small,
# and as much for images of four times the size.
if [ -z "$SANITIZE" ]; then
  for size in 32 64; do
    expect 0 "$TESSERA" train convbn --image-size $size -n 1 --batch 2 --threads 1 --steps 4 --json=run.json
    planned "images of $size"
    sed -n 's/.*"library_allocations":{\(.*\)},"peak_resident.*/\1/p' run.json >libraries.$size
    bytes=$(grep -o '"bytes":[0-9]*' libraries.$size | awk -F: '{ sum += $2 } END { print sum + 0 }')
    [ "$bytes" -le 65536 ] || fail "libraries allocate $bytes bytes in three steps: $(cat libraries.$size)"
    "$TESSERA" plan convbn --image-size $size -n 1 --batch 2 --threads 1 --json 2>/dev/null | grep '"event":"plan"' |
      sed 's/.*"categories":{"device":{[^}]*"temporary":\([0-9]*\).*/\1/' >scratch.$size
  done
  cmp -s libraries.32 libraries.64 || fail "a library's own memory grows with the images: $(cat libraries.*)"
  [ "$(cat scratch.64)" -gt $((2 * $(cat scratch.32))) ] || fail "scratch does not grow with the images: $(cat scratch.*)"
fi

# What was saved holds the running statistics: with a rate of 0 and no batch to move them they are what they were.
train -n 1 --export saved --steps 1
grep -aq '"stem.1.running_mean"' saved/model.safetensors || fail "running statistics were not saved"
train -n "$most" --resume saved --lr 0 --steps 1
digest=$(summary params_digest run.json)
train -n 1 --resume saved --lr 0 --steps 2
[ "$digest" = "$(summary params_digest run.json)" ] || fail "resumed parameters differ"

if [ -e "$BUILD/plugins/libtessera-precision-bf16.so" ]; then
  train -n "$most" --precision bf16
  planned bf16
  digest=$(summary params_digest run.json)
  train -n "$most" --precision bf16 --activations recompute --wrap none
  [ "$digest" = "$(summary params_digest run.json)" ] || fail "bf16 digests differ"
fi
expect 2 "$TESSERA" train convbn --image-size 2
one_line err "tessera train: --image-size is '2', expected an integer from 3 to 4096"
echo "convbn on 1 to $most ranks: one digest each, bytes as planned"
