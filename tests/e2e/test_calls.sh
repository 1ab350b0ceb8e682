#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# What test_rooms.sh holds for includes, for calls: a symbol that a room leaves undefined is defined in a room that it may
# use. And no circle of files in core/, by calls and by includes. A planted violation and a planted circle must be found.
set -eu
rooms=$(grep -oE '\[[a-z]+\]="[a-z ]*"' "$SOURCE/tests/e2e/test_rooms.sh" | head -10 | tr -d '[]"')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -z "$(find "$BUILD/core/CMakeFiles" -name '*.c.o' -newermt '2000-01-01' -print -quit)" ] && { echo "skipped: no objects of the core in $BUILD"; exit 77; }

# symbols FOLDER: "kind symbol room/file" of each object below it; d: defined, u: undefined.
symbols() {
  find "$1" -path '*/tessera_*.dir/*' -name '*.c.o' | while read -r object; do
    file=${object#*.dir/}
    nm "$object" | awk -v file="${file%.o}" 'NF == 3 && $2 ~ /[TDBRCVW]/ { print "d", $3, file } $1 == "U" { print "u", $2, file }'
  done
}
# calls SYMBOLS: "file file" for each call or use of data between files of the core.
calls() {
  awk '$1 == "d" { at[$2] = $3 } $1 == "u" { n++; name[n] = $2; from[n] = $3 }
    END { for (i = 1; i <= n; i++) if (name[i] in at) print from[i], at[name[i]] }' "$1" | sort -u
}
# upward CALLS: those that the table of rooms does not allow.
upward() {
  awk -v rooms="$rooms" 'BEGIN { m = split(rooms, line, "\n"); for (i = 1; i <= m; i++) { split(line[i], part, "="); may[part[1]] = " " part[1] " " part[2] " " } }
    { split($1, from, "/"); split($2, to, "/"); if (index(may[from[1]], " " to[1] " ") == 0) print "a call upward: " $1 " -> " $2 }' "$1"
}
# includes ROOT: "file file" for each include of a header of the core.
includes() {
  (cd "$1" && grep -rnoE '^#include "[a-z_]+(/[a-z_0-9]+)?\.h"' --include='*.[ch]' . | sed -E 's#^\./##; s#:[0-9]+:\#include "#  #; s#"$##' |
    while read -r file header; do
      case $header in */*) ;; *) header=${file%/*}/$header ;; esac
      [ -e "$header" ] && echo "$file $header"
    done) | sort -u
}

symbols "$BUILD/core/CMakeFiles" | sort -u >"$work/symbols"
calls "$work/symbols" >"$work/calls"
includes "$SOURCE/core" >"$work/includes"
[ "$(wc -l <"$work/calls")" -gt 100 ] || { echo "FAILED: only $(wc -l <"$work/calls") calls between files were found"; exit 1; }
wrong=$(upward "$work/calls")
[ -z "$wrong" ] || { echo "FAILED: $wrong"; exit 1; }
circles=$(sort -u "$work/calls" "$work/includes" | awk -f "$SOURCE/tests/support/circles.awk")
[ -z "$circles" ] || { echo "FAILED: files of core/ that reach each other: $circles"; exit 1; }

echo "base/log.c engine/pass.c" | cat - "$work/calls" >"$work/planted"
[ "$(upward "$work/planted")" = "a call upward: base/log.c -> engine/pass.c" ] || { echo "FAILED: a planted call upward was not found"; exit 1; }
printf '%s\n' "a b" "b c" "c b" "c d" | awk -f "$SOURCE/tests/support/circles.awk" >"$work/found"
[ "$(wc -w <"$work/found")" = 3 ] || { echo "FAILED: a planted circle was not found: $(cat "$work/found")"; exit 1; }
echo "$(wc -l <"$work/calls") calls between files, none upward; no circle"
