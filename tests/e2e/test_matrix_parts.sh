#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The parts of the matrix that CI takes by turns are all of it: each cell is in one part, and eight days have all eighths.
. "$SOURCE/tests/e2e/lib.sh"
matrix=$BUILD/tests/matrix/test_matrix
[ -x "$matrix" ] || { echo "skipped: the tests in C are not built"; exit 77; }
export TOY=x
cells() { "$matrix" --list "$@" | grep ,W=; }
cells | sort >all
[ "$(wc -l <all)" -gt 250 ] && [ -z "$(uniq -d all)" ] || fail "$(wc -l <all) cells, $(uniq -d all | wc -l) of them twice"
for n in 2 3 8; do
  for ((i = 0; i < n; i++)); do cells --part $i/$n; done | sort | cmp - all || fail "$n parts are not the whole"
done
TESSERA_MATRIX_STRICT=1 cells >strict
[ "$(wc -l <strict)" -gt 200 ] && [ "$(grep -vc ',strict=1$' strict)" = 0 ] || fail "not all are strict: $(head -n 2 strict)"
cells --seed 1 | sort >other
[ "$(comm -12 all other | wc -l)" -lt $(($(wc -l <all) / 2)) ] || fail "another seed has the same cells"

# The expression of .ci/run, on eight days in a row.
expression=$(grep -o '\$((10#\$(date +%j) % 8))' "$SOURCE/.ci/run") || fail "no expression for the part of the day in .ci/run"
for ((day = 0; day < 8; day++)); do
  j=$(date -d "2026-03-01 + $day days" +%j)
  eval "echo ${expression//'$(date +%j)'/$j}"
done | sort >days
[ "$(tr -d '\n' <days)" = 01234567 ] || fail "eight days take the parts $(tr '\n' ' ' <days)"
