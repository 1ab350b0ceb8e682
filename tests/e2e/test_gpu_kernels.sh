#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 420
# No CUDA kernel spills, and docs/benchmarks/cuda-kernels.md is what the compiler says of this tree, with the calls of a step as
# the doubles count them. A kernel that spills, and a page that is old, are told.
. "$SOURCE/tests/e2e/lib.sh"
nvcc=$(command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null || true)
[ -n "$nvcc" ] && [ -e "$BUILD/tests/doubles/libcublas.so.13" ] || { echo "skipped: no nvcc or no cuBLAS in this build"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
[ -z "${SANITIZE:-}" ] || { echo "skipped: a sanitizer does not change what nvcc says"; exit 77; }
page=$SOURCE/docs/benchmarks/cuda-kernels.md
expect 0 "$SOURCE/tests/gpu/kernels" --nvcc "$nvcc" --doubles "$BUILD" --check "$page"

printf '#!/bin/sh\nexec "%s" -maxrregcount=24 "$@"\n' "$nvcc" >starved
chmod +x starved
expect 1 "$SOURCE/tests/gpu/kernels" --nvcc "$PWD/starved" --check "$page" --only plugins/comm-nccl/kernels.cu
grep -q "^tess_nccl_reduce spills [0-9]* bytes$" err || fail "a kernel that spills is not told: $(cat err)"
grep -q "cuda-kernels.md says something else" err || fail "an old page is not told: $(cat err)"
echo "no kernel spills, and the page is what the compiler says"
