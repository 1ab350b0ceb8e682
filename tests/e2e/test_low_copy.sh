#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# --low-copy: the optimizer writes the bf16 shards that gathers send. The bits are those of a run without, the bytes those
# planned, on one rank and on several, from checkpoints either way, and after ranks were lost, whether others take their
# place or not.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
brief=$(brief_text)
gpt="gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2 --threads 1 --precision bf16"
train() { # FILE OPTION…
  "$TESSERA" train $gpt $brief --steps 6 --quiet --json="$1" "${@:2}" >out 2>&1 || fail "train ${*:2}: $(tail -n 3 out)"
}
same() { [ "$(summary params_digest whole.json)" = "$(summary params_digest "$1")" ] || fail "another digest: $2"; }
planned() { # FILE WHAT
  local domain
  for domain in device host; do
    [ "$(summary peak_${domain}_bytes "$1")" = "$(summary planned_peak_${domain}_bytes "$1")" ] || fail "$domain bytes: $2"
  done
}
for options in "-n 1" "-n 2" "-n 2 --offload cpu" "-n 4 --strategy hybrid:2 --accum 2" "-n 3 --strategy none --clip 0.5"; do
  train whole.json $options
  train copy.json $options --low-copy
  same copy.json "$options" && planned copy.json "$options"
  [ "$(summary loss whole.json)" = "$(summary loss copy.json)" ] || fail "another loss: $options"
done
train whole.json -n 2 --save run --save-every 3
train copy.json -n 2 --low-copy --save copied --save-every 3
for from in run copied; do
  train again.json -n 2 --low-copy --strategy none --resume $from/step-000003
  same again.json "$from, with copies"
done
train again.json -n 2 --resume copied/step-000003
same again.json "copied, without copies"

# The plan has the line: 2 bytes for each element of the shard.
line() { "$TESSERA" plan $gpt -n 2 "$@" | grep -i 'parameter copy' || true; }
[ -z "$(line)" ] && [ -n "$(line --low-copy)" ] && [ -z "$(line --low-copy --precision fp32)" ] || fail "the plan: $(line --low-copy)"
category() { "$TESSERA" plan $gpt -n 2 --strategy none --quiet --json "$@" | grep -o '"parameter_copy": *[0-9]*' | head -n 1; }
[ "$(category --low-copy | grep -o '[0-9]*$')" -gt 0 ] && [ -z "$(category)" ] || fail "the plan in JSON: $(category --low-copy)"

# Ranks are lost two steps after the last image, so that the copies of those that are left are newer than their masters.
# A pass of the program deviates, and may then need memory beside the plan.
export TESSERA_PRECISION=bf16 TESSERA_DETERMINISTIC=1
program=$BUILD/tests/support/recover
run() { # RECOVERIES OPTION…: sets digest
  rm -rf marks && mkdir marks
  RECOVER_MARKS=marks timeout 200 "$TESSERA" run --no-prefix --bind none "${@:2}" -- "$program" >out 2>err || true
  digest=$(sed -nE "s/^digest=([0-9a-f]{16}) recoveries=$1 planned=(equal|differ)\$/\1/p" out)
  [ ${#digest} = 16 ] && [ "$(find marks -type f | wc -l)" = "$1" ] || fail "run ${*:2}: $(cat out err)"
}
lost() { # OPTION…
  TESSERA_LOW_COPY=1 RECOVER_KILLS=1:6:backward run 1 "$@"
  [ "$digest" = "$want" ] || fail "another digest after a loss: $TESSERA_STRATEGY $*"
}
for strategy in full none; do
  export TESSERA_STRATEGY=$strategy
  run 0 -n 2
  want=$digest
  lost -n 2
done
lost --ranks 1:2 --replacements 0
nothing_left
echo "copies are never old"
