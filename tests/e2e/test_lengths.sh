#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# How long functions and files are. Median and 90th percentile of functions for core/, plugins/ and tools/; a function over
# 50 lines and a file over 600 need a reason, which stands here.
. "$SOURCE/tests/e2e/lib.sh"
cd "$SOURCE" || exit 1
work=$OLDPWD
# path[ function]: reason
cat >"$work/reasons" <<'LIST'
core/include/tessera/plugin.h: the whole contract of plugins, two thirds of it comments on the slots
LIST
lengths() { find "$@" \( -name '*.c' -o -name '*.cc' \) ! -path '*/templates/*' -print0 | xargs -0 awk -f tests/support/function_lengths.awk | sort -n; }
figures() { lengths "$1" | awk -v folder="$1" '{ n[NR] = $1 } END { print folder ": " NR " functions, median " n[int((NR + 1) / 2)] ", p90 " n[int(NR * 0.9 + 0.5)] ", longest " n[NR] }'; }
for folder in core plugins tools; do
  figures "$folder" | tee "$work/$folder"
  [ "$(awk '{ print $2 }' "$work/$folder")" -gt 200 ] || fail "only $(cat "$work/$folder")"
  awk -F'[ ,]+' '{ exit !($5 <= 10 && $7 <= 22) }' "$work/$folder" || fail "median over 10 or p90 over 22: $(cat "$work/$folder")"
done
long=$(lengths core kit plugins tools | awk '$1 > 50' | while read -r lines name file; do grep -q "^$file $name:" "$work/reasons" || echo "$file $name $lines"; done)
[ -z "$long" ] || fail "functions over 50 lines: $long"
big=$(find core kit plugins tools \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) -print0 | xargs -0 wc -l | awk '$1 > 600 && $2 != "total" { print $2, $1 }' |
  while read -r file lines; do grep -q "^$file:" "$work/reasons" || echo "$file $lines"; done)
[ -z "$big" ] || fail "files over 600 lines: $big"
# A planted long function must be found.
{ echo 'static int planted(void) {'; for i in $(seq 70); do echo "    x += $i;"; done; echo '}'; } >"$work/planted.c"
[ "$(awk -f tests/support/function_lengths.awk "$work/planted.c" | cut -d' ' -f1,2)" = "72 planted" ] || fail "a planted function is not measured"
