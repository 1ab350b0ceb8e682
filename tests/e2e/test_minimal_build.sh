#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# The build with a C compiler and nothing else: it builds without a warning, says what it leaves out, needs no library
# but libc and the compiler's own libgomp at run time, and its tests pass.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: only done once, without the sanitizer"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
# With ccache most objects are those of the build before; without it the compiler optimizes less, in half the time.
launcher=$(command -v ccache || true)
less=()
[ -n "$launcher" ] || less=(-DCMAKE_C_FLAGS_RELEASE="-O1 -DNDEBUG")
cmake -S "$SOURCE" -B build -DTESSERA_MINIMAL=ON -DTESSERA_WERROR=ON -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_C_COMPILER_LAUNCHER="$launcher" "${less[@]}" >configure.log 2>&1 || { cat configure.log; fail "cmake"; }
grep 'left out' configure.log || fail "configuring does not say what is left out"
cmake --build build -j2 >build.log 2>&1 || { tail -40 build.log; fail "build"; }
! grep -q 'Building CXX' build.log || fail "C++ was compiled"
for file in build/tessera build/libtessera.so build/plugins/*.so; do
  [ -e "$file" ] || continue
  extra=$(readelf -d "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|dl|pthread|rt|gomp)\.so|ld-linux)' || true)
  [ -z "$extra" ] || fail "$file needs $extra"
done
# It trains on several ranks, in shared memory, and says so.
build/tessera train mnist -n 2 --steps 2 --batch 8 --json >train.log 2>&1 || { cat train.log; fail "mnist on two ranks"; }
grep -q '"ranks":2,"comm":"shm"' train.log || { cat train.log; fail "two ranks did not train over shm"; }
# Its own tests; the end-to-end ones are about the parts left out here.
ctest --test-dir build -j2 --output-on-failure --timeout 120 -L "unit|conformance" -LE slow ||
  fail "tests of the minimal build"
