#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# A bit flips in the memory of a stopped rank, through /proc/PID/mem: in parameters, copies, states, statistics and gradients
# at rest, and in images. With TESSERA_AT_REST_DIGESTS every flip is found before a step with it is saved, by one line that names
# rank and unit, and exit code 5; a run that starts again, or recovers from images, ends with the undisturbed digest. Without
# flips nothing is found. COUNT: flips per cell and phase, 1 unless given. SEED: which.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/flips.sh"
export TESSERA_AT_REST_DIGESTS=1 TESSERA_DETERMINISTIC=1
images=0
# flipped N VICTIM RANK:PHASE OPTION…
flipped() {
  flip "$@"
  unseen=$(grep -vxFf whole out || true)
  [ -z "$unseen" ] || fail "a step with the flipped bit was seen: $cell $3 seed $seed: $unseen $(cat err)"
}
found() { grep -c "rank $1, unit [^ ]*.*: the .* at rest are not what step .* left: memory has changed (TESSERA_AT_REST_DIGESTS)$" err || true; }
# caught N RANK PHASE…
caught() {
  local n=$1 rank=$2 phase k
  for phase in "${@:3}"; do
    for ((k = 0; k < ${COUNT:-1}; k++)); do
      flipped "$n" -1 "$rank:$phase"
      [ $code = 5 ] || fail "exit code $code: $cell $phase seed $seed: $(cat err)"
      [ "$(found "$rank")" -ge 1 ] || fail "no line names rank and unit: $cell $phase seed $seed: $(cat err)"
    done
  done
}
# whole N OPTION…: the undisturbed run finds nothing.
whole() { clean && expect 0 ranks "$@" && cp out whole && [ "$(wc -l <whole)" = 5 ] || fail "$cell: $(cat out err)"; ! grep -q 'memory has changed' err || fail "a false alarm: $cell: $(cat err)"; }
# in_cell N PHASES VARIABLE=VALUE…
in_cell() {
  local n=$1 phases=$2 pair
  cell="-n $n ${*:3}"
  for pair in "${@:3}"; do export "${pair?}"; done
  whole "$n"
  caught "$n" $((seed % n)) $phases
  for pair in "${@:3}"; do unset "${pair%%=*}"; done
}
in_cell 1 "rest late grads"
in_cell 2 "rest late late grads"
in_cell 2 "late late late late late" FLIPS_BLOCKS=1 # nothing but the step reads the states
in_cell 2 "rest micro grads" TESSERA_ACCUM=2
in_cell 2 "micro" TESSERA_ACCUM=2 TESSERA_SYNC=end
in_cell 2 "rest grads" TESSERA_OFFLOAD=cpu TESSERA_COMM=shm
in_cell 2 "rest late late late grads" TESSERA_PRECISION=bf16 TESSERA_LOW_COPY=1 FLIPS_BLOCKS=1
in_cell 3 "late grads" TESSERA_STRATEGY=grad_op
in_cell 3 "rest grads" TESSERA_WRAP=none TESSERA_THREADS=2
in_cell 4 "rest grads" TESSERA_STRATEGY=hybrid:2
in_cell 4 "rest micro" TESSERA_ACCUM=2 TESSERA_OFFLOAD=cpu FLIPS_BLOCKS=1

# A run that starts again ends with the undisturbed digest, and no checkpoint has a flipped bit.
export FLIPS_SAVE=1
cell="restarts"
whole 2
for phase in rest grads; do
  flipped 2 -1 "1:$phase" --restarts 1
  [ $code = 0 ] && [ "$(tail -n 1 out)" = "$(tail -n 1 whole)" ] && [ "$(found 1)" -ge 1 ] || fail "restart, $phase: $code $(cat out err)"
done
unset FLIPS_SAVE

# An image that has changed is not given back: another rank's copy is, or that of a step before.
export FLIPS_MIRROR=2
for n in 2 3; do
  cell="mirror -n $n"
  whole $n
  for ((k = 0; k < 2 * ${COUNT:-1}; k++)); do
    flipped $n $((n - 1)) "0:image"
    [ $code = 0 ] && [ "$(tail -n 1 out)" = "$(tail -n 1 whole)" ] || fail "$cell: seed $seed: $code $(cat out err)"
    grep -q 'rank 0, unit .*: the image of step .* is not what was taken: memory has changed, and it is not used' err || fail "$cell: seed $seed: $(cat err)"
    images=$((images + 1))
  done
done
nothing_left
echo "$flips flips, $images of them in images"
