#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# The build with a C compiler and nothing else: it builds without a warning, says what it leaves out, and needs no library
# but libc and the compiler's own libgomp at run time. Objects that are those of the full build, to the byte, are tested there;
# the tests of the rooms that have others pass here too, and those of the command and its models.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: only done once, without the sanitizer"; exit 77; }
fail() { echo "FAILED: $*"; exit 1; }
# What the full build has compiled by the same command is not compiled again: that took four minutes of a processor.
export BUILD NOTED=$PWD/noted LAUNCHER
LAUNCHER=$(command -v ccache || true)
"$SOURCE/tests/support/as_built" --note 2>note.log || true # a build by make has nothing of it
cmake -S "$SOURCE" -B build -G Ninja -DTESSERA_MINIMAL=ON -DTESSERA_WERROR=ON -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_C_COMPILER_LAUNCHER="$SOURCE/tests/support/as_built" >configure.log 2>&1 || { cat configure.log; fail "cmake"; }
grep 'left out' configure.log || fail "configuring does not say what is left out"
# On a machine without a C++ compiler, such as one with the demo's packages alone, both ways of configuring work.
mkdir bin
find ${PATH//:/ } -maxdepth 1 \( -type f -o -type l \) ! -name '*++*' -exec ln -sf -t bin {} + 2>/dev/null
for more in -DTESSERA_MINIMAL=ON "-DTESSERA_BUILD_TESTS=OFF -DTESSERA_NVCC=OFF"; do
  rm -rf bare
  # shellcheck disable=SC2086
  env -u CXX PATH="$PWD/bin" cmake -S "$SOURCE" -B bare -G Ninja -DCMAKE_BUILD_TYPE=Release $more >bare.log 2>&1 ||
    { cat bare.log; fail "cmake without a C++ compiler: $more"; }
  ! grep -q '^CMAKE_CXX_COMPILER:.*[^D]$' bare/CMakeCache.txt || fail "a C++ compiler was found: $(grep CXX_COMPILER: bare/CMakeCache.txt)"
done
build() { cmake --build build -j2 --target "$@" >>build.log 2>&1 || { tail -40 build.log; fail "build of $*"; }; }
build tessera plugins/all
! grep -q 'Building CXX' build.log || fail "C++ was compiled"
for file in build/tessera build/libtessera.so build/plugins/*.so; do
  [ -e "$file" ] || continue
  extra=$(readelf -d "$file" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(lib(c|m|dl|pthread|rt|gomp)\.so|ld-linux)' || true)
  [ -z "$extra" ] || fail "$file needs $extra"
done
# It trains on several ranks, in shared memory, and says so.
build/tessera train mnist -n 2 --steps 2 --batch 8 --json >train.log 2>&1 || { cat train.log; fail "mnist on two ranks"; }
grep -q '"ranks":2,"comm":"shm"' train.log || { cat train.log; fail "two ranks did not train over shm"; }

# others FOLDER: objects below it that the full build does not have.
others() { (cd build && find "$1" -name '*.o' | sort | while read -r o; do cmp -s "$o" "$BUILD/$o" || echo "$o"; done); }
# (One has the name of its folder in it.)
rooms=$(others core | grep -v plugin_search.c.o | sed -E 's,.*\.dir/([a-z]+)/[^/]*$,\1,' | sort -u | paste -sd"|")
[[ $rooms == *checkpoint*control* ]] || fail "without a library the same objects: '$rooms'"
wanted="^unit/($rooms|tools|models)/"
plugins=$(others plugins | sed 's,plugins/\([^/]*\)/.*,\1,' | sort -u | paste -sd"|")
[ -z "$plugins" ] || wanted="$wanted|^conformance/($plugins)"
ctest --test-dir build -N -LE slow -R "$wanted" | sed -n 's,.*Test *#[0-9]*: .*/,,p' >programs
build $(ninja -C build -t targets all | sed 's/: .*//' | grep -Fxf programs) $([[ $wanted != *conformance* ]] || echo plugin_check)
# Its own tests; the end-to-end ones are about the parts left out here.
ctest --test-dir build -j2 --output-on-failure --timeout 120 -LE slow -R "$wanted" || fail "tests of the minimal build"
