#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# `tessera plugins`, and where the command finds plugins: in the build tree without a variable, beside an installation
# that was moved, in TESSERA_PLUGIN_PATH; never in the working directory, and not by variable in a setuid program.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
samples=$BUILD/tests/conformance/bad/plugins
[ -e "$samples/good.so" ] || { echo "skipped: the sample plugins are not built"; exit 77; }
umask 022
plain() { env -u TESSERA_PLUGIN_PATH "$@"; }
code() { set +e; "$@" >out 2>err; got=$?; set -e; }

# The list, as text and as one object per line.
"$TESSERA" plugins list >out
grep -Eq '^comm +self +[0-9.]+ +1\.[0-9]+ +built in$' out || fail "list has no comm self: $(cat out)"
"$TESSERA" plugins list --json >out
grep -q '^{"event":"plugin","kind":"comm","name":"self",.*"built_in":true,"usable":true,"reason":null,"capabilities":{"flags":\[.*"operations":\["all_gather",.*}}$' out ||
  fail "list --json: $(cat out)"
[ "$(grep -cv '^{.*}$' out || true)" = 0 ] || fail "list --json has other lines"

# The build tree without a variable.
mkdir -p empty
(cd empty && plain "$TESSERA" plugins list --json) >out
for file in "$BUILD"/plugins/libtessera-*.so; do
  [ -e "$file" ] || continue
  grep -q "\"path\":\"$(realpath "$file")\"" out || fail "$file is not found from the build tree"
done

# A moved installation; the working directory is not searched.
mkdir -p moved/bin moved/lib/tessera here
cp "$TESSERA" moved/bin/tessera
cp "$samples/good.so" moved/lib/tessera/libtessera-comm-sample.so
cp "$samples/good.so" here/libtessera-comm-lurking.so
(cd here && plain ../moved/bin/tessera plugins list) >out
grep -Eq '^comm +sample +1\.2\.3 .*/moved/lib/tessera/libtessera-comm-sample.so$' out || fail "moved: $(cat out)"
! grep -q lurking out || fail "the working directory was searched"
(cd here && code env TESSERA_PLUGIN_PATH=.:"" ../moved/bin/tessera plugins list && ! grep -q lurking out &&
  grep -q 'plugin directory \. is not searched: not an absolute path' err) || fail "a relative TESSERA_PLUGIN_PATH"

# Unfit ones stay in the list with their reason.
mkdir -p unfit
for name in wrong_magic wrong_major missing_post open_fails; do
  cp "$samples/$name.so" "unfit/libtessera-comm-${name//_/-}.so"
done
TESSERA_PLUGIN_PATH=$PWD/unfit "$TESSERA" plugins list >out
for reason in 'bad magic' 'major versions differ' 'mandatory slot post is missing' 'no card in slot 3'; do
  grep -q "not usable: .*$reason" out || fail "no reason '$reason': $(cat out)"
done

# One plugin and its variables.
"$TESSERA" plugins info "$samples/good.so" >out
grep -q 'TESSERA_SAMPLE_MODE (choice: one of calm|wild, default calm)' out || fail "info: $(cat out)"
"$TESSERA" plugins info "$samples/good.so" --json >out
grep -q '"license":"Apache-2.0",.*"options":\[{"variable":"TESSERA_SAMPLE_PORT","type":"integer","fallback":"7"' out ||
  fail "info --json: $(cat out)"

# Exit codes, one line each.
code "$TESSERA" plugins
[ $got = 2 ] && [ "$(wc -l <err)" = 1 ] || fail "no action: $got"
code "$TESSERA" plugins lsit
[ $got = 2 ] && [ "$(cat err)" = "tessera plugins: unknown action 'lsit'; did you mean 'list'?" ] || fail "unknown action: $got $(cat err)"
code "$TESSERA" plugins xyz
[ $got = 2 ] && [ "$(wc -l <err)" = 1 ] || fail "unknown action: $got"
for verb in info check; do
  code "$TESSERA" plugins $verb sefl
  [ $got = 3 ] && [ "$(cat err)" = "tessera: no plugin 'sefl' found; did you mean 'self'?" ] || fail "plugins $verb sefl: $got $(cat err)"
  code "$TESSERA" plugins $verb com-self
  [ "$(cat err)" = "tessera: no plugin 'com-self' found; did you mean 'comm-self'?" ] || fail "plugins $verb com-self: $(cat err)"
done
code "$TESSERA" plugins list --jsno
[ $got = 2 ] && [ "$(wc -l <err)" = 1 ] || fail "unknown option: $got"
code "$TESSERA" plugins info nobody
[ $got = 3 ] && [ "$(wc -l <err)" = 1 ] || fail "unknown plugin: $got"
code "$TESSERA" plugins info "$samples/open_fails.so"
[ $got = 3 ] && [ "$(wc -l <err)" = 1 ] || fail "plugin that cannot be opened: $got"
code "$TESSERA" plugins list --help
[ $got = 0 ] && grep -q '^Usage: tessera plugins' out || fail "help: $got"
if [ -e /dev/full ]; then
  set +e; "$TESSERA" plugins list >/dev/full 2>err; got=$?; set -e
  [ $got = 3 ] || fail "a full device: $got"
fi

# A setuid program takes no plugin from a variable.
if [ "$(id -u)" = 0 ] && command -v setpriv >/dev/null; then
  suid=$(mktemp -d /tmp/tessera-suid-XXXXXX)
  trap 'rm -rf "$suid"' EXIT
  chmod 755 "$suid"
  mkdir -p "$suid/bin" "$suid/more"
  cp "$TESSERA" "$suid/bin/tessera"
  cp "$samples/good.so" "$suid/more/libtessera-comm-sample.so"
  as() { setpriv --reuid 12345 --regid 12345 --clear-groups env TESSERA_PLUGIN_PATH="$suid/more" "$@"; }
  as "$suid/bin/tessera" plugins list >out || fail "as another user"
  grep -q sample out || fail "as another user: $(cat out)"
  chmod 4755 "$suid/bin/tessera"
  if as "$suid/bin/tessera" plugins list >out 2>err; then
    ! grep -q sample out || [ "$(findmnt -no OPTIONS -T "$suid" | grep -c nosuid)" = 1 ] || fail "setuid: $(cat out)"
  else
    [ -n "$SANITIZE" ] || fail "setuid: $(cat err)"
  fi
fi
echo "all as it should be"
