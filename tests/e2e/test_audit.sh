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
. "$SOURCE/tests/support/flips.sh"
export TESSERA_DETERMINISTIC=1 FLIPS_BLOCKS=1
found=0
# The program hears by the callback, on each rank, what the message says. RANK AUDITOR REFEREE: whose they are.
called_back() {
  local line said
  [ "$(grep -c '^called back: step 3, ' err)" = "$n" ] || fail "callbacks: $cell seed $seed: $(cat err)"
  line=$(grep -m 1 '^called back: ' err)
  ! grep -q 'changed since forward' err || return 0
  said=$(sed -E 's/.*(step .*, unit .*, [a-z]*ward) of (.*), (.*): rank ([0-9]*) has (.*), auditor ([0-9]*) (.*); .*/\1 of block "\2": the \3 differs: .*rank \4 has \5.*rank \6 makes \7/' <<<"$line")
  grep -q -- "$said" err || fail "the callback says '$line': $cell seed $seed: $(cat err)"
  seen="$(sed -E 's/.*: rank (.*) has .*, auditor (.*) .*; referee (.*), wrong .*/\1 \2 \3/' <<<"$line")"
  [ "$n" = 2 ] && [[ $line == *"referee -1, wrong -1" ]] || [[ $line == *", wrong $rank" ]] || fail "the callback says '$line': $cell $rank"
}
# caught N PHASE…: found in the third step, or without any effect.
caught() {
  local n=$1 phase k rank verdict
  for phase in "${@:2}"; do
    for ((k = 0; k < ${COUNT:-1}; k++)); do
      rank=$((seed % n))
      [ $phase != kept ] || local call=$((5 + seed % 3)) # backward of the last three blocks
      flip "$n" -1 "$rank:$phase"
      unset call
      verdict="rank $rank is wrong"
      [ "$n" != 2 ] || verdict="\(one of the two\|rank $rank\) is wrong"
      if [ $code = 5 ] && grep -q "step 3, unit [^,]*, \(forward\|backward\) of block \"[^\"]*\": the .* differs: .*$verdict (TESSERA_AUDIT)" err; then
        called_back
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
  TESSERA_AUDIT=1/5 flip 3 -1 "1:made"
  [ $code = $want ] || fail "call $call, with the turn of $slot: exit code $code, expected $want: $(cat err out)"
  turns=$((turns + (want == 5)))
done
unset call
[ $turns = 2 ] || fail "$turns turns"

# With two microbatches per step a turn counts passes: the third step begins with pass 4.
cell="1/5, accum" n=3 rank=1
for call in 1 3; do
  want=0
  [ $(((4 + 2 * call) % 5)) != 0 ] || want=5
  TESSERA_ACCUM=2 TESSERA_AUDIT=1/5 flip $n -1 "1:made"
  [ $code = $want ] || fail "$cell: call $call: exit code $code, expected $want: $(cat err out)"
done
# Ten passes have ten calls each, of which three, two, two and three are due in passes of the four remainders.
TESSERA_ACCUM=2 TESSERA_AUDIT=1/4 expect 0 ranks 3
grep -q '^audits: 75, of which failed: 0$' err || fail "1/4 of two microbatches: $(cat err)"
# In the next round another rank repeats the work.
call=1
for step in 3 4; do
  cell="round $step" n=3
  FLIPS_STEP=$step TESSERA_AUDIT=1/1 flip $n -1 "1:made"
  auditor=$((step == 3 ? 2 : 0))
  [ $code = 5 ] && grep -q "rank $auditor makes [0-9a-f]* and rank $((2 - auditor)) agrees: rank 1 is wrong" err || fail "$cell: $code $(cat err out)"
done
# Changes of two gradients do not cancel, and an input that the whole pass reads may change in it.
cell="two" n=3 call=8
FLIPS_TWO=1 TESSERA_AUDIT=1/1 flip $n -1 "1:made"
[ $code = 5 ] && grep -q 'the gradient of its parameters differs: .*rank 1 is wrong (TESSERA_AUDIT)' err || fail "$cell: $code $(cat err out)"
cell="batch" call=7
TESSERA_AUDIT=1/1 flip $n -1 "1:batch"
[ $code = 5 ] && grep -q 'the input differs: rank 1 has it changed since forward: rank 1 is wrong (TESSERA_AUDIT)' err || fail "$cell: $code $(cat err out)"

# A run that stops starts again from its checkpoint; one with images goes on without the wrong rank, or with another process in
# its place. All end with the undisturbed digest. The wrong rank's last line and the launcher say why it ended.
rank=1
goes_on() {
  local why="step 3, unit [^,]*, .* of block .*: rank $rank is wrong (TESSERA_AUDIT)"
  [ $code = 0 ] && [ "$(tail -n 1 out)" = "$(tail -n 1 whole)" ] || fail "$cell: $code $(cat out err)"
  grep -q "$why: this rank ends itself (TESSERA_ON_AUDIT=recover)" err || fail "$cell: no last line: $(cat err)"
  grep -qF "$1" err && grep -q "rank $rank ended itself ($why)" err || fail "$cell: no line of the launcher: $(cat err)"
  [ $rank = 0 ] || grep -q "$why: going on without it (TESSERA_ON_AUDIT=recover)" err || fail "$cell: $(cat err)"
}
for way in 1 7; do
  call=$way
  for n in 2 3; do
    cell="restart -n $n" && unset FLIPS_MIRROR
    export FLIPS_SAVE=1
    clean && expect 0 ranks $n && mv out whole
    TESSERA_AUDIT=1/1 flip $n -1 "1:made" --restarts 1
    [ $code = 0 ] && [ "$(tail -n 1 out)" = "$(tail -n 1 whole)" ] && grep -q 'is wrong (TESSERA_AUDIT)' err || fail "$cell: $code $(cat out err)"
    unset FLIPS_SAVE
  done
  export FLIPS_MIRROR=1 TESSERA_ON_AUDIT=recover
  for rank in 0 1; do
    cell="recover without rank $rank" n=3
    TESSERA_AUDIT=1/1 flip $n -1 "$rank:made"
    goes_on "another process takes its place (recovery 1)"
    [ $rank = 0 ] || grep -q '^audits: [0-9]*, of which failed: 1$' err || fail "$cell: the count: $(cat err)"
  done
  cell="recover, fewer" n=4
  clean && expect 0 ranks $n && mv out whole
  TESSERA_AUDIT=1/1 flip $n -1 "1:made" --ranks 2:4 --replacements 0
  goes_on "and nobody takes its place: 2 of 4 ranks go on (recovery 1)"
  cell="recover, one" n=2 # a rank whose input has changed says so itself
  clean && expect 0 ranks $n && mv out whole
  call=7 && TESSERA_AUDIT=1/1 flip $n -1 "1:batch" --ranks 1:2 --replacements 0
  goes_on "and nobody takes its place: 1 of 2 ranks goes on (recovery 1)"
  grep -q 'one rank is left, and nobody computes its blocks again (TESSERA_AUDIT)' err || fail "$cell: $(cat err)"
  cell="recover, undecided" n=2 call=$way
  TESSERA_AUDIT=1/1 flip $n -1 "1:made"
  [ $code = 5 ] && grep -q 'one of the two is wrong' err || fail "$cell: $code $(cat out err)"
  unset FLIPS_MIRROR TESSERA_ON_AUDIT
done
unset call

# A run of a model: the bytes, the digest and the count. Its last step is the third; blocks have two turns in each of them, the head one, since its backward writes the result.
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
    [ $share = 1/8 ] || [ "$(member audits)" = $((3 * 11 * n)) ] || fail "$(member audits) audits on $n ranks: $(cat out)"
  done
done

# The plan says which blocks are audited.
expect 0 "$TESSERA" plan gpt -n 2 --audit 1/8
has_line out 'audited 1/8: 6 of 6 blocks; of head backward alone, which writes its result'
expect 0 "$TESSERA" plan gpt -n 2 --audit 1/8 --json
grep -qF '"not_audited":[],"audited_backward_alone":"head"' out || fail "no word of the head: $(cat out)"
expect 0 "$TESSERA" plan gpt -n 2 --json
! grep -q audit out || fail "audits in the plan without the option: $(cat out)"
expect 0 "$TESSERA" plan -n 2 --audit 1/4 -- "$BUILD/tests/support/misuse" audited blocks
has_line out 'audited 1/4: 2 of 3 blocks; not a'
expect 0 "$TESSERA" plan -n 2 --audit 1/4 --json -- "$BUILD/tests/support/misuse" audited blocks
grep -qF '"audit_every":4,"not_audited":["a"]' out || fail "$(cat out)"

# What cannot be audited is refused in one line.
(unset FLIPS_BLOCKS && TESSERA_AUDIT=1/1 expect 3 ranks 2)
grep -q 'TESSERA_AUDIT=1/1: this program declares no blocks (tess_block_add)' err || fail "$(cat err)"
expect 3 "$TESSERA" train gpt --batch 1 --steps 1 --data text --quiet --audit 1/2
grep -q 'TESSERA_AUDIT=1/2: one rank has no other that computes again; take two' err || fail "$(cat err)"
for bad in 1/0 2/3 x 1/ 1/9x; do
  TESSERA_AUDIT=$bad expect 3 ranks 2
  grep -q "TESSERA_AUDIT is '$bad', expected 0 (off) or 1/K" err || fail "$bad: $(cat err)"
done
# The messages that docs/errors.md lists are in the source.
sed -n '/^## Memory and work/,/^`tess_options/s/^| `\([^`]*\)`.*/\1/p' "$SOURCE/docs/errors.md" >listed
[ "$(wc -l <listed)" = 13 ] || fail "docs/errors.md: $(cat listed)"
while read -r message; do
  grep -rqF -- "$message" "$SOURCE/core/proof" "$SOURCE/core/engine" "$SOURCE/core/recovery" || fail "docs/errors.md lists '$message'"
done <listed
nothing_left
echo "$flips flips, $found of them had an effect and were found"
