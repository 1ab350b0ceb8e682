#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# What is not finite on a GPU, on the doubles: found without a wait, in passes that are called and in recorded ones.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libcublas.so.13
seq 400 >text.txt # which no change of a document makes another
gpt="gpt --data text.txt --batch 2 --layers 1 --heads 1 --width 8 --context 8 --device cuda --sample 0 --quiet --threads 1"
diverges="--optimizer sgd --steps 40" # STEP of the first NaN by the rate
for graphs in 1 0; do
  export TESSERA_GRAPHS=$graphs
  for options in "-n 1 --clip 0" "-n 1 --clip 1e30" "-n 2 --clip 0" "-n 2 --clip 1e30" "-n 1 --clip 0 --offload cpu --precision bf16"; do
    expect 1 on_double "$TESSERA" train $gpt $diverges --lr 1e6 $options
    grep -Eq 'step 3( leaves values that are|: the gradient norm is) not finite: rank [01], unit embed.wte.weight: element [0-9]+ of parameter "embed.wte.weight" is nan' err ||
      fail "graphs $graphs, $options: $(cat err)"
    [ "$(grep -c 'error' err)" = 1 ] || fail "graphs $graphs, $options, more than one line: $(cat err)"
  done
  # Rates at which it takes until passes have been recorded: the same step is named.
  expect 1 on_double "$TESSERA" train $gpt $diverges --lr ${LATE:-30} --clip 0
  grep -o 'step [0-9]*' err | head -n 1 >step.$graphs
  expect 0 on_double "$TESSERA" train $gpt $diverges --lr 1e6 --clip 0 --on-nan skip --json=skip.json
  [ "$(summary steps_skipped skip.json)" = 38 ] || fail "graphs $graphs: $(summary steps_skipped skip.json) skipped"
  for domain in device host; do
    [ "$(summary peak_${domain}_bytes skip.json)" = "$(summary planned_peak_${domain}_bytes skip.json)" ] || fail "$domain bytes"
  done
done
cmp -s step.0 step.1 || fail "$(cat step.1) with graphs, $(cat step.0) without"
[ "$(grep -o '[0-9]*' step.0)" -ge 6 ] || fail "too early to be a recorded pass: $(cat step.0)"
