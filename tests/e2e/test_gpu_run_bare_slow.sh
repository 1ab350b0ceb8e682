#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 3600
# processors: 2
# tests/gpu/run on one, two and eight GPUs in full, on the doubles, as bare as a machine that is lent: a build with a compiler and
# the CUDA toolkit alone (no Gloo, hwloc, oneDNN, xxHash, CMocka), and a PATH with the tools of a small system.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "${SANITIZE:-}" ] || { echo "skipped: the same parts run by themselves under a sanitizer"; exit 77; }
cmake -S "$SOURCE" -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DTESSERA_BUILD_TESTS=ON -DTESSERA_MINIMAL=cuda -DTESSERA_NO_KERNELS=ON \
  -DCMOCKA_INCLUDE="$SOURCE/tests/gpu/cmocka" -DCMOCKA_LIBRARY=c -DCMAKE_C_COMPILER_LAUNCHER="$(command -v ccache)" >configure.log 2>&1 || fail "$(tail configure.log)"
! grep -q "CUDA toolkit not found" configure.log || { echo "skipped: no CUDA toolkit here"; exit 77; }
for name in "Gloo not found" "hwloc not found" "dnnl.h or OpenMP not found" "xxhash.h not found"; do
  grep -q "$name" configure.log || fail "the build is not bare: $name is not said: $(cat configure.log)"
done
targets=$(cmake --build build --target help | sed -n 's/^\(double_[A-Za-z]*\|tessera-\(device\|comm\|offload\|optimizer\|precision\)-[a-z0-9]*\|test_cuda_[a-z0-9]*\|test_matrix\|toy\|gpu_bench\):.*/\1/p')
# shellcheck disable=SC2086
cmake --build build -j2 --target tessera $targets >build.log 2>&1 || fail "$(tail -20 build.log)"
mkdir bare
for tool in bash env cat cksum cut tr sed grep awk head tail tee tar gzip mktemp mkdir rm mv cp ls dirname basename realpath timeout date touch; do
  ln -s "$(command -v $tool)" bare/
done
for gpus in 1 2 8; do
  OUT=$PWD/on-$gpus expect 0 env -i HOME="$HOME" PATH="$PWD/bare" "$SOURCE/tests/gpu/run" --minutes 20 --gpus $gpus --doubles "$PWD/build"
  ! grep -q FAILED out || fail "--gpus $gpus: $(cat out)"
  grep -Eq "^matrix +[0-9]+ s  ok$" out || fail "--gpus $gpus: no matrix: $(cat out)"
  [ $gpus = 1 ] || grep -Eq "^digests +[0-9]+ s  ok$" out || fail "--gpus $gpus: no digests: $(cat out)"
done
echo "tests/gpu/run passes on 1, 2 and 8 doubles of a GPU in a bare build"
