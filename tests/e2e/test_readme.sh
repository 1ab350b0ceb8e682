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
for page in README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md plugins/*/README.md examples/plugins/*/README.md; do
  [ -e "$page" ] || continue
  while read -r link; do
    [ -e "$(dirname "$page")/$link" ] || fail "$page points to $link, which is not there"
    count=$((count + 1))
  done < <(grep -o '](\([^):#]*\))' "$page" | sed 's/](\(.*\))/\1/')
done
[ "$count" -gt 5 ] || fail "only $count links found"
echo "$count links"
