#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# What test_rooms.sh holds for includes, for calls: a symbol that a room leaves undefined is defined in a room that it may
# use. And no circle of files in core/, kit/, tools/ or a plugin, by calls and by includes. Planted ones must be found.
set -eu
rooms=$(sed -n '/^declare -A core/,/)$/p' "$SOURCE/tests/e2e/test_rooms.sh" | grep -oE '\[[a-z]+\]="[a-z ]*"' | tr -d '[]"')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
[ -z "$(find "$BUILD/core/CMakeFiles" -name '*.c.o' -newermt '2000-01-01' -print -quit)" ] && { echo "skipped: no objects of the core in $BUILD"; exit 77; }

# symbols FOLDER [PREFIX]: "kind symbol room/file" of each object below it; d: defined, u: undefined.
symbols() {
  find "$1" -path '*/t*_*.dir/*' -name '*.c.o' ! -path '*/__/*' -print0 | xargs -0 nm -A | awk -v prefix="${2-}" '{
    at = index($0, ".o:"); file = substr($0, 1, at - 1); sub(/.*\.dir\//, prefix, file); n = split(substr($0, at + 3), part, " ")
    if (n == 3 && part[2] ~ /[TDBRCVW]/) print "d", part[3], file
    if (part[1] == "U") print "u", part[2], file }'
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
# includes ROOT [PREFIX]: "file file" for each include of a header below ROOT; PREFIX begins its path in other folders.
includes() {
  (cd "$1" && grep -rnoE '^#include "[a-z_]+(/[a-z_0-9]+)*\.h"' --include='*.[ch]' --include='*.cc' . | sed -E 's#^\./##; s#:[0-9]+:\#include "#  #; s#"$##' |
    while read -r file header; do
      case $header in "${2-/}"*) header=${header#"${2-}"} ;; */*) [ -z "${2-}" ] || header=${file%/*}/$header ;; *) [ "${file%/*}" = "$file" ] || header=${file%/*}/$header ;; esac
      [ -e "$header" ] && echo "$file $header"
    done) | sort -u
}

symbols "$BUILD/core/CMakeFiles" | sort -u >"$work/symbols"
calls "$work/symbols" >"$work/calls"
{ includes "$SOURCE/core"; includes "$SOURCE/kit"; } >"$work/includes"
[ "$(wc -l <"$work/calls")" -gt 100 ] || { echo "FAILED: only $(wc -l <"$work/calls") calls between files were found"; exit 1; }
wrong=$(upward "$work/calls")
[ -z "$wrong" ] || { echo "FAILED: $wrong"; exit 1; }

{ symbols "$BUILD/tools/CMakeFiles"; symbols "$BUILD/tools/models/CMakeFiles" models/
  symbols "$BUILD/tools/plugins/check/CMakeFiles" plugins/check/; } | sort -u >"$work/tool_symbols"
calls "$work/tool_symbols" >"$work/tool_calls"
includes "$SOURCE/tools" tools/ >"$work/tool_includes"
[ "$(wc -l <"$work/tool_calls")" -gt 200 ] || { echo "FAILED: only $(wc -l <"$work/tool_calls") calls between files of tools/"; exit 1; }
[ "$(wc -l <"$work/tool_includes")" -gt 200 ] || { echo "FAILED: only $(wc -l <"$work/tool_includes") includes between files of tools/"; exit 1; }
for part in "" tool_; do
  circles=$(sort -u "$work/${part}calls" "$work/${part}includes" | awk -f "$SOURCE/tests/support/circles.awk")
  [ -z "$circles" ] || { echo "FAILED: files that reach each other: $circles"; exit 1; }
done

# Each plugin by itself; what the kit and cuda-common give is below it. Weak symbols are C++ templates, in every file alike.
for folder in "$SOURCE"/plugins/*/; do
  plugin=$(basename "$folder") && [ -d "$BUILD/plugins/$plugin/CMakeFiles" ] || continue
  find "$BUILD/plugins/$plugin/CMakeFiles" -path '*/tessera-*.dir/*.o' ! -path '*/__/*' -print0 | xargs -0r nm -A | awk '{
    at = index($0, ".o:"); file = substr($0, 1, at - 1); sub(/.*\.dir\//, "", file); n = split(substr($0, at + 3), part, " ")
    if (n == 3 && part[2] ~ /[TDBRC]/) print "d", part[3], file
    if (part[1] == "U") print "u", part[2], file }' | sort -u >"$work/plugin_symbols"
  calls "$work/plugin_symbols" >"$work/plugin_calls"
  includes "$folder" >"$work/plugin_includes"
  circles=$(sort -u "$work/plugin_calls" "$work/plugin_includes" | awk -f "$SOURCE/tests/support/circles.awk")
  [ -z "$circles" ] || { echo "FAILED: files of $plugin that reach each other: $circles"; exit 1; }
done

echo "base/log.c engine/pass.c" | cat - "$work/calls" >"$work/planted"
[ "$(upward "$work/planted")" = "a call upward: base/log.c -> engine/pass.c" ] || { echo "FAILED: a planted call upward was not found"; exit 1; }
read -r from to < <(head -1 "$work/tool_includes")
echo "$to $from" | sort -u - "$work/tool_calls" "$work/tool_includes" | awk -f "$SOURCE/tests/support/circles.awk" | grep -q "$from" ||
  { echo "FAILED: a planted circle in tools/ was not found"; exit 1; }
printf '%s\n' "a b" "b c" "c b" "c d" | awk -f "$SOURCE/tests/support/circles.awk" >"$work/found"
[ "$(wc -w <"$work/found")" = 3 ] || { echo "FAILED: a planted circle was not found: $(cat "$work/found")"; exit 1; }
echo "core: $(wc -l <"$work/calls") calls between files, none upward; tools: $(wc -l <"$work/tool_calls"); no circle, in plugins neither"
