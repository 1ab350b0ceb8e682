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

# The other sets: 56 days in a row have an eighth each, of seven seeds; with all turns each seed is whole.
sets() { TESSERA_TEST_TURNS=$1 TESSERA_TEST_DAY=$2 "$SOURCE/tests/matrix/other_sets" echo; }
for ((day = 100; day < 156; day++)); do sets day $day; done | sort -u >sets
[ "$(wc -l <sets) $(grep -cEx -- '--seed [1-7] --part [0-7]/8' sets)" = "56 56" ] || fail "56 days take $(wc -l <sets) parts: $(head -n 3 sets)"
[ "$(sets day 008)" = "$(sets day 64)" ] || fail "day 008 is $(sets day 008)"
[ "$(sets all 1 | tr '\n' ' ')" = "$(printf -- '--seed %s ' 1 2 3 4 5 6 7)" ] || fail "all sets are $(sets all 1)"
sets all 1 >/dev/null || fail "all sets fail"
! TESSERA_TEST_TURNS=all "$SOURCE/tests/matrix/other_sets" false || fail "a set that fails passes"
