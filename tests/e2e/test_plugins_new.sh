#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# `tessera plugins new` for each kind, and for optimizers of blocks, of rows and of whole matrices: the project builds against an install, in a
# directory from which no source of ours can be reached, without a warning; it passes its own test (check, train); sums and
# numbers are those of the plugins that come with Tessera. What cannot be created is refused, and leaves nothing.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
. "$SOURCE/tests/e2e/lib.sh"
work=$(mktemp -d) # the build may lie inside the source, and the install may not
prefix=$work/prefix
trap 'rm -rf "$work"' EXIT
cmake --install "$BUILD" --prefix "$prefix" >install.log
tessera=$prefix/bin/tessera
unset TESSERA_PLUGIN_PATH

! grep -rlF "$SOURCE" "$prefix/include" "$prefix/share" "$prefix"/lib*/cmake | grep . || fail "the install points to the source"
cd "$work"
head -c 6000 "$SOURCE/README.md" >text
small="gpt --data $work/text --layers 2 --heads 2 --width 16 --context 16 --steps 2 --seed 3"
digest() { "$tessera" train $small --quiet --json "$@" | sed -n 's/.*"params_digest":"\([0-9a-f]*\)".*/\1/p'; }
launcher=$(command -v ccache || true)
for project in comm offload precision wrap optimizer device block row matrix; do
  kind=$project grain=
  case $project in block | row | matrix) kind=optimizer grain="--grain $project" ;; esac
  expect 0 "$tessera" plugins new $grain $kind my-$project ./$project/
  cmake -S $project -B $project/build -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_INSTALL_PREFIX="$prefix" \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_C_FLAGS=-Werror >$project.log 2>&1 || { cat $project.log; fail "$project: cmake"; }
  cmake --build $project/build --verbose >$project.log 2>&1 || { cat $project.log; fail "$project does not build"; }
  ! grep -F "$SOURCE/" $project.log || fail "$project is built with files of the source"
  case $kind in o*) article=an ;; *) article=a ;; esac
  grep -qx "# my-$project: $article $kind plugin for Tessera" $project/README.md || fail "$project: $(head -n 1 $project/README.md)"
  ! grep -n '@[A-Z]*@' $project/* 2>/dev/null || fail "$project: a word was not filled in"
  [ "$(nm -D --defined-only $project/build/*.so | awk '{ print $3 }' | sort | tr '\n' ' ')" = \
    "tess_plugin_note_v1 tess_plugin_open_v1 " ] || fail "$project exports $(nm -D --defined-only $project/build/*.so)"
  CHECK_OPTIONS=$brief_checks \
    ctest --test-dir $project/build --output-on-failure >$project.log 2>&1 || { cat $project.log; fail "$project: its own test"; }
  # Its test compares ranks: a step that counts pieces, of which each rank has others, fails it.
  if [ $project = optimizer ]; then
    cp -r $project counting
    sed -i 's/^    (void)error;$/    (void)error;\n    static int pieces;\n    p->master[0] += 1e-3f * (float)pieces++;/' counting/plugin.c
    rm -r counting/build
    cmake -S counting -B counting/build -DCMAKE_PREFIX_PATH="$prefix" >counting.log && cmake --build counting/build >>counting.log ||
      fail "the optimizer that counts: $(tail -n 5 counting.log)"
    ! CHECK_OPTIONS="--only optimizer/descriptions" sh counting/test.sh "$tessera" "$work/counting/build/libtessera-optimizer-my-optimizer.so" >out 2>err ||
      fail "its own test passes an optimizer of which ranks differ"
    grep -q "^one rank ends in the digest '[0-9a-f]*', two ranks in '[0-9a-f]*'$" err || fail "ranks that differ: $(cat err)"
  fi
  cmake --install $project/build >/dev/null
  expect 0 "$tessera" plugins info my-$project
  has_line out "kind +$kind"
done

# The same bits as with what comes with Tessera, and found by name where it was installed.
base=$(digest)
[ -n "$base" ] || fail "no digest"
for option in "--offload my-offload" "--offload my-offload:all" "--wrap my-wrap:2" "--device my-device"; do
  [ "$(digest $option)" = "$base" ] || fail "$option: another digest"
done
if [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ]; then
  for ranks in 2 3; do
    ours=$(digest -n $ranks --comm my-comm) theirs=$(digest -n $ranks --comm gloo)
    [ -n "$ours" ] && [ "$ours" = "$theirs" ] || fail "W = $ranks: my-comm gives $ours, gloo $theirs"
  done
fi
[ "$(digest --precision my-precision)" = "$(digest --precision bf16)" ] || fail "my-precision is not bf16"
own=$(digest --optimizer my-optimizer)
[ -n "$own" ] && [ "$own" != "$base" ] && [ "$(digest --optimizer my-optimizer:beta=0.5)" != "$own" ] ||
  fail "--optimizer my-optimizer and its beta change nothing: $own"
# Whole matrices: one digest on any number of ranks, and nothing of the other template.
one_digest() { digest --deterministic "$@" | sort -u; }
own=$(one_digest --optimizer my-matrix --accum 2)
[ -n "$own" ] && [ "$own" != "$(one_digest --optimizer my-optimizer --accum 2)" ] || fail "my-matrix gives $own"
[ ! -e "$BUILD/plugins/libtessera-comm-shm.so" ] || [ "$(one_digest --optimizer my-matrix -n 2)" = "$own" ] ||
  fail "my-matrix: another digest on two ranks"
# Rows: the same, and the momentum of a row is divided by one number, so beta2 changes the bits.
rows=$(one_digest --optimizer my-row --accum 2)
[ -n "$rows" ] && [ "$rows" != "$own" ] && [ "$rows" != "$(one_digest --optimizer my-row:beta2=0.5 --accum 2)" ] || fail "my-row gives $rows"
[ ! -e "$BUILD/plugins/libtessera-comm-shm.so" ] || [ "$(one_digest --optimizer my-row -n 2)" = "$rows" ] ||
  fail "my-row: another digest on two ranks"
"$tessera" plugins info my-row --json | grep -q '"grain":\["row"\],"states":\["momentum","second"\]' || fail "my-row: $("$tessera" plugins info my-row)"
# Blocks: the same. A parameter that a rank cuts within a block, or a code that is not the momentum's, changes the bits.
blocks=$(one_digest --optimizer my-block --accum 2)
[ -n "$blocks" ] && [ "$blocks" != "$own" ] && [ "$blocks" != "$(one_digest --optimizer my-block:beta=0.5 --accum 2)" ] ||
  fail "my-block gives $blocks"
[ ! -e "$BUILD/plugins/libtessera-comm-shm.so" ] || [ "$(one_digest --optimizer my-block -n 2)" = "$blocks" ] ||
  fail "my-block: another digest on two ranks"
"$tessera" plugins info my-block --json | grep -q '"grain":\["block"\],"states":\["momentum","scale"\]' ||
  fail "my-block: $("$tessera" plugins info my-block)"
expect 0 "$tessera" plugins new optimizer my-element element --grain=element
cmp element/plugin.c <(sed 's/my-optimizer/my-element/g; s/my_optimizer/my_element/g' optimizer/plugin.c) || fail "--grain element"
code=0
TESSERA_MY_PRECISION_WIRE=sideways digest --precision my-precision >out 2>err || code=$?
grep -q 'wire is "sideways"\|MY_PRECISION_WIRE' err || fail "a bad value of the template's variable: $(cat err)"

# What is refused, and that nothing is left of it.
mkdir full busy && touch full/mine
before=$(find . | sort)
expect 3 "$tessera" plugins new wrap x full
one_line err "tessera plugins new: full is there and not empty"
expect 3 "$tessera" plugins new wrap x nowhere/deep
expect 2 "$tessera" plugins new rap x y
grep -q 'did you mean' err || fail "rap: $(cat err)"
for name in Upper 'a b' ../x '' abcdefghijklmnopqrstuvwxyz0123456; do
  expect 2 "$tessera" plugins new wrap "$name" y
done
expect 2 "$tessera" plugins new device cpu y
grep -q 'built in' err || fail "device cpu: $(cat err)"
expect 2 "$tessera" plugins new wrap x
expect 2 "$tessera" plugins new wrap x y z
expect 2 "$tessera" plugins new wrap x .
expect 2 "$tessera" plugins new optimizer x y --grain blocks
one_line err "tessera plugins new: --grain is 'blocks', expected element, block, row or matrix"
expect 2 "$tessera" plugins new optimizer x y --grain
one_line err "tessera plugins new: --grain needs a value, element, block, row or matrix"
expect 2 "$tessera" plugins new --grain matrix wrap x y
one_line err "tessera plugins new: --grain is of an optimizer, and 'wrap' is none"
chmod a-w busy
if [ "$(id -u)" != 0 ]; then expect 3 "$tessera" plugins new wrap x busy/y; fi
rm -f out err
[ "$(find . | sort | grep -v '^./\(out\|err\)$')" = "$(echo "$before" | grep -v '^./\(out\|err\)$')" ] || fail "something was left: $(find .)"
mkdir -m 700 empty
expect 0 "$tessera" plugins new precision 4bit empty
[ -e empty/plugin.c ] || fail "an empty directory was not used"
cc -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -I"$prefix/include" -I"$prefix/share/tessera/kit" -D_GNU_SOURCE empty/plugin.c || fail "a name that begins with a digit"
expect 0 "$tessera" plugins new precision my_2 underscore
cc -std=gnu11 -fsyntax-only -Wall -Wextra -Werror -I"$prefix/include" -I"$prefix/share/tessera/kit" -D_GNU_SOURCE underscore/plugin.c || fail "a name with an underscore"
grep -q '"precision-wire"' underscore/plugin.c || fail "a key with an underscore"
echo "nine projects built, tested and installed; refusals leave nothing"
