#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 1200
# Ranks are killed and nobody takes their place: those that are left go on with all microbatches of a step, cut their shards
# anew, and end with the digest of a run that nothing happened to. What cannot be is said in one line, before and after.
# ALL=1: every strategy, offload, precision and activations as well (test_recover_smaller_slow). FIRST=1: one death (mutations).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
gpt="gpt --layers 2 --heads 4 --width 128 --context 64 --batch 2 --threads 1 --quiet --deterministic --steps ${STEPS:-60}"
field() { grep '"event":"summary"' "$1" | tail -n 1 | sed -E "s/.*\"$2\":([^,}]*).*/\\1/"; }
digest() { grep -o '"params_digest":"[0-9a-f]*"' "$1" | tail -n 1; }
steps() { local n; n=$(grep -c '"event":"step"' run.json 2>/dev/null) || n=${n:-0}; echo "$n"; }
steps_after() { [ "$(steps)" -gt "$1" ]; }
goes_on() { steps_after "$1" || gone $pid; } # or has ended
process_of() { # rank, by the number that it began with
  local mine
  mine=$(grep -lzsx "TESSERA_TEST_MARK=$TESSERA_TEST_MARK" /proc/[0-9]*/environ) || [ -n "$mine" ] || return 1
  grep -lzsx "RANK=$1" $mine | sed -E 's,/proc/([0-9]+)/environ,\1,' | grep .
}
# deaths "RANK…" COMMAND…: one after another, each when the run has gone on.
deaths() {
  local ranks=$1 r at
  shift
  rm -f run.json
  "$@" --json=run.json >out 2>err & pid=$!
  within 300 steps_after 7 || fail "no step of: $* $(cat err)"
  for r in $ranks; do
    within 100 process_of "$r" >process || fail "rank $r does not run: $(cat err)"
    at=$(steps) # after the search, in which many go by
    kill -KILL "$(tail -n 1 process)" || fail "rank $r has ended: $(cat err)"
    within 300 goes_on $((at + 2)) || fail "no step after the death of rank $r: $(cat err)"
  done
  ends $pid 600
}
whole() { # OPTION…: the undisturbed run, once
  local name="whole $*"
  [ -e "$name" ] || expect 0 "$TESSERA" train $gpt "$@" --json="$name"
  cp "$name" whole.json
}
# smaller NAME LEFT "RANK…" RANKS OPTION…
smaller() {
  local name=$1 left=$2 ranks=$3 n=$4
  shift 4
  whole -n "$n" "$@"
  deaths "$ranks" env TESSERA_MIRROR=5 "$TESSERA" run --ranks "1:$n" --replacements 0 -- "$TESSERA" train $gpt "$@"
  [ $code = 0 ] || fail "$name: exit code $code: $(cat err)"
  [ "$(field run.json ranks)" = "$left" ] || fail "$name: ended with $(field run.json ranks) ranks: $(cat err)"
  [ "$(digest run.json)" = "$(digest whole.json)" ] || fail "$name: another digest: $(cat err)"
  [ "$(field run.json recoveries)" = "$(wc -w <<<"$ranks")" ] || fail "$name: $(field run.json recoveries) recoveries"
  for kind in host device; do
    [ "$(field run.json peak_${kind}_bytes)" = "$(field run.json planned_peak_${kind}_bytes)" ] ||
      fail "$name: $kind memory: $(field run.json peak_${kind}_bytes), planned $(field run.json planned_peak_${kind}_bytes)"
  done
  nothing_left
  echo "$name: $n to $left ranks, $(field run.json steps_repeated) steps repeated, $(field run.json seconds_lost) s lost"
}
if [ -n "${FIRST:-}" ]; then
  smaller "one death" 2 1 4
  exit 0
fi
smaller "two deaths, rank 0 first" 1 "0 1" 4
smaller "12 microbatches, 4 x 3" 3 2 4 --accum 3 --steps 30
smaller "8-bit states in blocks" 2 1 4 --optimizer adamw8bit --steps 30
if [ -n "${ALL:-}" ]; then
  for strategy in grad_op none hybrid:2 hybrid_grad_op:2; do smaller "strategy $strategy" 2 1 4 --strategy $strategy; done
  smaller "offload cpu" 2 0 4 --offload cpu
  smaller "precision bf16" 2 3 4 --precision bf16
  smaller "activations recompute" 2 2 4 --activations recompute --clip 0.5
  smaller "activations offload" 2 0 4 --activations offload --offload cpu
  smaller "wrap none" 2 1 4 --wrap none
  smaller "6 ranks, sync end" 4 "1" 6 --accum 2 --sync end
  [ ! -e "$(dirname "$TESSERA")/plugins/libtessera-comm-gloo.so" ] || TESSERA_COMM=gloo smaller "gloo" 1 "3 1" 4
fi

# A rank is replaced as long as --replacements lasts.
whole -n 4
deaths "1 1" env TESSERA_MIRROR=5 "$TESSERA" run --ranks 2:4 --replacements 1 -- "$TESSERA" train $gpt
[ $code = 0 ] && [ "$(field run.json ranks)" = 2 ] || fail "replaced once: exit code $code, $(cat err)"
grep -q 'another process takes its place (recovery 1)' err || fail "nobody was replaced: $(cat err)"
grep -q 'nobody takes its place: 2 of 4 ranks go on (recovery 2)' err || fail "not smaller: $(cat err)"
[ "$(digest run.json)" = "$(digest whole.json)" ] || fail "replaced once: another digest"

# 3 ranks do not divide 4 microbatches: said at the start, and again at the death, which ends the run.
deaths 2 env TESSERA_MIRROR=5 "$TESSERA" run --ranks 3:4 --replacements 0 -- "$TESSERA" train $gpt
[ $code = 5 ] || fail "3 of 4: exit code $code: $(cat err)"
[ "$(grep -c 'no smaller group could go on without a lost rank: 3 ranks do not divide the 4 microbatches' err)" = 1 ] || fail "3 of 4: $(cat err)"
# (TESSERA_RANKS_LEAST is how the ranks learn of MIN.)
grep -q 'rank 2 was killed by signal 9.*no smaller group of 3 ranks or more can go on' err || fail "3 of 4: $(cat err)"
# What would not fit its memory is planned, and not tried: 4 ranks fit, 2 do not.
need=$(field whole.json planned_peak_device_bytes)
deaths 2 env TESSERA_MIRROR=5 TESSERA_DEVICE_MEMORY=$((need + 2097152)) "$TESSERA" run --ranks 1:4 --replacements 0 -- "$TESSERA" train $gpt
[ $code = 5 ] || fail "budget: exit code $code: $(cat err)"
grep -q 'no smaller group could go on without a lost rank: a step needs' err || fail "budget: $(cat err)"
nothing_left
expect 2 "$TESSERA" run --ranks 2:4 --replacements many -- true
grep -q -- "--replacements is 'many', expected 0 to" err || fail "$(cat err)"
