#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# surface.sh SOURCE OUT: writes OUT/surface.abi, libabigail's description of every function and struct of the public headers,
# and OUT/constants, the value of every constant. The library's own file has no debugging information, so a small one is
# built from the headers: a pointer to each type and to each function's type. What may change: docs/abi.md.
#     tests/abi/surface.sh . tests/abi      after an addition, to store it
set -eu
out=$2
include=$(cd "$1/core/include" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
headers="$include/tessera/plugin.h $include/tessera/tessera.h $include/tessera/inspect.h $include/tessera/gpu.h"
# shellcheck disable=SC2086
functions=$(sed -n 's/^TESS_API [^(]*\b\(tess_[a-z_0-9]*\)(.*/\1/p' $headers | sort)
# shellcheck disable=SC2086
types=$(sed -n 's/^} \(tess_[a-z_0-9]*\);.*/\1/p' $headers | sort -u)
all=$(printf '#include <tessera/%s.h>\n' inspect gpu)
constants=$(echo "$all" | cc -E -P -I"$include" - | tr '\n' ' ' | grep -o 'enum [a-z_]*{\{0,1\}[^}]*}' |
  grep -o '\bTESS_[A-Z0-9_]*' | sort -u)
[ "$(wc -w <<<"$types")" -gt 30 ] && [ "$(wc -w <<<"$functions")" -gt 20 ] && [ "$(wc -w <<<"$constants")" -gt 60 ]
{
  echo "$all"
  for t in $types; do echo "extern $t *type_of_$t; $t *type_of_$t;"; done
  for f in $functions tess_plugin_open_v1; do echo "extern __typeof__(&$f) type_of_$f; __typeof__(&$f) type_of_$f;"; done
} >"$work/surface.c"
{
  echo '#include <stdio.h>'
  echo "$all"
  echo 'int main(void) {'
  for c in $constants; do echo "printf(\"$c %lld\\n\", (long long)$c);"; done
  for f in $functions; do echo "puts(\"$f()\");"; done
  echo 'return 0; }'
} >"$work/constants.c"
cc -std=gnu11 -I"$include" -o "$work/constants" "$work/constants.c"
"$work/constants" >"$out/constants"
(cd "$work" && cc -std=gnu11 -g -gdwarf-4 -shared -fPIC -I"$include" -o surface.so surface.c)
abidw --no-corpus-path --no-comp-dir-path --no-show-locs --no-elf-needed --out-file "$out/surface.abi" "$work/surface.so"
