#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# Products in fp8 on the doubles: one digest for one, two and four GPUs, for units that part a layer's matrices, with graphs and without;
# planned bytes; losses near the CPU's; cuBLASLt multiplies all of a layer's products. A GPU and a library that cannot are one line.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublasLt.so.13 plugins/libtessera-comm-nccl.so
steps=6
llama="llama $(brief_text) --batch 2 --layers 2 --heads 4 --width 64 --context 16 --deterministic --precision bf16:products=fp8"
digest=
run() { # run OPTIONS…: one digest, exact books
  expect 0 on_double "$TESSERA" train $llama --steps $steps --device cuda --quiet --json=gpu.json "$@"
  [ "$(summary peak_device_bytes gpu.json)" = "$(summary planned_peak_device_bytes gpu.json)" ] ||
    fail "$*: peak $(summary peak_device_bytes gpu.json), planned $(summary planned_peak_device_bytes gpu.json)"
  [ -n "${SANITIZE:-}" ] || [ "$(summary step_allocations gpu.json)" = 0 ] || fail "$*: $(summary step_allocations gpu.json) allocations in steps"
  : "${digest:=$(summary params_digest gpu.json)}"
  [ "$(summary params_digest gpu.json)" = "$digest" ] || fail "another digest: $*"
}
run --accum 4
grep -q ", 7 of a layer's 7 matrices in fp8 products" gpu.json || fail "no word of fp8: $(head -c 2000 gpu.json)"
loss=$(summary loss gpu.json)
TESSERA_GRAPHS=0 run --accum 4 --activations recompute
run --accum 4 --wrap size:9000 --offload cpu # which puts a layer's matrices into units of their own
run -n 2 --accum 2 --sync end --strategy grad_op
run -n 4 --wrap none

expect 0 "$TESSERA" train $llama --steps $steps --accum 4 --quiet --json=cpu.json
awk -v a="$loss" -v b="$(summary loss cpu.json)" 'BEGIN { d = a - b; exit !(a > 0 && (d < 0 ? -d : d) <= 0.005 * b) }' ||
  fail "loss $loss, on the CPU $(summary loss cpu.json)"

# Twelve products of a layer by cuBLASLt in a step, and none by cuBLAS but the head's.
for n in 2 3; do
  rm -f calls
  TESSERA_GRAPHS=0 TESSERA_DOUBLE_LOG=calls expect 0 on_double "$TESSERA" train $llama --steps $n --device cuda --quiet
  count() { awk -v name="$1" '$2 == name { n += $3 } END { print n + 0 }' calls; }
  eval "lt$n=$(count cublasLtMatmul) gemm$n=$(count cublasGemm)"
done
[ $((lt3 - lt2)) = 24 ] || fail "$((lt3 - lt2)) products of a step by cuBLASLt, expected 24"
[ $((gemm3 - gemm2)) = 3 ] || fail "$((gemm3 - gemm2)) products of a step by cuBLAS, expected the head's 3"

# A plan's time has products at fp8's rate, and the codes. Wide layers gain; where no rate is said codes are all that changes.
seconds() { # seconds WIDTH MACHINE PRECISION
  expect 0 on_double "$TESSERA" plan llama --layers 2 --heads 8 --width "$1" --context 1024 --batch 8 --device cuda --machine "$2" --precision "$3"
  sed -n 's/^time on .*: \([0-9.e-]*\) s per step$/\1/p' out
}
cat >machine.json <<'END'
{"name": "no fp8", "device": "gpu", "flops_per_second": {"f32": 33e12, "bf16": 494e12}, "memory_bytes_per_second": 2680e9, "kernel_seconds": 4e-6}
END
awk -v wide="$(seconds 4096 h100-8x-node bf16:products=fp8)" -v wide16="$(seconds 4096 h100-8x-node bf16)" \
  -v none="$(seconds 4096 ./machine.json bf16:products=fp8)" -v none16="$(seconds 4096 ./machine.json bf16)" \
  'BEGIN { print wide, wide16, none, none16; exit !(wide > 0 && wide < 0.9 * wide16 && none > none16 && none < 1.2 * none16) }' >times ||
  fail "seconds in fp8 and bf16, then without a rate: $(cat times)"

refused() { # refused CODE TEXT VARIABLE…
  local code=$1 text=$2
  shift 2
  expect "$code" on_double env "$@" "$TESSERA" train $llama --steps 1 --device cuda --quiet
  grep -qF "$text" err && [ "$(grep -c . err)" = 1 ] || fail "expected '$text': $(cat err)"
}
refused 3 "products in fp8 need compute capability 8.9, this GPU has 8.0: TESSERA_PRECISION=bf16" TESSERA_DOUBLE_CAPABILITY=80
refused 3 "cuBLASLt has no product in fp8 of 32 x 64 by 64 x " TESSERA_DOUBLE_FAIL=cublasLtMatmulAlgoGetHeuristic:1
echo "products in fp8: one digest for one, two and four GPUs, bytes as planned"
