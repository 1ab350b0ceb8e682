#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The tuner's first choice against a measured search over about 40 candidates: measures this machine, tunes, trains with
# the first choice and with every STRIDE-th listed candidate, and prints first / best of the measured medians. On an idle
# machine: docs/benchmarks/tune.sh BUILD/tessera; a light form: LISTED=8 STEPS=20 docs/benchmarks/tune.sh BUILD/tessera.
# FIXED holds options that every candidate has (default: two ranks over gloo, fp32).
set -eu
tessera=${1:?usage: tune.sh BUILD/tessera [MODEL…]}
shift
models=("$@")
[ ${#models[@]} -gt 0 ] || models=(mnist gpt)
steps=${STEPS:-60} listed=${LISTED:-40} rounds=${ROUNDS:-3} fixed=${FIXED:--n 2 --comm gloo --precision fp32}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export TESSERA_LOG=error
of() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' <<<"$2"; }
"$tessera" bench --machine="$work/machine.json"
for model in "${models[@]}"; do
  # shellcheck disable=SC2086
  "$tessera" tune "$model" $fixed --machine "$work/machine.json" --quiet --json="$work/tune.json"
  grep '"event":"candidate"' "$work/tune.json" >"$work/all"
  count=$(wc -l <"$work/all")
  stride=$(((count + listed - 1) / listed))
  awk -v s=$stride 'NR == 1 || NR % s == 0' "$work/all" >"$work/some"
  : >"$work/times"
  for _ in $(seq "$rounds"); do # turn by turn, so that a busy moment meets all
    n=0
    while read -r line; do
      n=$((n + 1))
      # shellcheck disable=SC2086
      "$tessera" train "$model" $fixed --wrap "$(of wrap "$line")" --strategy "$(of strategy "$line")" \
        --activations "$(of activations "$line")" --offload "$(of offload "$line")" \
        --prefetch "$(of prefetch "$line")" --steps "$steps" --quiet --json="$work/run.json" </dev/null
      echo "$n $(of run_seconds "$(grep '"event":"timing"' "$work/run.json")") $(of seconds "$line")" >>"$work/times"
    done <"$work/some"
  done
  sort -k1,1n -k2,2g "$work/times" | awk -v r="$rounds" 'NR % r == int((r + 1) / 2) % r' >"$work/medians"
  best=$(sort -k2,2g "$work/medians" | head -n 1)
  awk -v model="$model" -v count="$(wc -l <"$work/medians")" -v best="${best#* }" -v at="${best%% *}" '
    NR == 1 { split(best, b, " "); printf "%s: %d candidates; first choice %.3f ms (predicted %.3f), best number %d %.3f ms (predicted %.3f): first / best %.3f\n",
      model, count, $2 * 1e3, $3 * 1e3, at, b[1] * 1e3, b[2] * 1e3, $2 / b[1] }' "$work/medians"
  echo "  first: $(head -n 1 "$work/some")"
  echo "  best:  $(sed -n "${best%% *}p" "$work/some")"
done
