#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Predicted against measured: measures this machine, then for each case plans with it and trains, and prints
# predicted / measured. On an idle machine: docs/benchmarks/simulate.sh BUILD/tessera [CASE…], a case being
# "MODEL RANKS [OPTION…]". The machine is measured anew before every case, so that its state is the same for both.
set -eu
tessera=${1:?usage: simulate.sh BUILD/tessera [CASE…]}
shift
steps=${STEPS:-60} rounds=${ROUNDS:-3}
cases=("$@")
[ ${#cases[@]} -gt 0 ] || cases=("mnist 1" "mnist 2" "gpt 1" "gpt 2" "mnist 4" "gpt 4")
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TESSERA_LOG=error
value() { sed -n 's/.*"event":"'"$1"'".*"'"$2"'":\([0-9.e+-]*\).*/\1/p' "$3" | tail -n 1; }
median() { sort -g | awk '{ v[NR] = $1 } END { print v[int((NR + 1) / 2)] }'; }

printf '%-44s %12s %12s %8s %10s %10s\n' case predicted measured ratio "--from" ratio
for case in "${cases[@]}"; do
  read -r model ranks options <<<"$case"
  [ "$ranks" = 1 ] && comm=self || comm=gloo
  for _ in $(seq "$rounds"); do
    "$tessera" bench --machine="$work/machine.json"
    # shellcheck disable=SC2086
    "$tessera" train "$model" -n "$ranks" --comm $comm $options --steps "$steps" --quiet --json="$work/run.json"
    # shellcheck disable=SC2086
    "$tessera" plan "$model" -n "$ranks" --comm $comm $options --machine "$work/machine.json" --quiet \
      --json="$work/plan.json"
    # shellcheck disable=SC2086
    "$tessera" plan "$model" -n "$ranks" --comm $comm $options --machine "$work/machine.json" \
      --from "$work/run.json" --quiet --json="$work/from.json"
    value plan seconds "$work/plan.json" >>"$work/predicted"
    value timing run_seconds "$work/run.json" >>"$work/measured"
    value plan seconds "$work/from.json" >>"$work/with"
  done
  p=$(median <"$work/predicted") m=$(median <"$work/measured") f=$(median <"$work/with")
  printf '%-44s %9.3f ms %9.3f ms %8.3f %7.3f ms %10.3f\n' "$case" "$(echo "$p * 1000" | awk '{print $1 * $3}')" \
    "$(awk -v v="$m" 'BEGIN { print v * 1000 }')" "$(awk -v a="$p" -v b="$m" 'BEGIN { print a / b }')" \
    "$(awk -v v="$f" 'BEGIN { print v * 1000 }')" "$(awk -v a="$f" -v b="$m" 'BEGIN { print a / b }')"
  rm -f "$work/predicted" "$work/measured" "$work/with"
done
