#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A measured figure (a time, a rate, a share) in README or docs/ stands in docs/benchmarks too, beside its machine, date and
# command. Limits, defaults and simulated times are none: they are listed here by page.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
cd "$SOURCE"
figure='[0-9][0-9.,]* ?(ns|µs|ms|s|GB/s|GiB/s|MB/s|samples/s|tokens/s|%|seconds?|minutes?|hours?)'
# page: what the figures are when they are no measurement
declare -A none=( [checkpoints]="timings of restarts" [machine]="assumptions of the simulator"
  [plan]="a timeout" [plugins-check]="a default" [security]="a timeout" [testing]="a limit" [variables]="defaults" )
figures() { # FILE…: "FILE:LINE: FIGURE", code left out
  awk '/^ *```/ { fence = !fence; next } fence || /^    / { next } { gsub(/`[^`]*`/, ""); print FILENAME ":" FNR ": " $0 }' "$@" |
    grep -oE "^[^ ]+: |(^|[ (|])$figure([ .,;:)]|$)" | awk '/^[^ ]+: $/ { at = $0; next } { gsub(/^[ (|]+|[ .,;:)]+$/, ""); print at $0 }'
}
# orphans FILE…: the figures that are in no page of benchmarks.
orphans() {
  figures "$@" | while IFS= read -r line; do
    page=$(basename "${line%%:*}" .md)
    [ -z "${none[$page]:-}" ] || continue
    grep -Fqw -- "${line##*: }" docs/benchmarks/*.md || echo "$line"
  done
}
wrong=$(orphans README.md docs/*.md)
[ -z "$wrong" ] || fail "figures without a measurement in docs/benchmarks: $wrong"
for page in "${!none[@]}"; do
  [ "$page" = variables ] || [ -n "$(figures docs/$page.md)" ] || fail "docs/$page.md has no figure any more: take it off the list"
done
printf 'A step takes 123.456 ms here.\n' >"$OLDPWD/planted.md"
[ -n "$(orphans "$OLDPWD/planted.md")" ] || fail "a planted figure was not found"
echo "$(figures README.md docs/*.md | wc -l) figures"
