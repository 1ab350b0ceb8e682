#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
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
if(WITHIN)
  foreach(name one two)
    add_test(NAME slow/${name} COMMAND sh -c "exit ${${name}}")
    set_tests_properties(slow/${name} PROPERTIES SKIP_RETURN_CODE 77 LABELS slow)
  endforeach()
  set_tests_properties(unit/runs PROPERTIES TESSERA_WITHIN "slow/one;slow/two")
  set_tests_properties(e2e/skips PROPERTIES TESSERA_WITHIN slow/none)
endif()
file(WRITE ${CMAKE_BINARY_DIR}/left_out "plugin comm-x: libx not found\n")
END
cmake -S suite -B build -DTESSERA_NVCC:FILEPATH=OFF >cmake.log 2>&1 || fail "$(cat cmake.log)"
export TESSERA_TEST_SKIPS=$PWD/skips TESSERA_TEST_RESULTS=$PWD/results_kept
unset TESSERA_TEST_TURNS TESSERA_TEST_BASE TESSERA_TEST_SEED
table() { expect "$1" bash "$SOURCE/tests/closing_table" build; }
printf 'any | e2e/skips | x\nany | test_case__* | x\nany | plugin comm-x | x\n' >skips
table 0
has_line out '  unit +1 tests +[0-9]+ s'
has_line out 'in [0-9]+ s, with [0-9]+ s of processors'
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

# Some of the tests: the seed chooses one of these two, another seed the other; without turns, and without git, all run. A test
# whose paths have changed runs with each seed: by its own file, by a path behind it, committed or not.
printf '# x\n1 unit/runs 1/2 core/a/\n1 e2e/skips 1/2 core/b/\n' >longest
export TESSERA_TEST_LONGEST=$PWD/longest
# turns TURNS SEED RUN LATER: how many run, and how many are named as left to another time.
turns() {
  TESSERA_TEST_TURNS=$1 TESSERA_TEST_SEED=$2 table 0
  [ "$(grep -c ' Test *#' out) $(grep -c '^  another time' out)" = "$3 $4" ] || fail "turns $*: $(cat out)"
}
turns all 1 2 0
TESSERA_TEST_SOURCE=$PWD/.. TESSERA_TEST_BASE='' turns some 1 2 0
# later KIND SEED: what a run leaves out.
later() { TESSERA_TEST_TURNS=some TESSERA_TEST_SEED=$2 "$SOURCE/tests/turns" "$1" | tr '\n' ';'; }
if command -v git >/dev/null; then
  export TESSERA_TEST_SOURCE=$PWD/checkout
  commit() { git -C checkout -c user.name=x -c user.email=x@y commit -q --allow-empty -m "$1"; }
  commit first && commit second
  turns some 1 1 1
  grep -qx "  this choice again: TESSERA_TEST_TURNS=some TESSERA_TEST_SEED=1 TESSERA_TEST_BASE=$(git -C checkout rev-parse HEAD^)" out ||
    fail "the line that repeats: $(cat out)"
  for ((seed = 0; seed < 10; seed++)); do later release $seed; echo; done >chosen
  [ "$(later release 7)" = "$(sed -n 8p chosen)" ] || fail "the same seed chooses otherwise"
  [ "$(sort -u chosen)" = "$(printf 'e2e/skips 1/2;\nunit/runs 1/2;')" ] || fail "10 seeds leave out: $(sort chosen | uniq -c)"
  [ "$(grep -c unit chosen)" -gt 2 ] && [ "$(grep -c unit chosen)" -lt 8 ] || fail "not about half: $(sort chosen | uniq -c)"
  # Of ten tests of a fourth each 2 or 3 run, with any seed.
  for i in 1 2 3 4 5 6 7 8 9 10; do echo "1 asan:unit/x$i 1/4 core/x/"; done >>longest
  for ((seed = 0; seed < 4; seed++)); do later asan $seed | tr ';' '\n' | wc -l; done | sort -u >counts
  [ "$(tr '\n' ' ' <counts)" = "7 8 " ] || fail "of ten with a share of a fourth are left out: $(cat counts)"
  all_seeds() { for seed in $each; do later release $seed; done; } # a seed that leaves out the one, and one that does the other
  each="$(($(grep -n unit chosen | head -n 1 | cut -d: -f1) - 1)) $(($(grep -n skips chosen | head -n 1 | cut -d: -f1) - 1))"
  mkdir -p checkout/core/b checkout/tests/unit
  touch checkout/core/b/x.c
  ! all_seeds | grep e2e/skips || fail "a file that git does not have in its room: it does not run"
  git -C checkout add core && commit third
  ! all_seeds | grep e2e/skips || fail "its room has changed in the commit: it does not run"
  commit fourth
  all_seeds | grep -q e2e/skips || fail "its room had changed before: it runs all the same"
  ! TESSERA_TEST_BASE=HEAD~2 all_seeds | grep e2e/skips || fail "its room has changed since the base: it does not run"
  touch checkout/tests/unit/runs.c
  ! all_seeds | grep unit/runs || fail "its own file has changed: it does not run"

  # tests/results: each result with its commit; what has not passed since a base is named.
  export TESSERA_TEST_RESULTS=$PWD/results_kept
  rm -rf results_kept checkout/*
  git -C checkout add -A && commit clean
  TESSERA_TEST_TURNS=all table 0
  head=$(git -C checkout rev-parse HEAD)
  has_line results_kept "release:unit/runs passed [0-9.]+ $head"
  has_line results_kept "release:e2e/skips skipped [0-9.]+ $head"
  printf 'asan-tests passed 1\nasan-matrix passed 1\ntsan passed 1\n' | "$SOURCE/tests/results" add ci
  expect 0 "$SOURCE/tests/results" since HEAD^ build
  one_line out "5 of 5 have passed in these 1 commits"
  commit fifth
  expect 1 "$SOURCE/tests/results" since HEAD^ build
  grep -qx "release:unit/runs: passed at $head" out || fail "an older result counts: $(cat out)"
  expect 0 "$SOURCE/tests/results" since HEAD~2 build
  touch checkout/stray2
  echo "unit/runs passed 1" | "$SOURCE/tests/results" add release
  expect 1 "$SOURCE/tests/results" since HEAD~2 build
  echo "unit/runs failed 1" | "$SOURCE/tests/results" add release
  expect 1 "$SOURCE/tests/results" since HEAD~2 build
  has_line out "release:unit/runs: failed at [0-9a-f]+\+"
  sed -i '/tsan/d' results_kept
  expect 1 "$SOURCE/tests/results" since HEAD~2 build
  has_line out "ci:tsan: never run"
  # Of TURNS=all a test is left to those that contain it, if they are in the same run; its result is the worst of theirs.
  within() { # ONE TWO CODE RESULT [CTEST ARGUMENT...]
    cmake -S suite -B build -DWITHIN=1 -Done="$1" -Dtwo="$2" >cmake.log 2>&1 || fail "$(cat cmake.log)"
    rm -f results_kept
    TESSERA_TEST_TURNS=all expect "$3" bash "$SOURCE/tests/closing_table" build "${@:5}"
    has_line results_kept "release:unit/runs $4 [0-9a-f]+"
  }
  rm checkout/stray2 && commit sixth
  printf 'any | e2e/skips | x\nany | slow/* | x\nany | test_case__* | x\nany | plugin comm-x | x\n' >skips
  in_both="within:slow/one,slow/two"
  within 0 0 0 "passed $in_both"
  has_line out '  unit/runs: within slow/one slow/two'
  [ "$(grep -c ' Test *#' out)" = 3 ] || fail "not left to others, or another too: $(cat out)"
  mkdir build/made && echo 'add_test(unit/inner "true")' >build/made/CTestTestfile.cmake # a test's own build, which is none of ours
  for name in asan-tests asan-matrix tsan; do echo "$name passed 1"; done | "$SOURCE/tests/results" add ci
  expect 0 "$SOURCE/tests/results" since HEAD^ build
  one_line out "7 of 7 have passed in these 1 commits"
  within 0 1 8 "failed $in_both"
  expect 1 "$SOURCE/tests/results" since HEAD^ build
  has_line out 'release:unit/runs: failed at [0-9a-f]+'
  within 77 0 1 "skipped $in_both"
  has_line out '  test NOT ALLOWED +unit/runs: within slow/one,slow/two, which is skipped'
  within 0 0 0 'passed [0-9.]+' -LE slow
  within 0 0 0 'passed [0-9.]+' -E one
  cmake -S suite -B build -DWITHIN= >cmake.log
  unset TESSERA_TEST_SOURCE

  # tests/chance: of one commit always the same, of the next another; a tree that git does not know has a seed too.
  cp "$SOURCE/tests/chance" checkout && git -C checkout add chance && commit seventh
  one=$(checkout/chance word) && [ "$one" = "$(checkout/chance word)" ] && [ "$one" != "$(checkout/chance other)" ] || fail "not of seed and word"
  [ "$(checkout/chance)" = "$(git -C checkout rev-parse HEAD)" ] || fail "the seed is $(checkout/chance)"
  commit eighth
  [ "$one" != "$(checkout/chance word)" ] || fail "another commit chooses the same"
  git -C checkout rm -q --cached chance && [ "$(checkout/chance)" = tarball ] || fail "the seed of a tarball is $(checkout/chance)"
fi
unset TESSERA_TEST_LONGEST TESSERA_TEST_TURNS

# The real list: names of tests, each share with paths that there are. Without shares in the list .ci/run would run all.
"$SOURCE/tests/ctest_files" "$BUILD" | xargs grep -hoE 'add_test\((\[=\[)?[^] "]+' | sed -E 's/add_test\((\[=\[)?//' >names
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
while read -r seconds name share paths; do
  [[ $seconds =~ ^[0-9]+$ && ${share:-1/2} =~ ^1/[2-9]$ ]] && [ -z "$share" ] || [ -n "$paths" ] || fail "tests/longest: $name"
  for path in $paths; do
    compgen -G "$SOURCE/$path*" >/dev/null || fail "tests/longest: $name: no $path"
  done
  case $name in tsan:*) continue ;; esac # names of its build alone
  is_built "${name#asan:}" || [ -n "${SANITIZE:-}" ] || fail "tests/longest: no test $name"
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
