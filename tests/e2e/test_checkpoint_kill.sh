#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# SIGKILL of all ranks at random instants of a run that saves after each step: what is there verifies or is no checkpoint,
# the newest loads, and the next start leaves nothing else. KILLS: how often (8; test_checkpoint_kill_slow: 1,000).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
kills=${KILLS:-8} gpt="gpt --layers 2 --heads 2 --width 64 --context 16 --batch 1 --threads 1 --quiet" lost=0 loaded=0
RANDOM=${SEED:-7}
for ((i = 0; i < kills; i++)); do
  resume=(); [ "$(ls run 2>/dev/null | wc -l)" = 0 ] || resume=(--resume run)
  setsid "$TESSERA" train $gpt -n 2 --steps 100000 --save run --save-every 1 --keep 2 "${resume[@]}" >out 2>err & pid=$!
  sleep "0.$((RANDOM % 60 + 20))"
  for p in /proc/[0-9]*; do
    grep -zqsx "TESSERA_TEST_MARK=$TESSERA_TEST_MARK" "$p/environ" 2>/dev/null && grep -zqs '^WORLD_SIZE=' "$p/environ" 2>/dev/null &&
      kill -KILL "${p#/proc/}" 2>/dev/null || true
  done
  kill -KILL $pid 2>/dev/null || true
  wait $pid 2>/dev/null || true
  within 5 none_left || fail "processes left after kill $i"
  ! grep -q "error: run/.*\(wrong\|torn\|damaged\)" err || fail "kill $i: $(cat err)"
  if [ -d run ] && ls run/*/manifest.json >/dev/null 2>&1; then
    "$TESSERA" ckpt verify run >verified 2>&1 || { lost=$((lost + 1)); cat verified; }
    loaded=$((loaded + 1))
  fi
done
[ $lost = 0 ] || fail "$lost of $kills kills left a checkpoint that does not verify"
last=$(ls run | sort -V | tail -n 1); step=$((10#${last#step-}))
expect 0 "$TESSERA" train $gpt -n 2 --steps $((step + 3)) --save run --keep 2 --resume run
[ "$(ls run | wc -l)" -le 2 ] && [ -z "$(find run -name '*.tmp')" ] || fail "left: $(find run)"
for d in run/*; do [ "$(ls "$d" | wc -l)" = 3 ] || fail "left in $d: $(ls "$d")"; done
echo "$kills kills, $loaded with checkpoints, all of which verified"
