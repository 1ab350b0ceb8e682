#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 200
# The guide's code. C blocks of a page are one source: it compiles with warnings as errors, and runs where it has a main. A
# block that cannot be compiled follows a line <!-- not run: REASON -->. Commands: e2e/test_docs_commands.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=warning
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
lib=$(echo "$BUILD"/libtessera.so)
[ -e "$lib" ] || { echo "skipped: no libtessera.so in this build"; exit 77; }

pages=0
for page in "$SOURCE"/README.md "$SOURCE"/docs/*.md; do
  name=$(basename "$page" .md)
  awk '/^<!-- not run:/ { skip = 1; next } /^```c$/ { on = !skip; next } /^```$/ { on = 0 } on { print } NF { skip = 0 }' "$page" >"$name.c"
  [ -s "$name.c" ] || continue
  pages=$((pages + 1))
  grep -q '#include <tessera/tessera.h>' "$name.c" || sed -i '1i #include <stdio.h>\n#include <tessera/tessera.h>' "$name.c"
  cc -std=gnu11 -Wall -Wextra -Werror -Wno-unused-parameter -Wno-unused-function -I"$SOURCE/core/include" -c "$name.c" -o "$name.o" 2>cc.log || fail "C of $page: $(head -c 2000 cc.log)"
  grep -q '^int main' "$name.c" || continue
  cc "$name.o" -o "$name" -L"$BUILD" -ltessera -lm -Wl,-rpath,"$BUILD" || fail "$page does not link"
done
[ "$pages" -ge 5 ] || fail "only $pages pages have C"
for ranks in 1 2; do
  [ $ranks = 1 ] || [ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || continue
  for name in your-own-loop blocks; do
    expect 0 "$TESSERA" run --no-prefix -n $ranks -- ./$name
    grep -q ': learns$' out || fail "$name on $ranks ranks: $(cat out)"
    cp out $name.$ranks
    TESSERA_STRICT=1 TESSERA_STRATEGY=grad_op expect 0 "$TESSERA" run --no-prefix -n $ranks -- ./$name
    diff <(grep learns out) <(grep learns $name.$ranks) || fail "$name: strategy and STRICT change its numbers"
  done
done
[ "$(sed -n 's/.*add up to \([0-9.]*\) and \([0-9.]*\);.*/\1 \2/p' your-own-loop.1 | awk '{ print $1 == $2 }')" = 1 ] ||
  fail "tess_each_owned and tess_each_full differ: $(cat your-own-loop.1)"
# Saved, and gone on with to the same numbers.
expect 0 "$TESSERA" run --no-prefix -n 1 -- ./your-own-loop checkpoints
[ -d checkpoints/step-000060 ] && rm -r checkpoints/step-000060 || fail "no checkpoint of step 60"
expect 0 "$TESSERA" run --no-prefix -n 1 -- ./your-own-loop checkpoints
grep learns out | diff - <(grep learns your-own-loop.1) || fail "your-own-loop does not go on from step 40 to the same numbers"
TESSERA_ACCUM=4 TESSERA_SYNC=end expect 0 "$TESSERA" run --no-prefix -n 1 -- ./your-own-loop
TESSERA_ACTIVATIONS=recompute expect 0 "$TESSERA" run --no-prefix -n 1 -- ./blocks
diff <(grep learns out) <(grep learns blocks.1) || fail "recompute changes the numbers of blocks.md"
expect 0 "$TESSERA" plan -n 64 -- ./your-own-loop

echo "$pages pages with C"
