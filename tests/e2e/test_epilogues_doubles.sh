#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# gpt in bf16 leaves bias and GELU to cuBLASLt, two products of each layer; where the library has no algorithm, or refuses
# the product, kernels do it: the loss is the same within rounding, and the bytes are those planned. Any other failure is one line.
. "$SOURCE/tests/e2e/lib.sh"
doubles="$BUILD/tests/doubles"
[ -e "$doubles/libcublasLt.so.13" ] || { echo "skipped: no doubles of CUDA in this build"; exit 77; }
[ -z "${SANITIZE:-}" ] || export HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so # leaks a little
layers=2 steps=4
seq 1 600 >text
# train NAME FAIL [STEPS]: NAME.json, NAME.calls
train() {
  local name=$1 fail=$2
  rm -f "$name.calls"
  env LD_LIBRARY_PATH="$doubles" TESSERA_DOUBLE_LEAKS=99 TESSERA_DOUBLE_DELAY_US=0 TESSERA_DOUBLE_LOG="$PWD/$name.calls" \
    TESSERA_DOUBLE_FAIL="$fail" TESSERA_GRAPHS=0 "$TESSERA" train gpt --batch 2 --layers $layers --heads 2 --width 32 --context 16 \
    --steps ${3:-$steps} --device cuda --precision bf16 --sample 0 --data text --quiet --json="$name.json"
}
calls() { awk -v name="$2" '$2 == name { n += $3 } END { print n + 0 }' "$1.calls"; }
field() { sed -n '/"summary"/s/.*"'"$2"'": *\([^,}]*\).*/\1/p' "$1.json"; }
as_planned() { [ -n "$(field $1 peak_device_bytes)" ] && [ "$(field $1 peak_device_bytes)" = "$(field $1 planned_peak_device_bytes)" ]; }
near() { awk -v a="$(field $1 loss)" -v b="$(field $2 loss)" 'BEGIN { exit !(a > 0 && b > 0 && (a > b ? a - b : b - a) < 0.002 * a) }'; }

expect 0 train fused ""
expect 0 train shorter "" $((steps - 2))
per_step() { echo $((($(calls fused $1) - $(calls shorter $1)) / 2)); }
[ "$(per_step cublasLtMatmul)" = $((2 * layers)) ] || fail "$(per_step cublasLtMatmul) products of a step by cuBLASLt"
[ "$(calls fused cublasLtMatmulAlgoGetHeuristic)" -le 4 ] || fail "$(calls fused cublasLtMatmulAlgoGetHeuristic) choices: of 2 shapes in steps, 2 in evaluations"
as_planned fused || fail "bytes other than planned: $(cat fused.json)"

none=$(for n in 1 2 3 4 5 6 7 8; do printf 'cublasLtMatmulAlgoGetHeuristic:%d,' $n; done)
expect 0 train kernels "$none"
[ "$(calls kernels cublasLtMatmul)" = 0 ] || fail "products by cuBLASLt without an algorithm"
[ "$(calls kernels cublasGemm)" = $(($(calls fused cublasGemm) + $(calls fused cublasLtMatmul))) ] || fail "products by cuBLAS: $(cat kernels.calls)"
as_planned kernels && near fused kernels || fail "the way back: $(field fused loss), $(field kernels loss)"
[ "$(field fused params_digest)" != "$(field kernels params_digest)" ] || fail "the same bits: nothing was rounded otherwise"

# Refused when it is called (CUBLAS_STATUS_NOT_SUPPORTED): the way back from then on, for that shape.
expect 0 train refused cublasLtMatmul:1:15
all=$(calls fused cublasLtMatmul) # the first is that of queries, keys and values: one of two in steps and in evaluations
[ "$(calls refused cublasLtMatmul)" = $((all - layers * steps - (all - 2 * layers * steps) / 2 + 1)) ] || fail "$(calls refused cublasLtMatmul) calls after a refusal, $(calls fused cublasLtMatmul) without"
as_planned refused && near fused refused || fail "after a refusal: $(field fused loss), $(field refused loss)"

expect 3 train failing cublasLtMatmul:2
[ "$(wc -l <err)" = 1 ] && grep -q "cuBLAS: product of 32 x 32 by 32 x 128: " err || fail "a failure is not told: $(cat err)"
echo "bias and GELU follow products in one launch, or by kernels"
