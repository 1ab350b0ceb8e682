#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The version stands in one place; `--version` says what was built in; each package that quickstart installs to build with is
# in the list of dependencies; the files that a stranger looks for are there.
. "$SOURCE/tests/e2e/lib.sh"
version=$(sed -n 's/^project(tessera VERSION \([0-9.]*\) .*/\1/p' "$SOURCE/CMakeLists.txt")
[ -n "$version" ] || fail "no version in CMakeLists.txt"
expect 0 "$TESSERA" --version
[ "$(head -n 1 out)" = "tessera $version" ] || fail "--version says $(head -n 1 out), CMakeLists.txt $version"
has_line out '  built in     .+'
has_line out '  left out     .+'
# Both lists together have each part once.
[ "$(sed -n 's/^  \(built in\|left out\) *//p' out | tr ',' '\n' | grep -c '(')" = 9 ] || fail "not 9 parts: $(cat out)"
expect 0 "$TESSERA" train --version
[ "$(head -n 1 out)" = "tessera $version" ] || fail "train --version: $(head -n 1 out)"
for plugin in "$BUILD"/plugins/*.so; do
  [ -e "$plugin" ] || continue
  expect 0 "$TESSERA" plugins info "$plugin" --json
  grep -q "\"version\":\"$version\"" out || fail "$plugin is not of version $version: $(cat out)"
  grep -q '"license":"BSD-3-Clause"' out || fail "$plugin names no licence: $(cat out)"
done
! grep -rnF "$version" "$SOURCE"/{core,kit,tools,plugins,cmake} || fail "the version stands in a second place"
grep -q "^## $version" "$SOURCE/CHANGELOG.md" || fail "CHANGELOG.md has no $version"

eval "$(sed -n '/^\(demo_\)\{0,1\}packages="/p' "$SOURCE/tools/quickstart")"
[ "$(wc -w <<<"$packages")" -gt 10 ] || fail "quickstart's packages are not found: $packages"
for package in $packages; do
  case $package in build-essential | gcc | libc6-dev | cmake | ninja-build | pkg-config) continue ;; esac
  grep -Eq "[|,] $package( |,)" "$SOURCE/docs/dependencies.md" || fail "docs/dependencies.md does not name $package"
done
for file in LICENSE CONTRIBUTING.md SECURITY.md CHANGELOG.md Dockerfile .github/workflows/ci.yml; do
  [ -s "$SOURCE/$file" ] || fail "no $file"
done
# The workflow gets a checkout and calls .ci/run, and nothing else: what a change must pass stands in one place.
runs=$(sed -n 's/^ *- run: //p' "$SOURCE/.github/workflows/ci.yml")
[ "$runs" = "apt-get update && apt-get install -y --no-install-recommends ca-certificates git
.ci/run" ] || fail "the workflow runs: $runs"
[ "$(grep -c '^ *- ' "$SOURCE/.github/workflows/ci.yml")" = 3 ] || fail "the workflow has other steps"
echo "version $version"
