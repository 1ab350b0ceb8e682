#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# Audits: another rank repeats what a block computes (TESSERA_AUDIT). Bits are flipped through /proc/PID/mem in a stopped rank: in
# gathered copies, inputs, activations, outputs and gradients. With 1/1 every flip that changes a digest of parameters is found
# in its step; three ranks name the wrong one. Without flips nothing is found, bytes are as planned and digests those of
# a run without audits. COUNT: flips per cell and phase, 1 unless given. SEED: which.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
program="$BUILD/tests/support/flips"
export TESSERA_DETERMINISTIC=1 FLIPS_BLOCKS=1
seed=${SEED:-1} flips=0 found=0
ranks() { "$TESSERA" run -n "$1" --no-prefix --bind none "${@:2}" -- "$program"; }
clean() { rm -rf places places.part pid.* saved; }
# flip N RANK:PHASE OPTION…: in a call of a block that follows from the seed, unless call says it.
flip() {
  clean
  seed=$((seed + 1)) flips=$((flips + 1)) code=0
  FLIPS_CALL=${call:-$((seed % 10))} FLIPS="$2" "$program" drive $seed -1 "$TESSERA" run -n "$1" --no-prefix --bind none "${@:3}" -- "$program" >out 2>err || code=$?
  [ $code != 77 ] || { echo "memory of another process cannot be written here"; exit 77; }
  grep -q '^flipped: ' err || fail "no bit was flipped: $cell $2 seed $seed: $(cat err)"
}
# caught N PHASE…: found in the third step, or without any effect.
caught() {
  local n=$1 phase k rank verdict
  for phase in "${@:2}"; do
    for ((k = 0; k < ${COUNT:-1}; k++)); do
      rank=$((seed % n))
      [ $phase != kept ] || local call=$((5 + seed % 3)) # backward of the last three blocks
      flip "$n" "$rank:$phase"
      unset call
      verdict="rank $rank is wrong"
      [ "$n" != 2 ] || verdict="\(one of the two\|rank $rank\) is wrong"
      if [ $code = 5 ] && grep -q "step 3, unit [^,]*, \(forward\|backward\) of block \"[^\"]*\": the .* differs: .*$verdict (TESSERA_AUDIT)" err; then
        [ "$(grep -c '^called back: step 3, .* rank' err)" = "$n" ] || fail "callbacks: $cell $phase seed $seed: $(cat err)"
        [ "$(wc -l <out)" = 2 ] || fail "a step with the flipped bit was seen: $cell $phase seed $seed: $(cat out)"
        found=$((found + 1))
      elif [ $code != 0 ] || ! cmp -s out whole; then
        fail "not found: $cell $phase seed $seed, call $((seed % 10)), exit code $code: $(cat err out)"
      fi
    done
  done
}
# in_cell N PHASES VARIABLE=VALUE…
in_cell() {
  local n=$1 phases=$2 pair
  cell="-n $n ${*:3}"
  for pair in "${@:3}"; do export "${pair?}"; done
  clean && expect 0 ranks "$n" && mv out whole
  TESSERA_AUDIT=1/1 expect 0 ranks "$n"
  cmp -s out whole || fail "another digest with audits: $cell: $(cat out)"
  TESSERA_AUDIT=1/1 caught "$n" $phases
  for pair in "${@:3}"; do unset "${pair%%=*}"; done
}
all="gathered input made"
in_cell 2 "$all kept"
in_cell 3 "$all made kept"
in_cell 3 "$all" TESSERA_ACCUM=2 TESSERA_STRATEGY=grad_op
in_cell 4 "$all kept kept" TESSERA_STRATEGY=hybrid:2 TESSERA_ACTIVATIONS=recompute # its gradients alone would not tell
in_cell 3 "$all" TESSERA_OFFLOAD=cpu TESSERA_ACTIVATIONS=offload TESSERA_WRAP=none
in_cell 2 "$all" TESSERA_STRATEGY=none TESSERA_COMM=shm
[ $found -ge $((flips / 2)) ] || fail "most of $flips flips had no effect: $found found"

# With 1/K a flip is found when the turn of its call comes, and only then: two calls of ten with 1/5. Calls are numbered in order of time;
# turns by block, forward before backward. The third step is pass 2.
cell="1/5" turns=0
for call in 0 1 2 3 4 5 6 7 8 9; do
  slot=$((call < 5 ? 2 * call : 2 * (9 - call) + 1)) want=0
  [ $(((2 + slot) % 5)) != 0 ] || want=5
  TESSERA_AUDIT=1/5 flip 3 "1:made"
  [ $code = $want ] || fail "call $call, with the turn of $slot: exit code $code, expected $want: $(cat err out)"
  turns=$((turns + (want == 5)))
done
unset call
[ $turns = 2 ] || fail "$turns turns"

# A run that stops starts again from its checkpoint; one with images goes on in place of the wrong rank. Both end with the undisturbed digest.
for call in 1 7; do
  for n in 2 3; do
    cell="restart -n $n" && unset FLIPS_MIRROR
    export FLIPS_SAVE=1
    clean && expect 0 ranks $n && mv out whole
    TESSERA_AUDIT=1/1 flip $n "1:made" --restarts 1
    [ $code = 0 ] && [ "$(tail -n 1 out)" = "$(tail -n 1 whole)" ] && grep -q 'is wrong (TESSERA_AUDIT)' err || fail "$cell: $code $(cat out err)"
    unset FLIPS_SAVE
  done
  cell="recover" n=3
  export FLIPS_MIRROR=1 TESSERA_ON_AUDIT=recover
  TESSERA_AUDIT=1/1 flip $n "1:made"
  [ $code = 0 ] && [ "$(tail -n 1 out)" = "$(tail -n 1 whole)" ] || fail "$cell: $code $(cat out err)"
  grep -q 'rank 1 is wrong (TESSERA_AUDIT): going on without it (TESSERA_ON_AUDIT=recover)' err || fail "$cell: $(cat err)"
  cell="recover, undecided" n=2
  TESSERA_AUDIT=1/1 flip $n "1:made"
  [ $code = 5 ] && grep -q 'one of the two is wrong' err || fail "$cell: $code $(cat out err)"
  unset FLIPS_MIRROR TESSERA_ON_AUDIT
done
unset call

# A run of a model: the bytes, the digest and the count. Its last step is the third; blocks have two turns in each of them.
train() { expect 0 "$TESSERA" train gpt --batch 1 --steps 3 --sample 0 --data text --quiet --json --deterministic "$@"; }
yes 'to be, or not to be: that is the question' | head -n 200 >text
member() { sed -n "/\"event\":\"summary\"/s/.*\"$1\":\"\{0,1\}\([^,\"}]*\).*/\1/p" out; }
for n in 2 3; do
  train -n $n
  digest=$(member params_digest)
  [ -z "$(member audits)" ] || fail "audits without the option: $(cat out)"
  for share in 1/1 1/8; do
    train -n $n --audit $share
    [ "$(member params_digest)" = "$digest" ] || fail "another digest with --audit $share: $(cat out)"
    [ "$(member peak_device_bytes)" = "$(member planned_peak_device_bytes)" ] || fail "bytes: $(cat out)"
    [ "$(member audit_failures)" = 0 ] || fail "a false alarm: $(cat out err)"
    [ $share = 1/8 ] || [ "$(member audits)" = $((3 * 12 * n)) ] || fail "$(member audits) audits on $n ranks: $(cat out)"
  done
done

# What cannot be audited is refused in one line.
(unset FLIPS_BLOCKS && TESSERA_AUDIT=1/1 expect 3 ranks 2)
grep -q 'TESSERA_AUDIT=1/1: this program declares no blocks (tess_block_add)' err || fail "$(cat err)"
expect 3 "$TESSERA" train gpt --batch 1 --steps 1 --data text --quiet --audit 1/2
grep -q 'TESSERA_AUDIT=1/2: one rank has no other that computes again; take two' err || fail "$(cat err)"
for bad in 1/0 2/3 x 1/ 1/9x; do
  TESSERA_AUDIT=$bad expect 3 ranks 2
  grep -q "TESSERA_AUDIT is '$bad', expected 0 (off) or 1/K" err || fail "$bad: $(cat err)"
done
nothing_left
echo "$flips flips, $found of them had an effect and were found"
