#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The parts of the matrix of which CI takes one are all of it: each cell is in one part, and the seed may choose any.
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
[ "$(wc -l <strict)" -gt 200 ] && [ "$(grep -vc ',strict=1,' strict)" = 0 ] || fail "not all are strict: $(head -n 2 strict)"
cells --seed 1 | sort >other
[ "$(comm -12 all other | wc -l)" -lt $(($(wc -l <all) / 2)) ] || fail "another seed has the same cells"

# What the seed chooses: of .ci/run one of the eighths, of the other sets an eighth of one of seven; the same seed the same, and
# others other ones. All seven, whole, are tests of their own, which take the place of the eighth with TURNS=all.
expression=$(grep -o '\$((\$(tests/chance asan-matrix) % 8))' "$SOURCE/.ci/run") || fail "no expression for the part of the matrix in .ci/run"
sets() { TESSERA_TEST_SEED=$1 "$SOURCE/tests/matrix/other_sets" echo; }
ln -s "$SOURCE/tests" tests
for ((seed = 0; seed < 64; seed++)); do
  TESSERA_TEST_SEED=$seed eval "echo $expression" >&3
  sets $seed
done 3>parts | sort -u >sets
[ "$(sort -u parts | tr -d '\n')" = 01234567 ] || fail "the parts are $(sort -u parts | tr '\n' ' ')"
[ "$(wc -l <sets)" -gt 28 ] && ! grep -vEx -- '--audited --seed [1-7] --part [0-7]/8' sets || fail "64 seeds take $(wc -l <sets) parts: $(head -n 3 sets)"
[ "$(sets x)" = "$(sets x)" ] || fail "the same seed takes another part"
! TESSERA_TEST_SEED=1 "$SOURCE/tests/matrix/other_sets" false || fail "a set that fails passes"
file=$BUILD/tests/matrix/CTestTestfile.cmake
for seed in 1 2 3 4 5 6 7; do
  grep -q "^add_test(\[=\[matrix/seed_$seed\]=\] \".*/test_matrix\" \"--audited\" \"--seed\" \"$seed\")" "$file" || fail "no test of set $seed: $(grep seed_ "$file")"
  grep '^set_tests_properties(\[=\[matrix/other_sets\]' "$file" | grep -q "TESSERA_WITHIN \".*matrix/seed_$seed[;\"]" || fail "other_sets is not within seed_$seed"
  for name in seed_$seed other_sets; do # with audits, and digests of what rests, both
    grep "^set_tests_properties(\[=\[matrix/$name\]" "$file" | grep -q 'TESSERA_AT_REST_DIGESTS=1' || fail "$name has no digests at rest"
  done
done
