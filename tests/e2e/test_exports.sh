#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A plugin exports its descriptor and its open function and nothing else; libtessera.so what its headers declare.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
command -v nm >/dev/null || { echo "skipped: nm not found (binutils)"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: the sanitizer exports symbols of its own"; exit 77; }
exports() { nm -D --defined-only "$1" | awk '{print $NF}' | sed 's/@.*//' | sort; }
want=$(printf 'tess_plugin_note_v1\ntess_plugin_open_v1')
n=0
for file in "$BUILD"/plugins/*.so; do
  [ -e "$file" ] || continue
  have=$(exports "$file")
  [ "$have" = "$want" ] || fail "$file exports $(echo $have)"
  n=$((n + 1))
done
exports "$BUILD/libtessera.so" >have
sed -n 's/^TESS_API [^(]*[ *]\(tess_[a-z_]*\)(.*/\1/p' "$SOURCE"/core/include/tessera/*.h | sort >declared
[ -s declared ] || fail "no function found in the headers"
! comm -23 have declared | grep . || fail "libtessera.so exports what no header declares"
! comm -13 have declared | grep . || fail "libtessera.so lacks what a header declares"
echo "$n plugins; $(wc -l <have) functions in libtessera.so"
