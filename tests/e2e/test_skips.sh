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
cmake -S suite -B build -DTESSERA_NVCC:FILEPATH=OFF >cmake.log 2>&1 || fail "$(cat cmake.log)"
export TESSERA_TEST_SKIPS=$PWD/skips
table() { expect "$1" bash "$SOURCE/tests/closing_table" build; }
printf 'any | e2e/skips | x\nany | test_case__* | x\nany | plugin comm-x | x\n' >skips
table 0
has_line out '  unit +1 tests +[0-9]+ s of [0-9]+'
grep -q '^On this machine (any no-cuda ' out || fail "a build with TESSERA_NVCC=OFF: $(grep machine out)"
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

# A file that a test leaves in the checkout fails; one that was there before, or that git ignores, does not.
if command -v git >/dev/null; then
  mkdir checkout && git -C checkout init -q && echo '*.log' >checkout/.gitignore && touch checkout/before
  sed -i "s|skipped: no such thing here|& \$(touch $PWD/checkout/\$STRAY)|" suite/CMakeLists.txt
  cmake -S suite -B build >cmake.log 2>&1 || fail "$(cat cmake.log)"
  export TESSERA_TEST_SOURCE=$PWD/checkout
  STRAY=before table 0
  STRAY=x.log table 0
  STRAY=stray table 1
  has_line out '> \?\? stray'
  unset TESSERA_TEST_SOURCE
fi

# Tests take turns: each of two has its day, what has none runs on both, and without turns all run.
printf '# x\n1 unit/runs 0/2\n1 e2e/skips 1/2\n' >longest
# turns TURNS DAY RUN LATER: how many run, and how many are named as another day's.
turns() {
  TESSERA_TEST_LONGEST=$PWD/longest TESSERA_TEST_TURNS=$1 TESSERA_TEST_DAY=$2 table 0
  [ "$(grep -c ' Test *#' out) $(grep -c '^  turn another day' out)" = "$3 $4" ] || fail "turns $*: $(cat out)"
}
turns day 008 1 1
has_line out '  turn another day e2e/skips: runs on days 1/2'
turns day 009 1 1
has_line out '  turn another day unit/runs: runs on days 0/2'
turns all 009 2 0
# Those of a checking build are lines of its own, which the suite does not see.
printf '1 asan:unit/runs 0/2\n1 asan:e2e/skips 1/2\n1 tsan:unit/runs 0/3\n1 unit/runs\n' >>longest
turns day 008 1 1
of_build() { TESSERA_TEST_LONGEST=$PWD/longest TESSERA_TEST_TURNS=$1 TESSERA_TEST_DAY=$2 "$SOURCE/tests/turns" "$3"; }
[ "$(of_build day 008 asan)" = "e2e/skips 1/2" ] && [ "$(of_build day 009 asan)" = "unit/runs 0/2" ] || fail "turns of a checking build"
[ "$(of_build day 009 tsan)$(of_build day 010 tsan)" = "unit/runs 0/3" ] && [ -z "$(of_build all 008 asan)" ] || fail "turns of the other"
# The real turns: names of tests, each with one of its days. Without turns in the list .ci/run would run all.
# Not from ctest -N, which empties the log of the run that this test is a part of.
grep -rhoE 'add_test\((\[=\[)?[^] "]+' --include=CTestTestfile.cmake "$BUILD" | sed -E 's/add_test\((\[=\[)?//' >names
# is_built NAME: or belongs to a part that this build says it left out.
is_built() {
  grep -qx -- "$1" names && return
  case $1 in
    *_doubles) grep -q '^tests of the CUDA plugins on doubles: ' "$BUILD/left_out" ;;
    */comm-gloo | */comm-hosts* | */test_gloo_connect) grep -q '^plugin comm-gloo: ' "$BUILD/left_out" ;;
    *) return 1 ;;
  esac
}
! is_built e2e/test_no_such || fail "a name that is no test's counts as built"
while read -r seconds name turn; do
  case $name in tsan:*) continue ;; esac # names of its build alone
  is_built "${name#asan:}" || [ -n "${SANITIZE:-}" ] || fail "tests/longest: no test $name"
  [[ $seconds =~ ^[0-9]+$ && ${turn:-0/1} =~ ^([0-9]+)/([0-9]+)$ ]] && [ "${BASH_REMATCH[1]}" -lt "${BASH_REMATCH[2]}" ] || fail "tests/longest: $name"
done < <(grep -v '^#' "$SOURCE/tests/longest")

# Every line of the real list has three parts.
bad=$(grep -v '^#' "$SOURCE/tests/skips" | awk -F'|' 'NF != 3')
[ -z "$bad" ] || fail "tests/skips: $bad"

# A script that does not run without CUDA is in the list for such machines.
for script in "$SOURCE"/tests/e2e/test_*.sh; do
  name=e2e/$(basename "$script" .sh)
  grep -E 'exit 77|^needs_doubles ' "$script" | grep -Eq 'CUDA|nvcc|device-cuda|doubles' || [[ $name = *_doubles ]] || continue
  [ "$name" != e2e/test_skips ] || continue
  listed=''
  while IFS='|' read -r machine pattern _; do
    # shellcheck disable=SC2254
    case "${machine// /}:$name" in no-cuda:${pattern// /}) listed=1 ;; esac
  done <"$SOURCE/tests/skips"
  [ -n "$listed" ] || fail "tests/skips has no line 'no-cuda | $name'"
  count=$((${count:-0} + 1))
done
[ "${count:-0}" -ge 8 ] || fail "only ${count:-0} scripts need CUDA"

# A plugin that cannot be loaded fails its cells: one that is not there, a damaged one, and those of the build cut short.
cell() { TOY=$BUILD/tests/support/toy expect "$1" "$BUILD/tests/matrix/test_matrix" "${@:2}"; }
if [ -x "$BUILD/tests/matrix/test_matrix" ]; then
  echo damaged >damaged.so
  for offload in nowhere "$PWD/damaged.so"; do
    TESSERA_MATRIX_OFFLOAD=$offload cell 1 "comm=self,offload=${offload##*/},*,W=1,accum=1,*"
    grep -q '^1 cells run, 1 failed\|^\([0-9]*\) cells run, \1 failed' out || fail "offload $offload: $(cat out)"
  done
  for name in comm-shm offload-cpu precision-bf16; do
    kind=${name%-*} file=$PWD/libtessera-$name.so
    [ -e "$BUILD/plugins/libtessera-$name.so" ] || continue
    cp "$BUILD/plugins/libtessera-$name.so" "$file"
    export TESSERA_MATRIX_"${kind^^}"="$file"
    ranks=''
    [ "$kind" != comm ] || ranks=,W=2
    cell 0 --cell "$kind=$file$ranks"
    head -c 4000 "$BUILD/plugins/libtessera-$name.so" >"$file"
    cell 1 --cell "$kind=$file$ranks"
    grep -q '^1 cells run, 1 failed' out && grep -q "libtessera-$name.so" err || fail "$name cut short: $(cat out err)"
    unset TESSERA_MATRIX_"${kind^^}"
  done
fi
expect 2 env TOY=x "$BUILD/tests/matrix/test_matrix" --all
cell 1 --cell comm=self,W=2
one_line err "test_matrix: no cell has comm=self,W=2"
