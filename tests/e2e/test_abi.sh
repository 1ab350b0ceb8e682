#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The installed headers against the stored description, tests/abi/surface.abi and constants: only additions, at the end of
# structs; no function, constant or offset changes. And that what may not change would be found.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
command -v abidiff >/dev/null && command -v abidw >/dev/null || { echo "skipped: libabigail not found (abigail-tools)"; exit 77; }
stored=$SOURCE/tests/abi

# compare DIRECTORY: what surface.sh wrote there, against what is stored.
compare() {
  abidiff --no-added-syms --suppressions "$stored/suppressions.ini" "$stored/surface.abi" "$1/surface.abi" >diff.txt 2>&1 || return 1
  ! comm -23 <(sort "$stored/constants") <(sort "$1/constants") >diff.txt || ! grep -q . diff.txt
}
mkdir today
bash "$stored/surface.sh" "$SOURCE" today
compare today || fail "not only additions; if that is meant, it is a new major version (docs/abi.md): $(head -n 40 diff.txt)"

# Four changes: one is allowed, three are not.
change() { # name, header, sed expression
  mkdir -p "$1/core/include"
  cp -r "$SOURCE/core/include/tessera" "$1/core/include"
  sed -i "$3; s/^#define TESS_PIN(.*/#define TESS_PIN(...)\n#define TESS_PIN_OFF(type, bytes, middle, middle_at, last, last_at) \\\\/" "$1/core/include/tessera/$2"
  ! cmp -s "$1/core/include/tessera/$2" "$SOURCE/core/include/tessera/$2" || fail "$1: nothing was changed"
  bash "$stored/surface.sh" "$1" "$1"
}
change appended plugin.h 's/^} tess_host;/    void (*newest)(void *host);\n} tess_host;/; s/TESS_SUM = 1, TESS_MIN, TESS_MAX/TESS_SUM = 1, TESS_MIN, TESS_MAX, TESS_NEWEST/'
compare appended || fail "an appended slot and constant are refused: $(head -n 20 diff.txt)"
change inserted plugin.h 's/^    tess_status (\*query)(/    void (*between)(void);\n    tess_status (*query)(/'
! compare inserted || fail "an inserted slot is not found"
grep -q between diff.txt || fail "inserted: $(cat diff.txt)"
change renumbered plugin.h 's/TESS_SUM = 1, TESS_MIN/TESS_SUM = 1, TESS_MEAN, TESS_MIN/'
! compare renumbered || fail "a renumbered constant is not found"
grep -q 'TESS_MIN 2' diff.txt || fail "renumbered: $(cat diff.txt)"
change parameter tessera.h 's/tess_rank(const tess \*)/tess_rank(const tess *, int)/'
! compare parameter || fail "a changed parameter is not found"
echo "$(wc -l <today/constants) constants and functions, $(grep -c '<elf-symbol' today/surface.abi) types compared"
