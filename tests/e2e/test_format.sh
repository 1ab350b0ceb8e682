#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Every tracked source is as clang-format 14 writes it.
set -eu
format=$(command -v clang-format-14 || command -v clang-format || true)
case $("${format:-false}" --version 2>&1 || true) in
  *"version 14."*) ;;
  *) echo "skipped: clang-format 14 not found (clang-format-14)"; exit 77 ;;
esac
cd "$SOURCE"
git() { command git -c safe.directory='*' "$@"; }
git rev-parse --git-dir >/dev/null 2>&1 || { echo "skipped: not a git checkout"; exit 77; }
mapfile -t files < <(git ls-files -- '*.c' '*.h' '*.cc' '*.cu' '*.cpp' '*.hpp')
[ "${#files[@]}" -gt 0 ] || { echo "FAILED: no source found"; exit 1; }
log=$OLDPWD/clang-format.log code=0
printf '%s\0' "${files[@]}" | xargs -0 -n 20 "$format" --dry-run -Werror >"$log" 2>&1 || code=$?
bad=$(grep -o '^[^ :]*:[0-9]*:[0-9]*: error' "$log" | cut -d: -f1 | sort | uniq -c || true)
[ -z "$bad" ] || { echo "FAILED: run clang-format -i on these (count of places, file):"; echo "$bad"; exit 1; }
[ $code = 0 ] || { echo "FAILED: clang-format has not looked at all, xargs ended with $code: $(tail -n 3 "$log")"; exit 1; }
echo "${#files[@]} files are formatted"
