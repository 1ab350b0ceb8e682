#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The guide as a site: every page is made, is reachable from the navigation, and links only to what is there.
. "$SOURCE/tests/e2e/lib.sh"
/usr/bin/python3 -c 'import markdown' 2>/dev/null || { echo "skipped: python3-markdown is not installed"; exit 77; }
[ -e "$BUILD/pages/reference.md" ] || { echo "skipped: this build makes no reference"; exit 77; }
expect 0 /usr/bin/python3 "$SOURCE/tools/pages/site" "$BUILD" site
count=0
for page in "$SOURCE"/docs/*.md; do
  name=$(basename "$page" .md)
  [ "$name" != README ] || name=guide
  [ -s "site/$name.html" ] || fail "no page of $page"
  [ $name = guide ] || grep -o '<nav.*</nav>' site/index.html | grep -q "href=\"$name.html\"" ||
    fail "the navigation, docs/README.md, does not lead to $name"
  count=$((count + 1))
done
for page in "$SOURCE"/docs/benchmarks/*.md; do
  name=benchmarks-$(basename "$page" .md)
  [ "$name" != benchmarks-README ] || name=benchmarks
  [ -s "site/$name.html" ] || fail "no page of $page"
  [ $name = benchmarks ] || grep -q "href=\"$name.html\"" site/benchmarks.html || fail "docs/benchmarks/README.md does not lead to $name"
  count=$((count + 1))
done
for page in site/*.html; do
  while read -r link; do
    [ -e "site/$link" ] || fail "$page links to $link, which is not there"
  done < <(grep -o '\(href\|src\)="[^"#:]*[".#]' "$page" | sed 's/.*="//; s/[#"]$//' | grep -v '^\.\./' | grep -v '^$' | sort -u)
done
grep -q '<a href="memory.html">Memory: does it fit?</a>' site/your-own-loop.html || fail "a link of your-own-loop shows a file name"
grep -q '<ol start="2">' site/two-hosts.html || fail "steps behind a block of code count from 1 again"
grep -q '<h3 id="tess_shard">' site/reference.html || fail "the reference lacks tess_shard"
echo "$count pages, every link leads somewhere"
