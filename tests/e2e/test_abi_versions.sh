#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# Old and new. Plugins built against the first release's header, tests/abi/plugin-1.0.h, work in today's core: two written
# then, and the source of four kinds' templates today. Today's plugins work in a core with fewer minors. One that needs a
# newer core is refused by name and number.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
. "$SOURCE/tests/e2e/lib.sh"
old_core=$BUILD/tests/abi/old_core
launcher=$(command -v ccache || true)
mkdir -p include/tessera plugins
cp "$SOURCE/tests/abi/plugin-1.0.h" include/tessera/plugin.h
cp "$SOURCE/core/include/tessera/plugin_helpers.h" include/tessera
[ "$(sha256sum <include/tessera/plugin.h | cut -c 1-16)" = 9a52e003f2371513 ] || fail "plugin-1.0.h was changed: it is kept as it was"

head -c 6000 "$SOURCE/README.md" >text
base="--seed 1 --steps 2 --quiet --json"
digest() { # command…: its digest
  "$@" 2>err | sed -n 's/.*"params_digest":"\([0-9a-f]*\)".*/\1/p'
}
same() { # expected, what, command…
  local want=$1 what=$2 got
  shift 2
  got=$(digest "$@")
  [ -n "$got" ] && [ "$got" = "$want" ] || fail "$what: digest '$got', expected '$want': $(cat err)"
}
gpt="gpt --layers 2 --heads 2 --width 16 --context 16 --data $PWD/text $base"
plain=$(digest "$TESSERA" train $gpt)

# Written for the first release.
old=$BUILD/tests/abi/old.so
expect 0 "$TESSERA" plugins info "$old"
grep -q 'ABI  *1\.0$' out || fail "old.so: $(cat out)"
for kind in wrap precision offload; do same "$plain" "old $kind" "$TESSERA" train $gpt --$kind "$old"; done

# The templates, built against the old header, in today's core. That of precision declares its option as of 1.2.
for kind in comm offload precision wrap device; do
  if [ $kind = precision ]; then
    mkdir precision && cp "$SOURCE/tests/abi/early_precision.c" precision
  else
    expect 0 "$TESSERA" plugins new $kind early $kind
  fi
  kit=
  [ $kind != comm ] || kit=$(printf "$SOURCE/kit/%s.c " plugin_base collective tree_sum tree_sum_avx2 requests comm_kit comm_kit_ops)
  # shellcheck disable=SC2086
  $launcher cc -std=gnu11 -D_GNU_SOURCE -O1 -Wall -Wextra -Werror -ffp-contract=off -fPIC -shared -fvisibility=hidden -Iinclude \
    -I"$SOURCE/kit" -isystem "$SOURCE/core" $kind/*.c $kit -o plugins/libtessera-$kind-early.so -lm -lpthread ||
    fail "$kind does not build against the header of 1.0"
done
export TESSERA_PLUGIN_PATH=$PWD/plugins:$BUILD/plugins
expect 0 "$TESSERA" plugins list
[ "$(grep -c ' early .* 1\.0 ' out)" = 5 ] || fail "not all early ones are of ABI 1.0: $(cat out)"
for option in "--offload early" "--wrap early:2" "--device early"; do
  same "$plain" "$option of 1.0" "$TESSERA" train $gpt $option
done
same "$(digest "$TESSERA" train $gpt --precision bf16)" "precision of 1.0" "$TESSERA" train $gpt --precision early

# Options: what the slot of 1.0 lists is known after open, and a core of 1.0 is given today's options by the slot.
wire32=$(TESSERA_BF16_WIRE=fp32 digest "$TESSERA" train $gpt -n 2 --precision bf16)
[ "$wire32" != "$(digest "$TESSERA" train $gpt -n 2 --precision bf16)" ] || fail "the wire makes no difference"
TESSERA_EARLY_WIRE=fp32 same "$wire32" "option of 1.0" "$TESSERA" train $gpt -n 2 --precision early
TESSERA_EARLY_WIER=fp32 expect 3 "$TESSERA" train $gpt --precision early
grep -q 'plugin early has no such option; did you mean TESSERA_EARLY_WIRE?' err || fail "slip beside 1.0: $(cat err)"
expect 0 "$TESSERA" plugins info precision-early
grep -q 'TESSERA_EARLY_WIRE (choice: one of bf16|fp32, default bf16)' out || fail "info of 1.0: $(cat out)"
export OLD_CORE_MINOR=1
TESSERA_BF16_WIRE=fp32 same "$wire32" "today's option in a core of 1.1" "$old_core" train $gpt -n 2 --precision bf16
TESSERA_BF16_WIRE=fp8 expect 3 "$old_core" train $gpt --precision bf16
grep -q 'fp8' err || fail "bad value in a core of 1.1: $(cat err)"
TESSERA_OFFLOAD_WHAT=grads,optimizer TESSERA_OFFLOAD_FRACTION=0.5 same "$plain" "list and number in a core of 1.1" "$old_core" train $gpt --offload cpu
unset OLD_CORE_MINOR
two=
for comm in gloo shm early; do
  [ $comm = early ] || [ -e "$BUILD/plugins/libtessera-comm-$comm.so" ] || continue
  [ -n "$two" ] || two=$(digest "$TESSERA" train $gpt -n 2 --comm $comm)
  same "$two" "comm $comm" "$TESSERA" train $gpt -n 2 --comm $comm
  # Today's comm plugins, and the rest below, in a core whose host table ends where that of 1.0 did.
  OLD_CORE_MINOR=0 same "$two" "comm $comm in a core of 1.0" "$old_core" train $gpt -n 2 --comm $comm
done

export OLD_CORE_MINOR=0
for option in "--offload cpu" "--wrap early" "--device early"; do
  same "$plain" "$option in a core of 1.0" "$old_core" train $gpt $option
done
expect 0 "$old_core" train $gpt --precision bf16

# comm-fault needs plugin_open of 1.1.
cc -std=gnu11 -D_GNU_SOURCE -O1 -fPIC -shared -fvisibility=hidden -I"$SOURCE/core/include" -I"$SOURCE/kit" \
  "$SOURCE"/examples/plugins/comm-fault/*.c "$SOURCE/kit/plugin_base.c" -o plugins/libtessera-comm-fault.so -lpthread
expect 3 "$old_core" train $gpt -n 2 --comm fault
grep -q "comm plugin 'fault' cannot be used: .*needs a core of ABI 1.1 or newer, this one has 1.0" err ||
  fail "comm-fault in a core of 1.0: $(cat err)"
OLD_CORE_MINOR=1 expect 0 "$old_core" plugins info fault
echo "old.so, a precision and 4 templates of 1.0 in today's core; today's plugins in a core of 1.0; fault refused there"
