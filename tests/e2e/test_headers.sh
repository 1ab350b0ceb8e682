#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Every installed header compiles alone, as C11 and as C++17, with every compiler that is here and all warnings; and two
# of them together in either order, twice.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
cd "$SOURCE/core/include"
headers=$(find . -name '*.h' | sed 's|^\./||' | sort)
[ -n "$headers" ] || fail "no headers"
strict="-Wall -Wextra -Werror -pedantic -I. -fsyntax-only"
tried=0
try() { # compiler, flags, text
  printf '%s' "$3" | "$1" $2 $strict - || fail "$1 $2: $3"
  tried=$((tried + 1))
}
for c in gcc clang "${CC:-cc}"; do
  command -v "$c" >/dev/null || continue
  for h in $headers; do
    try "$c" "-x c -std=c11" "#include <$h>
"
    for g in $headers; do
      try "$c" "-x c -std=c11" "#include <$h>
#include <$g>
#include <$h>
"
    done
  done
done
for c in g++ clang++ "${CXX:-c++}"; do
  command -v "$c" >/dev/null || continue
  for h in $headers; do
    try "$c" "-x c++ -std=c++17" "#include <$h>
"
  done
done
[ $tried -ge 6 ] || fail "only $tried compilations"
echo "$tried compilations of: $headers"
