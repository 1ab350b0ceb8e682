#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# slow: 3600 SEED=19 COUNT=200 SHARE=1
# Bits flip in running ranks, from outside, with audits (1/1), digests at rest and a checkpoint of every step. Each draw has
# another place (parameters, copies, states, statistics and gradients at rest, gathered copies, inputs, activations, outputs,
# gradients in a block, images), ranks (2 to 4), strategy, offload, units, precision and comm. A flip that changes a result is found before
# its step is saved: the run starts again, or goes back to images, and ends with the undisturbed digest. Then with 1/8: of flips in every block call of eight passes those are found whose turn it is, an eighth.
# COUNT: draws (15); SHARE: every so many-th of the 80 calls (10); SEED. test_flips_all_slow has 200 draws and all calls.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/flips.sh"
export TESSERA_AT_REST_DIGESTS=1 TESSERA_DETERMINISTIC=1 FLIPS_BLOCKS=1
seed=${SEED:-$("$SOURCE/tests/chance" flips)}
seed=$((seed % 1000000))
echo "SEED=$seed"
state=$seed
declare -A planted found quiet by
names="parameters copies states statistics gradients gathered batch input saved activation output input-gradient gradient image copy"
plugins=" $(cd "$BUILD/plugins" && echo libtessera-*.so) "
have() { case "$plugins" in *" libtessera-$1.so "*) return 0 ;; *) return 1 ;; esac; }
comms="shm"
have comm-gloo && comms="shm gloo"
# draw N: a number below it, in $d. pick WORD…: one of them, in $d.
draw() { state=$(((state * 1103515245 + 12345) & 0x7fffffff)) && d=$(((state >> 12) % $1)); }
pick() { draw $# && shift "$d" && d=$1; }
# set_cell PHASE: all but the place, by the draw.
set_cell() {
  pick 2 3 4 && n=$d
  pick $comms && export TESSERA_COMM=$d
  pick full full grad_op none hybrid hybrid_grad_op && strategy=$d
  case "$1:$strategy" in image:none | image:hybrid*) strategy=full ;; esac # whose images are not copied
  case $strategy in hybrid*) strategy=$strategy:$((n == 3 ? 3 : n / 2)) ;; esac
  export TESSERA_STRATEGY=$strategy
  pick none cpu cpu:params cpu:grads,optimizer && export TESSERA_OFFLOAD=$d
  pick scopes none size:100 && export TESSERA_WRAP=$d
  pick keep recompute offload && export TESSERA_ACTIVATIONS=$d
  [ "$1" != kept ] || export TESSERA_ACTIVATIONS=keep
  pick fp32 fp32 bf16 && export TESSERA_PRECISION=$d
  pick 0 1 && export TESSERA_LOW_COPY=$d
  pick 1 1 2 && export TESSERA_ACCUM=$d
  [ "$1" != micro ] || export TESSERA_ACCUM=2
  cell="-n $n $TESSERA_COMM $TESSERA_STRATEGY $TESSERA_OFFLOAD $TESSERA_WRAP $TESSERA_ACTIVATIONS $TESSERA_PRECISION"
  cell="$cell low_copy=$TESSERA_LOW_COPY accum=$TESSERA_ACCUM"
}
undisturbed() {
  clean
  TESSERA_AUDIT=0 TESSERA_AT_REST_DIGESTS=0 expect 0 ranks "$n"
  mv out whole
}
# Whose word it was; no word of failing memory or work: "".
found_by() {
  if grep -q 'image of step .* is not what was taken: memory has changed' err; then echo image
  elif grep -q 'at rest are not what step .* left: memory has changed (TESSERA_AT_REST_DIGESTS)' err; then echo rest
  elif grep -q 'step 3, unit [^,]*, .* differs: .*wrong (TESSERA_AUDIT)' err; then echo audit
  fi
}
count() { local name=$1; eval "$2[\$name]=\$((\${$2[\$name]:-0} + 1))"; }
# one PHASE: the run that starts again ends as the whole one, so no checkpoint has the bit.
one() {
  local rank who
  set_cell "$1"
  draw "$n" && rank=$d
  draw 10 && call=$d
  [ "$1" != kept ] || call=$((5 + call % 3)) # backward of the last three blocks
  if [ "$1" = image ]; then
    export FLIPS_MIRROR=2
    undisturbed
    TESSERA_AUDIT=1/1 flip "$n" $((n == 4 ? 2 : n - 1)) 0:image
    unset FLIPS_MIRROR
  else
    export FLIPS_SAVE=1
    undisturbed
    TESSERA_AUDIT=1/1 flip "$n" -1 "$rank:$1" --restarts 1
    unset FLIPS_SAVE
  fi
  who=$(found_by)
  count "$kind" planted
  [ $code = 0 ] && [ "$(tail -n 1 out)" = "$(tail -n 1 whole)" ] || fail "not found: $kind ($1) $cell, rank $rank, call $call, seed $seed, exit code $code: $(cat err out)"
  [ -z "$(grep -vxFf whole out || true)" ] || fail "a step with the flipped bit was seen: $kind ($1) $cell seed $seed: $(cat out err)"
  if [ -n "$who" ]; then count "$kind" found && count "$who" by; else count "$kind" quiet; fi
  [ -n "$who" ] || case $1 in rest | late | grads | micro) fail "at rest, and not found: $kind $cell seed $seed: $(cat err)" ;; esac
}
for ((k = 0; k < ${COUNT:-15}; k++)); do
  set -- rest gathered made grads input image kept made late gathered micro made input grads batch
  shift $((k % $#))
  one "$1"
done
unset call
for name in TESSERA_COMM TESSERA_STRATEGY TESSERA_OFFLOAD TESSERA_WRAP TESSERA_ACTIVATIONS TESSERA_PRECISION TESSERA_LOW_COPY TESSERA_ACCUM; do
  unset $name
done
printf '%-16s %8s %8s %8s\n' where planted found "no effect"
for name in $names; do
  [ -z "${planted[$name]:-}" ] || printf '%-16s %8d %8d %8d\n' "$name" "${planted[$name]}" "${found[$name]:-0}" "${quiet[$name]:-0}"
done
echo "found by digests at rest: ${by[rest]:-0}, by audits: ${by[audit]:-0}, by digests of images: ${by[image]:-0}"

# Calls are numbered in order of time; turns by block, forward before backward. Each has its turn once in eight passes.
export TESSERA_AT_REST_DIGESTS=0 TESSERA_ON_NAN=warn
want=0 got=0 silent=0 tried=0
for ((k = 0; k < 80; k += ${SHARE:-10})); do
  at=$((${SHARE:-10} == 1 ? k : (k + seed) % 80)) call=$((at % 10)) step=$((at / 10 + 1))
  export FLIPS_STEP=$step
  n=2 cell="1/8, step $step, call $call"
  [ -e "whole.$step" ] || { clean && TESSERA_AUDIT=0 expect 0 ranks $n && mv out "whole.$step"; }
  slot=$((call < 5 ? 2 * call : 2 * (9 - call) + 1)) due=0 told=0
  [ $(((step - 1 + slot) % 8)) != 0 ] || due=1
  TESSERA_AUDIT=1/8 flip $n -1 1:made
  [ $code != 5 ] || told=1
  tried=$((tried + 1)) want=$((want + due)) got=$((got + told))
  cmp -s out "whole.$step" && silent=$((silent + 1))
  [ $code = $((5 * told)) ] && [ $told = $due ] || { [ $due = 1 ] && cmp -s out "whole.$step"; } || fail "$cell: exit code $code, due $due: $(cat err out)"
done
unset FLIPS_STEP
nothing_left
echo "with 1/8: $tried flips in what blocks write, $silent without effect, $want at their block's turn, $got found"
