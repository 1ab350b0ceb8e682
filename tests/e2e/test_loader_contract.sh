#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Which plugin files a run takes: none that others could have changed, none from the working directory, none by variable
# in a setuid program; of two with one name the first; a broken one is a message. Seen from `tessera train`.
. "$SOURCE/tests/e2e/lib.sh"
plugin=$BUILD/tests/conformance/bad/faulty/wrap_none.so
[ -e "$plugin" ] || { echo "skipped: the sample plugins are not built"; exit 77; }
umask 022
top=$(mktemp -d /tmp/tessera-contract-XXXXXX)
chmod 755 "$top"
trap 'rm -rf "$top"' EXIT
file=libtessera-wrap-faulty.so
for folder in good second wide elsewhere; do
  mkdir "$top/$folder"
  cp "$plugin" "$top/$folder/$file"
done
train() { "$TESSERA" train linear --steps 1 --quiet --json=json "$@"; }
used() { has_line json '.*"wrap":"[^"]*faulty.*'; }
refused() { [ "$(wc -l <err)" = 1 ] && grep -q -- "$1" err || fail "not refused with '$1': $(cat err)"; }

# The good case: by name, and by an absolute or relative path with a slash.
expect 0 env TESSERA_PLUGIN_PATH="$top/good" "$TESSERA" train linear --steps 1 --quiet --json=json --wrap faulty
used
expect 0 train --wrap "$top/good/$file"
cp "$plugin" here.so
expect 0 train --wrap ./here.so

# A name is never looked for in the working directory, nor is a relative directory searched.
cp "$plugin" "$file"
expect 3 env -u TESSERA_PLUGIN_PATH "$TESSERA" train linear --steps 1 --wrap faulty
refused "wrap plugin 'faulty' not found"
expect 3 env TESSERA_PLUGIN_PATH=.: "$TESSERA" train linear --steps 1 --wrap faulty
refused 'not an absolute path'
expect 3 env TESSERA_PLUGIN_PATH=sub/../. "$TESSERA" train linear --steps 1 --wrap faulty
refused 'not an absolute path'
expect 3 train --wrap here.so
refused 'a path needs a slash'

# A directory or file that others can write; a link into such a directory, and one that lies there.
chmod 777 "$top/wide"
expect 3 env TESSERA_PLUGIN_PATH="$top/wide" "$TESSERA" train linear --steps 1 --wrap faulty
refused "$top/wide can be written by others (mode 0777)"
expect 3 train --wrap "$top/wide/$file"
refused "$top/wide can be written by others"
mkdir "$top/links"
ln -s "$top/wide/$file" "$top/links/$file"
expect 3 env TESSERA_PLUGIN_PATH="$top/links" "$TESSERA" train linear --steps 1 --wrap faulty
refused "$top/wide can be written by others"
ln -s "$top/wide" "$top/linked"
expect 3 env TESSERA_PLUGIN_PATH="$top/linked" "$TESSERA" train linear --steps 1 --wrap faulty
refused "$top/wide can be written by others"
ln -s "$top/good/$file" "$top/wide/other.so"
expect 3 train --wrap "$top/wide/other.so"
refused "$top/wide can be written by others"
mkdir -p "$top/wide/below"
cp "$plugin" "$top/wide/below/$file"
expect 3 train --wrap "$top/wide/below/$file"
refused "$top/wide can be written by others"
chmod 666 "$top/elsewhere/$file"
expect 3 train --wrap "$top/elsewhere/$file"
refused "$file can be written by others (mode 0666)"
chmod 644 "$top/elsewhere/$file"

# Of two with one name the first is taken; the other is listed as hidden.
expect 0 env TESSERA_PLUGIN_PATH="$top/good:$top/second" "$TESSERA" plugins list
grep -q "$top/good/$file" out || fail "the first is not listed: $(cat out)"
grep -A1 "$top/second/$file" out | grep -q 'not usable: hidden by one of the same name found before' ||
  fail "the second is not hidden: $(cat out)"

# A truncated one is a message, at any length; the next of that name is taken then, with a warning.
size=$(stat -c %s "$plugin")
for bytes in 0 3 63 64 500 4096 $((size / 2)) $((size - 1)); do
  head -c "$bytes" "$plugin" >"$top/second/$file"
  expect 3 train --wrap "$top/second/$file"
  refused 'truncated\|not an ELF file'
done
expect 0 env TESSERA_PLUGIN_PATH="$top/second:$top/good" "$TESSERA" train linear --steps 1 --wrap faulty
grep -q "passed over: $top/second/$file: truncated" err || fail "no warning: $(cat err)"

# A file of another user.
if [ "$(id -u)" = 0 ]; then
  chown 12345 "$top/elsewhere/$file"
  expect 3 train --wrap "$top/elsewhere/$file"
  refused 'belongs to user 12345, who is neither root nor you'
  # A setuid program takes nothing from the variable.
  if command -v setpriv >/dev/null && [ -z "$SANITIZE" ] && ! findmnt -no OPTIONS -T "$top" | grep -q nosuid; then
    mkdir "$top/bin"
    cp "$TESSERA" "$top/bin/tessera"
    as() { setpriv --reuid 12345 --regid 12345 --clear-groups env TESSERA_PLUGIN_PATH="$top/good" "$@"; }
    cd "$top"
    as "$top/bin/tessera" plugins info faulty >/dev/null || fail "as another user"
    chmod 4755 "$top/bin/tessera"
    ! as "$top/bin/tessera" plugins info faulty >/dev/null 2>&1 || fail "a setuid program took a plugin from a variable"
    cd - >/dev/null
  fi
fi
echo "taken and refused as the contract says"
