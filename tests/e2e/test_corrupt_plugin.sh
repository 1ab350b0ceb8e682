#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A plugin whose descriptor is whole and whose code is not: what does not ask for it goes on, and lists say why.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=warning

# corrupt FROM TO: the same file with zeros for code.
corrupt() {
  local offset size
  read -r offset size < <(readelf -SW "$1" | sed -n 's/^ *\[ *[0-9]*\] \.text *PROGBITS *[0-9a-f]* \([0-9a-f]*\) \([0-9a-f]*\) .*/\1 \2/p')
  [ -n "$size" ] || fail "readelf finds no .text in $1"
  cp "$1" "$2"
  dd if=/dev/zero of="$2" bs=1 seek=$((16#$offset)) count=$((16#$size)) conv=notrunc status=none
}

plugins=$BUILD/plugins
mkdir broken
for name in offload-cpu precision-bf16 comm-shm; do
  kind=${name%-*}
  corrupt "$plugins/libtessera-$name.so" "broken/libtessera-$kind-damaged.so"
done
export TESSERA_PLUGIN_PATH=$PWD/broken:$plugins
unset TESSERA_COMM

expect 0 "$TESSERA" train linear -n 2 --steps 1 --json
grep -q '"comm":"shm"' out || fail "comm=auto: $(cat out err)"
expect 0 "$TESSERA" plugins list
for kind in comm offload precision; do
  has_line out "$kind +damaged .*/broken/libtessera-$kind-damaged\.so"
done
[ "$(grep -c 'not usable: opening it ended with signal .*: is the file damaged?' out)" = 3 ] || fail "$(cat out)"
has_line out 'comm +shm .*'
expect 0 "$TESSERA" plugins list --json
[ "$(grep -c '"usable":false' out)" = 3 ] || fail "$(cat out)"
expect 0 env TESSERA_PLUGIN_PATH="$plugins:$PWD/broken" "$TESSERA" plugins list
[ "$(grep -c 'not usable: opening it ended with signal .*: is the file damaged?' out)" = 3 ] &&
  [ "$(grep -c 'not usable' out)" = 3 ] || fail "behind good ones: $(cat out)"
expect 0 "$TESSERA" plugins info shm
expect 3 "$TESSERA" plugins info damaged
[ "$(grep -c 'opening it ended with signal' out)" = 3 ] || fail "$(cat out err)"
expect 3 "$TESSERA" plugins info ./broken/libtessera-offload-damaged.so
grep -q '^tessera: offload plugin .*: opening it ended with signal' err || fail "$(cat err)"

# One in front of a good one of its name does not hide it.
mv broken/libtessera-comm-damaged.so broken/libtessera-comm-shm.so
expect 0 "$TESSERA" plugins list
[ "$(grep -c '^comm  *shm ' out)" = 2 ] || fail "$(cat out)"
nothing_left
