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
# The planned peaks of docs/benchmarks/gpu.md, of GPT-2 with and without a bf16 copy.
cat >gpt2.json <<'END'
{"model_type": "gpt2", "n_layer": 12, "n_embd": 768, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
END
planned() { # planned GPUS STRATEGY [OPTION]
  expect 0 "$TESSERA" plan gpt2 --config gpt2.json --batch 8 --context 1024 --device cuda --precision bf16 -n "$1" \
    --strategy "$2" ${3:+"$3"} --json --quiet
  sed -n 's/.*"planned_peak_device_bytes": *\([0-9]*\).*/\1/p' out | tail -1
}
sed -n 's/^| \([0-9]*\), \([a-z_:0-9]*\) | \([0-9,]*\) | \([0-9,]*\) | [0-9] |.*/\1 \2 \3 \4/p' "$SOURCE/docs/benchmarks/gpu.md" >rows
[ "$(wc -l <rows)" -ge 6 ] || fail "gpu.md has $(wc -l <rows) rows of planned peaks"
while read -r gpus strategy plain copy; do
  for want in "$plain" "$copy --low-copy"; do
    got=$(planned "$gpus" "$strategy" ${want#"${want%% *}"})
    [ "$got" = "$(echo "${want%% *}" | tr -d ,)" ] || fail "$gpus GPUs, $strategy: planned $got, gpu.md has $want"
  done
done <rows

echo "no kernel spills, and the page is what the compiler says"
