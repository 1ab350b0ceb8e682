#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 1800
# A checkpoint of 2 GiB in 3 files is resharded to 5 within 256 MiB of memory: the greatest resident set of the process, as the
# kernel counted it. The values are the same. GIB: another size.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
gib=${GIB:-2}
limit=262144
# most_memory COMMAND…: $hwm is VmHWM in KiB. The kernel's own count for a child that has ended: ru_maxrss, by bash's wait.
most_memory() {
  "$@" >out 2>err & pid=$!
  hwm=0
  while ! gone $pid; do
    now=$(awk '/^VmHWM/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || now=
    [ -z "$now" ] || hwm=$now
    sleep 0.02
  done
  code=0; wait $pid || code=$?
  [ $code = 0 ] || fail "exit code $code of: $* $(cat err)"
  [ "$hwm" -gt 1000 ] || fail "the memory of $* was not seen"
}
# One tensor of bytes that a cipher makes, so that a piece at a wrong place shows; the sign and exponent bits may be anything.
elems=$((gib * 268435456))
mkdir folder
header="{\"model.weight\":{\"dtype\":\"F32\",\"shape\":[$((elems / 1024)),1024],\"data_offsets\":[0,$((4 * elems))]}}"
while [ $((${#header} % 8)) != 0 ]; do header="$header "; done
length=${#header}
{
  for ((i = 0; i < 8; i++)); do printf "\\x$(printf %02x $(((length >> (8 * i)) & 255)))"; done
  printf '%s' "$header"
  openssl enc -aes-128-ctr -K 00112233445566778899aabbccddeeff -iv 00000000000000000000000000000000 -in /dev/zero 2>/dev/null | head -c $((4 * elems))
} >folder/model.safetensors || true
[ "$(stat -c %s folder/model.safetensors)" = $((8 + length + 4 * elems)) ] || fail "the file was not made: $(ls -l folder)"
most_memory "$TESSERA" ckpt import folder three --to 3
echo "import of $gib GiB to 3 files: at most $hwm KiB"
[ "$hwm" -lt $limit ] || fail "$hwm KiB for the import"
rm -rf folder
[ "$(ls three/*/data-* | wc -l)" = 3 ] || fail "not 3 files: $(ls three/*)"
began=$(date +%s)
most_memory "$TESSERA" ckpt reshard three five --to 5
echo "reshard 3 to 5: at most $hwm KiB of $limit, $(($(date +%s) - began)) s"
[ "$hwm" -lt $limit ] || fail "$hwm KiB for the reshard"
[ "$(ls five/*/data-* | wc -l)" = 5 ] || fail "not 5 files: $(ls five/*)"
most_memory "$TESSERA" ckpt diff three five
echo "diff: the same values, at most $hwm KiB"
most_memory "$TESSERA" ckpt verify five
rm -rf three five
