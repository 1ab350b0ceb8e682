#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# slow: 7200 KILLS=1000
# SIGKILL of all ranks at random instants of a run that saves after each step. After each kill: what is there verifies or is
# no checkpoint; nothing is lost that was reported as saved; the next start removes what was left. At the end the digest is
# that of a run that nothing happened to. And ranks that return from main without tess_close leave a whole checkpoint.
# KILLS: how often (8; test_checkpoint_kill_slow: 1,000); SEED: other instants. One in eight is from the start on, within
# 0.2 s; the others are within 0.1 s, or 0.8 s, of a first step, however long a busy machine takes to it.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
kills=${KILLS:-8} lost=0 loaded=0 torn=0 left=0
model="convbn --image-size 15 --hidden 8 --batch 2 --threads 1 --quiet --deterministic -n 2" # its learning rate does not depend on --steps
RANDOM=${SEED:-7}
newest() { local d; d=$(ls -d run/step-*/manifest.json 2>/dev/null | sort -V | tail -n 1); d=${d#run/step-}; echo $((10#0${d%%/*})); }
stepped() { grep -qsa '"event":"step"' life.json || gone "$pid"; }
kill_all() { # the launcher and its ranks, which are its children
  local ranks
  ranks=$(cat "/proc/$pid/task/$pid/children" 2>/dev/null) || true
  kill -KILL $ranks "$pid" 2>/dev/null || true
  wait "$pid" 2>/dev/null || true
  within 10 none_left || fail "processes left after kill $i"
}
for ((i = 0; i < kills; i++)); do
  resume=(); [ "$(newest)" = 0 ] || resume=(--resume run)
  rm -f life.json
  "$TESSERA" train $model --steps 1000000 --save run --save-every 1 --keep 2 "${resume[@]}" --json=life.json >out 2>err & pid=$!
  if [ $((i % 8)) = 7 ]; then
    sleep "0.$((RANDOM % 10 + 10))"
  else
    within 60 stepped || fail "kill $i: no step: $(cat err)"
    sleep "0.$((i % 2 ? RANDOM % 8 : 0))$((RANDOM % 10))$((RANDOM % 10))"
  fi
  kill_all
  ! grep -q "error: run/.*\(wrong\|torn\|damaged\)" err || fail "kill $i: $(cat err)"
  said=$(grep -a '"event":"checkpoint"' life.json 2>/dev/null | sed -nE 's/.*"step":([0-9]+),.*\}$/\1/p' | tail -n 1)
  [ "$(newest)" -ge "${said:-0}" ] || { lost=$((lost + 1)); echo "kill $i: step $said was saved, $(newest) is there"; }
  [ -z "$(ls -d run/*/*.tmp 2>/dev/null)" ] && [ "$(ls -d run/step-* 2>/dev/null | wc -l)" = "$(ls run/step-*/manifest.json 2>/dev/null | wc -l)" ] || torn=$((torn + 1))
  [ "$(newest)" = 0 ] && continue
  "$TESSERA" ckpt verify run/step-* >verified 2>&1 || {
    for d in run/step-*; do [ ! -e "$d/manifest.json" ] || "$TESSERA" ckpt verify "$d" >verified 2>&1 || { lost=$((lost + 1)); cat verified; }; done
  }
  loaded=$((loaded + 1))
  if [ $((i % 20)) = 19 ] || [ $i = $((kills - 1)) ]; then # what a next start that is left alone leaves
    expect 0 "$TESSERA" train $model --steps $(($(newest) + 1)) --save run --keep 2 --resume run
    [ -z "$(find run -name '*.tmp')" ] && [ "$(ls run | wc -l)" -le 2 ] || { left=$((left + 1)); echo "left: $(find run)"; }
    for d in run/*; do [ "$(ls "$d" | wc -l)" = 3 ] || { left=$((left + 1)); echo "left in $d: $(ls "$d")"; }; done
  fi
done
[ $loaded -gt 0 ] || fail "no kill found a checkpoint"
end=$(($(newest) + 3))
expect 0 "$TESSERA" train $model --steps $end --resume run --json=again.json
expect 0 "$TESSERA" train $model --steps $end --json=whole.json
[ "$(digest again.json)" = "$(digest whole.json)" ] || fail "another digest than $end steps that nothing happened to"
echo "$kills kills in $end steps, $torn of which left a save unfinished; $loaded times there were checkpoints to go on from;" \
  "lost or wrong: $lost, left over after the next start: $left, digest that of an undisturbed run"
[ $((lost + left)) = 0 ] || fail "of $kills kills"
[ $kills -lt 100 ] || [ $torn -gt $((kills / 3)) ] || fail "only $torn of $kills kills left a save unfinished"

for ranks in 1 2 3; do
  rm -rf left
  TESSERA_LOG=error expect 0 "$TESSERA" run -n $ranks --no-prefix -- "$BUILD/tests/e2e/declare_probe" options.checkpoint=1 save=left leave=1
  expect 0 "$TESSERA" ckpt verify left/step-000001
done
