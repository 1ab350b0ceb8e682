#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Validation losses of gpt on a text, optimizer by optimizer and rate by rate, beside each other in all else. Prints one line
# for each evaluation: optimizer, rate, seed, step, loss.
#   TESSERA=build/release/tessera docs/benchmarks/optimizers.sh TEXT OPTIMIZER RATE… [-- option of tessera train …]
set -eu
tessera=${TESSERA:-tessera}
text=$1 optimizer=$2
shift 2
rates=()
while [ $# -gt 0 ] && [ "$1" != -- ]; do rates+=("$1") && shift; done
[ $# = 0 ] || shift
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
for rate in "${rates[@]}"; do
  for seed in ${SEEDS:-1}; do
    "$tessera" train gpt --data "$text" --threads 1 --layers 2 --width 128 --heads 4 --context 64 --batch 8 \
      --steps "${STEPS:-800}" --eval-every 100 --sample 0 --optimizer "$optimizer" --lr "$rate" --seed "$seed" \
      --beta1 0.9 --beta2 0.99 --weight-decay 0.1 --quiet --json "$@" |
      sed -n 's/^{"event":"validation","step":\([0-9]*\),"loss":\([0-9.]*\).*/\1 \2/p' |
      sed "s/^/$optimizer $rate $seed /"
  done
done
