#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# tests/closing_table on a suite of its own: skips and parts left out are shown with their reasons, before CTest's summary;
# one that tests/skips does not allow fails. A plugin of the build that cannot be loaded fails the matrix.
. "$SOURCE/tests/e2e/lib.sh"
mkdir suite
cat >suite/CMakeLists.txt <<'END'
cmake_minimum_required(VERSION 3.22)
project(suite NONE)
enable_testing()
add_test(NAME unit/runs COMMAND sh -c "echo '[  SKIPPED ] test_case__hidden'")
add_test(NAME e2e/skips COMMAND sh -c "echo skipped: no such thing here; exit 77")
set_tests_properties(e2e/skips PROPERTIES SKIP_RETURN_CODE 77)
file(WRITE ${CMAKE_BINARY_DIR}/left_out "plugin comm-x: libx not found\n")
END
cmake -S suite -B build >cmake.log 2>&1 || fail "$(cat cmake.log)"
export TESSERA_TEST_SKIPS=$PWD/skips
table() { expect "$1" bash "$SOURCE/tests/closing_table" build; }
printf 'any | e2e/skips | x\nany | test_case__* | x\nany | plugin comm-x | x\n' >skips
table 0
has_line out '  test allowed +e2e/skips: skipped: no such thing here'
has_line out '  case allowed +test_case__hidden: .*'
has_line out '  part allowed +plugin comm-x: libx not found'
grep -A 99 'left out:' out | grep -q '^100% tests passed' || fail "the summary is not last: $(cat out)"
for line in 1 2 3; do
  sed "${line}d" skips >fewer
  TESSERA_TEST_SKIPS=$PWD/fewer table 1
  [ "$(grep -c 'NOT ALLOWED' out)" = 1 ] || fail "without line $line: $(cat out)"
done
sed 's/^any/no-such-machine/' skips >elsewhere
TESSERA_TEST_SKIPS=$PWD/elsewhere table 1
[ "$(grep -c 'NOT ALLOWED' out)" = 3 ] || fail "on another machine: $(cat out)"

# Every line of the real list has three parts.
bad=$(grep -v '^#' "$SOURCE/tests/skips" | awk -F'|' 'NF != 3')
[ -z "$bad" ] || fail "tests/skips: $bad"

if [ -x "$BUILD/tests/matrix/test_matrix" ]; then
  echo damaged >damaged.so
  for offload in nowhere "$PWD/damaged.so"; do
    TESSERA_MATRIX_OFFLOAD=$offload TOY=$BUILD/tests/support/toy expect 1 "$BUILD/tests/matrix/test_matrix" \
      "comm=self,offload=${offload##*/},*,W=1,accum=1,*"
    grep -q '^1 cells run, 1 failed\|^\([0-9]*\) cells run, \1 failed' out || fail "offload $offload: $(cat out)"
  done
fi
