#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# Checkpoints of runs on GPUs over NCCL, on the doubles: the snapshot lies in page-locked memory, and comes from the device or,
# with offload, from the host. They verify, go on to the losses and the digest of an unbroken run, and memory is as planned.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
gpt="gpt $(brief_text) --batch 2 --layers 1 --heads 2 --width 16 --context 8 --steps 3 --device cuda"
losses() { grep '"event":"step"' "$1" | sed -nE 's/.*"step":([23]),.*"loss":([^,}]*).*/\1 \2/p'; }
train() { # train JSON OPTION…
  expect 0 on_double "$TESSERA" train $gpt "${@:2}" --json="$1"
  for domain in device host; do
    [ "$(summary peak_${domain}_bytes "$1")" = "$(summary planned_peak_${domain}_bytes "$1")" ] ||
      fail "${*:2}: $domain memory: $(summary peak_${domain}_bytes "$1"), planned $(summary planned_peak_${domain}_bytes "$1")"
  done
}
equal() { # equal WHAT
  [ "$(summary params_digest whole.json)" = "$(summary params_digest again.json)" ] || fail "digest of $1"
  [ "$(losses whole.json | wc -l)" = 2 ] && [ "$(losses whole.json)" = "$(losses again.json)" ] || fail "losses of $1"
}
count=0
for options in "-n 2 --offload cpu --clip 0.5" "-n 2 --strategy none --precision bf16" "-n 1 --checkpoint sync"; do
  rm -rf run
  train whole.json $options --save run --save-every 1 --keep 0
  expect 0 "$TESSERA" ckpt verify run/step-000001 run/step-000002 run/step-000003
  train again.json $options --resume run/step-000001
  equal "$options"
  count=$((count + 1))
done

# What GPUs have saved, the CPU reads, and the other way round, to the same values: a step of rate 0 leaves them.
for from in cuda cpu; do
  to=cpu
  [ $from = cuda ] || to=cuda
  rm -rf run
  expect 0 on_double "$TESSERA" train $gpt -n 2 --device $from --save run --json=whole.json
  expect 0 on_double "$TESSERA" train $gpt -n 1 --device $to --resume run --steps 4 --lr 0 --json=again.json
  [ -n "$(summary params_digest whole.json)" ] && [ "$(summary params_digest whole.json)" = "$(summary params_digest again.json)" ] ||
    fail "from $from to $to: digest $(summary params_digest whole.json), then $(summary params_digest again.json)"
  count=$((count + 1))
done
echo "$count runs on the doubles: the same bits"
