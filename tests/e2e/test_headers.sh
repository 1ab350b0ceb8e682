#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Every installed header compiles alone, as C11 and as C++17, with every compiler that is here and all warnings; and all of them
# together, each before each other one and twice.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
cd "$SOURCE/core/include"
headers=$(find . -name '*.h' | sed 's|^\./||' | sort)
[ -n "$headers" ] || fail "no headers"
strict="-Wall -Wextra -Werror -pedantic -I. -fsyntax-only"
tried=0
try() { # COMPILER FLAGS HEADER…
  printf '#include <%s>\n' "${@:3}" | "$1" $2 $strict - || fail "$1 $2: ${*:3}"
  tried=$((tried + 1))
}
# compilers NAME…: each once, by whatever name.
compilers() { for c in "$@"; do command -v "$c" || true; done | xargs -r readlink -f | sort -u; }
for c in $(compilers gcc clang "${CC:-cc}"); do
  for h in $headers; do try "$c" "-x c -std=c11" $h; done
  try "$c" "-x c -std=c11" $headers $(tac <<<"$headers")
  try "$c" "-x c -std=c11" $(tac <<<"$headers") $headers
done
for c in $(compilers g++ clang++ "${CXX:-c++}"); do
  for h in $headers; do try "$c" "-x c++ -std=c++17" $h; done
done
[ $tried -ge 6 ] || fail "only $tried compilations"
echo "$tried compilations of: $headers"
