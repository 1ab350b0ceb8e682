#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 200
# The guide's code and commands. C blocks of a page are one source: it compiles with warnings as errors, and runs where it has
# a main. Commands of README and docs: `plan` and `plugins list` lines run; of the others each option must exist. A block that
# cannot be tried follows a line <!-- not run: REASON -->.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=warning
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
lib=$(echo "$BUILD"/libtessera.so)
[ -e "$lib" ] || { echo "skipped: no libtessera.so in this build"; exit 77; }

# ---- C ----
pages=0
for page in "$SOURCE"/README.md "$SOURCE"/docs/*.md; do
  name=$(basename "$page" .md)
  awk '/^<!-- not run:/ { skip = 1; next } /^```c$/ { on = !skip; skip = 0; next } /^```$/ { on = 0 } on' "$page" >"$name.c"
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
TESSERA_ACTIVATIONS=recompute expect 0 "$TESSERA" run --no-prefix -n 1 -- ./blocks
diff <(grep learns out) <(grep learns blocks.1) || fail "recompute changes the numbers of blocks.md"
expect 0 "$TESSERA" plan -n 64 -- ./your-own-loop

# ---- commands ----
# Indented lines that begin with the command; what stands behind two blanks is a remark.
tried=0
while IFS=: read -r page line; do
  command=$(sed 's/^ *//; s/^\$ //; s#^\(~/tessera/bin/\|build/release/\)##; s/   *.*//; s/ | .*//' <<<"$line")
  case $command in *…* | *'['* | *' -- '*) continue ;; esac # a synopsis, or another program's
  mapfile -t words < <(xargs -n 1 printf '%s\n' <<<"${command#tessera }")
  case " ${words[*]} " in
    *' --version '* | *' --help '* | *' -h '*) expect 0 "$TESSERA" "${words[@]}" ;;
    ' plan gpt '* | ' plan mnist '* | ' plugins list '*)
      "$TESSERA" "${words[@]}" >out 2>err
      code=$?
      [ $code = 0 ] || [ $code = 4 ] || fail "$page: $command: $(cat err)" ;; # 4: a budget that the page shows to be too small
    ' plugins new '*) ;; # e2e/test_install runs it
    *) "$TESSERA" "${words[0]}" "${words[@]:1}" --help >out 2>err || fail "$page: $command: $(cat err)" ;;
  esac
  tried=$((tried + 1))
done < <(cd "$SOURCE" && for page in README.md docs/*.md; do
  awk -v page="$page" '/^<!-- not run:/ { skip = 1; next } /^$/ { if (seen) skip = seen = 0 } skip && /^    / { seen = 1; next }
    /^    (\$ )?((~\/tessera\/bin|build\/release)\/)?tessera [a-z-]/ { print page ":" $0 }' "$page"; done)
[ $tried -gt 25 ] || fail "only $tried commands found"
echo "$pages pages with C, $tried commands"
