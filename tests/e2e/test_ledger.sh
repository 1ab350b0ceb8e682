#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# slow: 1200 LEDGER_ALL=1
# Planned and measured bytes are equal by domain and category at every ledger point of every unit, for the reference
# models over named combinations; and so are the bytes obtained. Prints a line for each. convbn, the quickest, goes through
# all combinations here and the others through those with a star; with LEDGER_ALL=1 (test_ledger_slow) all do.
. "$SOURCE/tests/e2e/lib.sh"
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
has() { [ -f "$BUILD/plugins/libtessera-$1.so" ]; }
export TESSERA_LOG=error TESSERA_THREADS=1
field() { sed -n '/"event":"summary"/s/.*"'"$1"'":\([0-9]*\).*/\1/p' run.json; }

mnist="mnist $(brief_digits) --batch 4"
gpt="gpt --layers 3 --heads 2 --width 32 --context 16 --batch 2 --data $SOURCE/core/layout/layout.c"
convbn="convbn --image-size 16 --hidden 8 --batch 2"
# name (with a star), ranks, options
combinations="one-rank* 1
full 2
grad-op 2 --strategy grad_op
replicated 2 --strategy none
hybrid 3 --strategy hybrid:1 --wrap none
one-unit 2 --wrap none
small-units 2 --wrap size:20000 --prefetch 3
no-prefetch 2 --prefetch 0
offloaded* 2 --offload cpu
bf16 2 --precision bf16
recompute 2 --activations recompute
activations-down* 1 --activations offload --offload cpu
microbatches 2 --accum 3 --sync each
microbatches-at-end* 2 --accum 2 --sync end
clipped 2 --clip 0.5
deterministic 1 --deterministic --accum 3
all* 2 --offload cpu --precision bf16 --activations recompute --accum 2 --sync end --strategy grad_op --clip 1"
n=0 points=0
while read -r name ranks options; do
  [ "$ranks" = 1 ] || has comm-gloo || continue
  case $options in *"offload cpu"*) has offload-cpu || continue ;; esac
  case $options in *bf16*) has precision-bf16 || continue ;; esac
  for model in mnist gpt convbn; do
    case $model,$name in convbn,* | *\*) ;; *) [ "${LEDGER_ALL:-0}" = 1 ] || continue ;; esac
    # shellcheck disable=SC2086
    expect 0 "$TESSERA" train ${!model} -n "$ranks" --steps 2 --quiet --json=run.json $options
    grep '"event":"ledger","source":"planned"' run.json | sed 's/planned//' >planned
    grep '"event":"ledger","source":"measured"' run.json | sed 's/measured//' >measured
    [ "$(wc -l <planned)" -ge 20 ] || fail "$model, $name: only $(wc -l <planned) points"
    cmp -s planned measured || fail "$model, $name: $(diff planned measured | head -n 4)"
    for domain in device host; do
      [ "$(field peak_${domain}_bytes)" = "$(field planned_peak_${domain}_bytes)" ] || fail "$model, $name: $domain"
    done
    n=$((n + 1)) points=$((points + $(wc -l <planned)))
    printf '%-20s %-7s W=%s  %3d points  device %9d  host %8d\n' "${name%\*}" "$model" "$ranks" "$(wc -l <planned)" \
      "$(field peak_device_bytes)" "$(field peak_host_bytes)"
  done
done <<<"$combinations"
echo "$n runs, $points points, all equal"
