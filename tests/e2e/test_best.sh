#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# Evaluations steer a run: --patience ends it where the losses say so, --keep-best keeps the best checkpoint beside the
# newest, ckpt list and prune know it, and a run that goes on, or loses a rank, decides as one that was never interrupted.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skip: comm-shm is not built here"; exit 77; }
export TESSERA_LOG=warning TESSERA_THREADS=1 TESSERA_COMM=shm
# text SEED: 2,250 bytes of 24 words, then 250 of 24 others from the same letters, which are held out: their loss falls
# while letters are learned and rises while words are.
text() {
  awk -v x="$1" 'function r(n) { x = x * 16807 % 2147483647; return x % n }
    BEGIN {
      for (i = 0; i < 48; i++) for (k = 2 + r(4); k > 0; k--) w[i] = w[i] substr("abcdefghijkl", 1 + r(12), 1)
      for (i = 0; i < 2500; i += length(s)) printf "%s", s = w[r(24) + 24 * (i >= 2250)] " "
    }' | head -c 2500
}
text 2 >text.txt
tiny=(gpt --data text.txt --layers 1 --heads 2 --width 32 --context 16 --batch 16 --sample 0 --schedule constant --warmup 0 --lr 0.005)
run() { expect 0 "$TESSERA" train "${tiny[@]}" --steps 120 --eval-every 6 --json=run.json "$@"; }
losses() { sed -n 's/.*"event":"validation","step":\([0-9]*\),"loss":\([^,]*\),.*/\1 \2/p' "$1"; }
# stop K: from the losses, "where the run ends, the best step, its loss".
stop() { awk -v k="$1" 'NR == 1 || $2 < best { best = $2; at = $1; n = 0; end = $1; next } { end = $1 } ++n == k { exit } END { print end, at, best }' all; }

# The held-out loss rises after a while: the last step is not the best, nor is patience that long.
run --quiet
losses run.json >all
[ "$(wc -l <all)" = 20 ] && [ "$(head -n 2 all | cut -d' ' -f1 | xargs)" = "6 12" ] || fail "evaluations: $(cat all)"
read -r end best loss <<<"$(stop 3)"
[ "$best" -gt 6 ] && [ "$end" = $((best + 18)) ] && [ "$end" -lt 120 ] || fail "nothing to show with these losses: $(cat all)"
[ "$(summary best_step run.json) $(summary ended_by_patience run.json)" = "$(sort -k2g all | head -n 1 | cut -d' ' -f1) false" ] ||
  fail "without patience: $(tail -n 1 run.json)"

run --patience 3
[ "$(summary steps run.json) $(summary best_step run.json) $(summary best_loss run.json) $(summary ended_by_patience run.json)" = "$end $best $loss true" ] ||
  fail "patience: $(tail -n 1 run.json), expected $end $best $loss"
losses run.json | cmp - <(head -n $((end / 6)) all) || fail "patience changes the losses"
has_line out "step $end: the end, since 3 evaluations have brought nothing below [0-9.]+, the loss of step $best \(--patience\)"

# Kept: the newest, and the best; it does not count when it is among them.
kept() { (cd "$1" && echo step-*); }
step() { printf 'step-%06d' "$1"; }
run --quiet --patience 3 --save kept --keep-best --keep 1
[ "$(kept kept)" = "$(step "$best") $(step "$end")" ] || fail "kept: $(kept kept)"
expect 0 "$TESSERA" ckpt list kept
grep -q "^kept/$(step "$best")  .*, validation loss [0-9.]*, the best\$" out && grep -q "^kept/$(step "$end")  .*, validation loss [0-9.]*\$" out ||
  fail "ckpt list: $(cat out)"
expect 0 "$TESSERA" ckpt list kept --json
[ "$(sed -n 's/.*"step":\([0-9]*\),.*"score":\([^,]*\),"best":true.*/\1 \2/p' out)" = "$best $loss" ] || fail "ckpt list --json: $(cat out)"
expect 0 "$TESSERA" ckpt verify kept
run --quiet --save every --save-every 6 --keep-best --keep 0 --patience 3
expect 0 "$TESSERA" ckpt prune every --keep 2 --quiet
[ "$(kept every)" = "$(step "$best") $(step $((end - 6))) $(step "$end")" ] || fail "pruned to: $(kept every)"

# The best one loads and has that loss; the manifest of a run without --keep-best is that of before.
expect 0 "$TESSERA" train "${tiny[@]}" --steps 0 --resume "kept/$(step "$best")" --quiet --json
[ "$(sed -n 's/.*"event":"validation".*"loss":\([^,]*\),.*/\1/p' out)" = "$loss" ] || fail "the best has another loss: $(cat out)"
grep -q '"version":3' "kept/$(step "$best")/manifest.json" || fail "version of a manifest with a score"
run --quiet --save plain
grep -q '"version":2' plain/step-000120/manifest.json || fail "version of a manifest without"

# Gone on with: the same end, on the way and after it; with more patience it goes further.
expect 0 "$TESSERA" train "${tiny[@]}" --steps $((best + 6)) --eval-every 6 --save half --keep-best --keep 1 --quiet
[ "$(kept half)" = "$(step "$best") $(step $((best + 6)))" ] || fail "half: $(kept half)"
run --quiet --resume half --save half --keep-best --keep 1 --patience 3
[ "$(summary steps run.json) $(summary best_step run.json) $(summary best_loss run.json)" = "$end $best $loss" ] || fail "gone on: $(tail -n 1 run.json)"
[ "$(kept half)" = "$(step "$best") $(step "$end")" ] || fail "gone on: $(kept half)"
run --quiet --resume half --patience 3
[ "$(summary steps run.json) $(summary ended_by_patience run.json)" = "$end true" ] || fail "after its end: $(tail -n 1 run.json)"
run --quiet --resume half --patience 4
[ "$(summary steps run.json)" -gt "$end" ] || fail "more patience: $(tail -n 1 run.json)"
# Other data: what was best before is no measure.
text 3 >other.txt
run --quiet --resume half --data other.txt --patience 30
[ "$(summary best_step run.json)" -gt "$end" ] || fail "other data: $(tail -n 1 run.json)"

# Nor when only what is held out is another, the last tenth.
(head -c 2250 text.txt && tail -c 250 other.txt) >held.txt
run --quiet --resume half --data held.txt --patience 30
[ "$(summary best_step run.json)" -gt "$end" ] || fail "other held-out data: $(tail -n 1 run.json)"

# Two ranks, of which one is replaced by a process that knows of no evaluation: they end together, as two that stay.
two=("${tiny[@]}" -n 2 --batch 8 --accum 8 --deterministic --steps 120 --eval-every 6 --patience 3 --quiet --json=two.json)
expect 0 "$TESSERA" train "${two[@]}"
want="$(summary steps two.json) $(summary best_step two.json) $(summary best_loss two.json) $(summary params_digest two.json)"
[ "${want%% *}" -lt 120 ] || fail "two ranks: patience is long: $want"
past=$(($(summary best_step two.json) / 6 + 1)) # evaluations after which only those who remember know the best
seen() { [ "$(losses two.json 2>/dev/null | wc -l)" -ge $past ] || gone $pid; }
# loses HEAD-OR-TAIL: the process of rank 0, or of rank 1, until there is a recovery; the run may end before the death.
loses() {
  local try recoveries=0
  for ((try = 0; try < 5 && recoveries == 0; try++)); do
    rm two.json
    "$TESSERA" train "${two[@]}" --mirror 2 --tensorboard "board.$1.$try" --watch >out 2>err &
    pid=$!
    within 30 seen || fail "no evaluations: $(cat err)"
    kill -KILL "$(pgrep -P $pid | "$1" -n 1)" 2>/dev/null || true
    ends $pid 60
    [ $code = 0 ] || continue
    recoveries=$(summary recoveries two.json)
    [ "$(summary steps two.json) $(summary best_step two.json) $(summary best_loss two.json) $(summary params_digest two.json)" = "$want" ] ||
      fail "$1: with a rank lost: $(tail -n 1 two.json), expected $want"
  done
  [ "$recoveries" -ge 1 ] || fail "$1: no recovery: $(cat err)"
  files=$(ls "board.$1.$((try - 1))" | wc -l)
}
loses tail
[ "$files" = 1 ] || fail "event files of a run that lost rank 1: $files"
loses head
[ "$files" = 2 ] || fail "event files of a run that lost rank 0: $files"

refused() { # LINE OPTION…
  expect 3 "$TESSERA" train "${@:2}"
  one_line err "tessera: error: $1"
}
export TESSERA_PATIENCE=2
refused "patience is set, but linear has no data that is held out" linear
unset TESSERA_PATIENCE
refused "keep-best is set, but no checkpoint is saved: it needs --save DIR" "${tiny[@]}" --keep-best
nothing_left
