#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# tests/gpu/run, the command for a machine with a GPU, with the doubles: every part runs and passes; one that fails is told by
# its exit code.
. "$SOURCE/tests/e2e/lib.sh"
[ -x "$BUILD/tests/gpu/gpu_bench" ] || { echo "skipped: no CUDA toolkit in this build"; exit 77; }
[ -z "${SANITIZE:-}" ] || { echo "skipped: the same parts run by themselves under a sanitizer"; exit 77; }
command -v python3 >/dev/null || { echo "skipped: no python3"; exit 77; }
OUT=$PWD/results expect 0 "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only '[!c]*'
for part in test_cuda_ops test_cuda_models mnist gpt-bf16-all gpu_bench; do
  grep -Eq "^$part +[0-9]+ s  ok$" out || fail "no line that $part is ok: $(cat out)"
done
grep -q "FAILED" out && fail "a part failed: $(cat out)"
grep -Eq "^  step [0-9.]+ ms, peak [0-9]+ MiB of device memory as planned" out || fail "no step time: $(cat out)"

OUT=$PWD/failing TESSERA_DOUBLE_FAIL=cublasCreate:1 expect 1 "$SOURCE/tests/gpu/run" --doubles "$BUILD" --only mnist
grep -Eq "^mnist .*FAILED.*cuBLAS does not start" out || fail "the failure is not told: $(cat out)"
expect 2 "$SOURCE/tests/gpu/run" --nonsense
PATH=/usr/bin:/bin command -v nvidia-smi >/dev/null || {
  expect 3 env PATH=/usr/bin:/bin OUT="$PWD/none" "$SOURCE/tests/gpu/run"
  one_line err "tests/gpu/run: no GPU here (nvidia-smi names none)"
}
echo "tests/gpu/run passes on the doubles and tells what fails"
