#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# What README.md quotes is what is in the tree, and every file it and the docs point to is there.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$SOURCE/README.md" >quoted.c
tail -n +2 "$SOURCE/examples/first/train.c" | diff quoted.c - || fail "README.md does not quote examples/first/train.c behind its licence line"
[ "$(grep -cv '^$' "$SOURCE/examples/plugins/wrap-transformer/wrap_transformer.c")" -lt 100 ] ||
  fail "wrap-transformer has 100 lines or more"
grep -Fq "$(sed -n '/^tessera_add_plugin/p' "$SOURCE/examples/plugins/wrap-transformer/CMakeLists.txt")" "$SOURCE/README.md" ||
  fail "README.md does not quote examples/plugins/wrap-transformer/CMakeLists.txt"
cd "$SOURCE"
count=0
for page in README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md docs/benchmarks/*.md {plugins,tools}/*/README.md examples/*/*/README.md; do
  [ -e "$page" ] || continue
  while read -r link; do
    [ -e "$(dirname "$page")/$link" ] || fail "$page points to $link, which is not there"
    count=$((count + 1))
  done < <(grep -o '](\([^):#]*\))' "$page" | sed 's/](\(.*\))/\1/')
done
[ "$count" -gt 5 ] || fail "only $count links found"

# Paths of this tree, linked or not, and the names of docs/architecture.md's list of rooms.
pages=$(ls README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md docs/benchmarks/*.md plugins/*/README.md examples/*/*/README.md tools/*/README.md)
paths() { # FILE…: "PAGE PATH" per line; KIND-NAME and programs that a build makes are no paths
  grep -oHE '(^|[ (`"])(core|kit|tools|tests|plugins|examples|docs|cmake|\.ci)/[A-Za-z0-9_./*-]*[A-Za-z0-9_*]' "$@" | sed 's/:[ (`"]*/ /' | sort -u |
    grep -Ev ' plugins/KIND-NAME$| tests/matrix/test_matrix$| tests/support/toy$'
}
listed() { # core/ROOM/NAME and kit/NAME per line
  awk '/^```$/ { on = 0 } /^core\/include\/tessera\// { on = 1 } !on { next }
    /^[a-z]/ { room = $1 } room ~ /^(core\/[a-z]*|kit)\/$/ { names = substr($0, 24); sub(/  .*/, "", names); gsub(/,/, "", names)
      n = split(names, name, " "); for (i = 1; i <= n; i++) print room name[i] }' docs/architecture.md
}
# shellcheck disable=SC2086
wrong=$(paths $pages | while read -r page path; do compgen -G "$path" >/dev/null || echo "$page: $path"; done)
[ -z "$wrong" ] || fail "no such file: $wrong"
[ "$(listed | wc -l)" -gt 40 ] || fail "docs/architecture.md lists $(listed | wc -l) files"
wrong=$(listed | while read -r name; do [ -e "$name.c" ] || [ -e "$name.h" ] || echo "$name"; done)
[ -z "$wrong" ] || fail "docs/architecture.md lists what is not there: $wrong"
printf 'See `core/engine/not_here.c`.\n' >"$OLDPWD/planted.md"
[ "$(paths "$OLDPWD/planted.md" | wc -l)" = 1 ] || fail "a planted path was not found"
# shellcheck disable=SC2086
echo "$count links, $(paths $pages | wc -l) paths"
