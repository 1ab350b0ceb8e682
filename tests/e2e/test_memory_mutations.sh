#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The memory check must be able to fail (docs/numbers.md, "Measured apart"): two faults are planted in a copy of the core,
# and each must be caught. Usage: memory_mutations.sh SOURCE_DIR [CC]
#   1. the engine allocates 64 KiB in a step   → step_allocations is not 0, and the ledger differs at a point
#   2. a buffer is planned 64 bytes short      → AddressSanitizer stops the access, and the ledger differs
#   3. a read right after FREE, a read of a gradient after its step, a write into the buffer beside  → it stops each
set -eu
source=$SOURCE work=$PWD # always the same folder, for ccache's sake
read -r -a cc <<<"$(command -v ccache || true) ${CC:-cc}"
cp -r "$source/core" "$work/core"

build() { # build OUTPUT FLAGS…: the toy with the core as it stands in $work; with these flags only changed files are compiled again
  local output=$1 file folder object objects=()
  shift
  folder=$work/objects$(printf '%s' "${@//[^a-z]/}")
  mkdir -p "$folder"
  for file in "$work"/core/{base,kernels,builtin,plugin,control,layout,plan,readers,checkpoint,runtime,optimize,engine,proof,recovery,saving,inspect,group,front}/*.c "$source"/tests/support/toy.c "$source"/tests/support/toy_device.c "$source"/tests/support/toy_main.c "$source"/tests/support/every_rank.c "$source"/tools/support/witness.c \
    "$source"/tests/support/ledger_check.c \
    "$source"/tools/support/alloc_count.c "$source"/tools/support/alloc_hooks.c "$source"/tools/support/world.c; do
    object=${file%/*}
    object=$folder/${object##*/}-${file##*/}.o
    objects+=("$object")
    [ ! "$object" -nt "$file" ] || continue
    "${cc[@]}" -std=gnu11 -D_GNU_SOURCE -O0 -ffp-contract=off "$@" -DTESSERA_VERSION='"0"' \
      -DTESSERA_INSTALL_PLUGIN_DIR='"/nonexistent"' -DTESSERA_BUILD_PLUGIN_DIR='"/nonexistent"' \
      -DTESSERA_PLUGIN_SUBDIR='"lib/tessera"' -DTESSERA_PLUGINS_FROM_LIBRARY='"tessera"' -I"$work/core" -I"$work/core/include" -I"$source" -c "$file" -o "$object" &
    while [ "$(jobs -rp | wc -l)" -ge 2 ]; do wait -n; done
  done
  wait
  "${cc[@]}" "$@" "${objects[@]}" -ldl -lpthread -lm -o "$work/$output"
}
plant() { # plant FILE PATTERN REPLACEMENT: exactly one place
  [ "$(grep -c "$2" "$work/core/$1")" = 1 ] || { echo "no single place for the fault in $1: $2" >&2; exit 1; }
  sed -i "s|$2|$3|" "$work/core/$1"
}
unset RANK WORLD_SIZE TESSERA_STRICT
export TESSERA_LOG=error

build plain
"$work/plain" blocks | grep -q ' step_allocations=0 ' || { echo "the unharmed core allocates in a step" >&2; exit 1; }
"$work/plain" blocks | grep -q ' ledger=equal ' || { echo "the unharmed core does not run as planned" >&2; exit 1; }

plant engine/blocks.c 'TRY(tess__scope_pointers(t, e->scope' 'free(malloc(65536)); TRY(tess__scope_pointers(t, e->scope'
sed -i '1i #include <stdlib.h>' "$work/core/engine/blocks.c"
build extra
if "$work/extra" blocks | grep -q ' step_allocations=0 '; then
  echo "an extra allocation of 64 KiB in each block went unseen" >&2
  exit 1
fi
"$work/extra" blocks 2> "$work/log" | grep -q ' ledger=differ ' || { echo "the ledger knows of no extra 64 KiB" >&2; exit 1; }
grep -q 'allocations beside the arenas' "$work/log" || { echo "something else differs:" >&2; cat "$work/log" >&2; exit 1; }
cp "$source/core/engine/blocks.c" "$work/core/engine/blocks.c"

plant plan/emit.c '.bytes = tess__round_up(bytes, b->setup->align),' \
  '.bytes = tess__round_up(bytes, b->setup->align) - (role == TESS__CHUNK ? 64 : 0),'
build short -fsanitize=address -DTESSERA_SANITIZED=1
if "$work/short" blocks > "$work/log" 2>&1; then
  echo "a buffer planned 64 bytes short went unseen" >&2
  exit 1
fi
grep -Eq 'use-after-poison|heap-buffer-overflow' "$work/log" || { echo "the short buffer was not what failed:" >&2; cat "$work/log" >&2; exit 1; }
build missed
"$work/missed" blocks 2> "$work/log" | grep -q ' ledger=differ ' || { echo "the ledger does not miss 64 bytes" >&2; exit 1; }
grep -q 'communication of all: .* bytes measured' "$work/log" || { echo "something else differs:" >&2; cat "$work/log" >&2; exit 1; }

# The three faults are in one build; PLANT says which of them strikes.
cp "$source/core/plan/"*.c "$work/core/plan"
plant runtime/memory.c '^    if (m->deviating)$' '    const char *strike = getenv("PLANT"); if (strike \&\& *strike == 102 \&\& b->role == TESS__OUTPUT) (void)*(volatile char *)tess__address(m, b->role, b->index);\n    if (m->deviating)'
plant engine/optimizer.c '    t->step.steps_done++;' '    t->step.steps_done++; const char *strike = getenv("PLANT"); if (strike \&\& *strike == 103) (void)*(volatile char *)tess__address(\&t->memory, TESS__SHARD_GRAD, 0);'
plant engine/blocks.c '    uint64_t before = tess__fail_count();' '    const char *strike = getenv("PLANT"); if (strike \&\& *strike == 110 \&\& c.output \&\& i < 3) ((volatile char *)c.output)[64] = 1;\n    uint64_t before = tess__fail_count();'
sed -i '1i #include <stdlib.h>' "$work/core/engine/blocks.c"
build three -fsanitize=address -DTESSERA_SANITIZED=1
"$work/three" blocks | grep -q ' ledger=equal ' || { echo "the build with three faults does not run without them" >&2; exit 1; }
for fault in free gradient neighbour; do
  if PLANT=$fault "$work/three" blocks >"$work/log" 2>&1; then echo "$fault: went unseen" >&2; exit 1; fi
  grep -Eq 'use-after-poison|heap-use-after-free|heap-buffer-overflow' "$work/log" || { echo "$fault: something else failed:" >&2; cat "$work/log" >&2; exit 1; }
  echo "$fault: $(grep -Eo 'AddressSanitizer: [a-z-]*' "$work/log" | head -n 1)"
done
echo "all planted faults were caught"
