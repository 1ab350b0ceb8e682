#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# TESSERA_NCCL_WINDOWS=on, on the doubles: each arena is a symmetric window of each communicator, and goes before its memory
# does. The bits are those of a run without, and planned bytes are measured. A rank that fails alone ends all.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
gpt="gpt $(brief_text) --batch 2 --layers 2 --heads 2 --width 16 --context 16 --steps 4 --device cuda"
of() { awk -v rank=$1 -v name=$2 '$1 == rank && $2 == name { n += $3 } END { print n + 0 }' calls; }

# without OPTIONS…: a run without windows; sets the digest that is wanted.
without() {
  expect 0 on_double "$TESSERA" train $gpt "$@" --json=off.json
  want=$(summary params_digest off.json)
}

# trained WHAT MADE OPTIONS…: a run with windows; MADE of them on each rank.
trained() {
  local what=$1 made=$2 rank
  shift 2
  rm -f calls
  TESSERA_NCCL_WINDOWS=on TESSERA_DOUBLE_LOG=calls expect 0 on_double "$TESSERA" train $gpt "$@" --json=on.json
  for rank in 0 1; do
    [ "$(of $rank ncclCommWindowRegister) $(of $rank ncclCommWindowDeregister)" = "$made $made" ] ||
      fail "$what: rank $rank made $(of $rank ncclCommWindowRegister) windows and gave up $(of $rank ncclCommWindowDeregister), expected $made"
  done
  [ "$made" = 0 ] || [ "$(of 0 collectives-in-windows)" -gt 20 ] || fail "$what: $(of 0 collectives-in-windows) collectives were in windows"
  [ "$(summary params_digest on.json)" = "$want" ] || fail "$what: another digest"
  [ "$(summary peak_device_bytes on.json)" = "$(summary planned_peak_device_bytes on.json)" ] ||
    fail "$what: peak $(summary peak_device_bytes on.json), planned $(summary planned_peak_device_bytes on.json)"
}

# Two arenas, each with the communicator of gathers and that of reductions.
without -n 2
trained "two ranks" 4 -n 2
TESSERA_NCCL_APART=off trained "one communicator" 2 -n 2
TESSERA_DOUBLE_NCCL_VERSION=22605 trained "an older NCCL" 0 -n 2
! grep -qi window err || fail "an older NCCL is told of: $(cat err)"
# The world's, the shard group's, the one for reductions and the replicas'.
without -n 4 --strategy hybrid:2
trained "hybrid" 8 -n 4 --strategy hybrid:2
without -n 3 --precision bf16 --clip 1
trained "bf16, three ranks" 4 -n 3 --precision bf16 --clip 1

# Copy engines do the gathers, and only these; without windows there are none, and an older NCCL has none.
without -n 2
TESSERA_NCCL_ENGINES=on trained "copy engines" 4 -n 2
gathers=$(of 0 gathers-by-engines) all=$(of 0 collectives-in-windows)
[ "$gathers" -gt 10 ] && [ "$gathers" -lt "$all" ] || fail "$gathers gathers by engines, of $all collectives in windows"
trained "kernels" 4 -n 2
[ "$(of 0 gathers-by-engines)" = 0 ] || fail "engines work where nobody asked for them"
TESSERA_NCCL_ENGINES=on TESSERA_COMM=nccl expect 3 on_double "$TESSERA" train $gpt -n 2
grep -q "nccl: TESSERA_NCCL_ENGINES=on needs TESSERA_NCCL_WINDOWS=on: copy engines work in windows" err || fail "$(cat err)"
TESSERA_NCCL_ENGINES=on TESSERA_DOUBLE_NCCL_VERSION=22703 trained "an NCCL without engines" 4 -n 2
grep -q "NCCL 2.27.3 has no gathers by copy engines, and kernels do them" err || fail "$(cat err)"

# NCCL says that all is well and makes none, as where GPUs do not reach each other.
rm -f calls
TESSERA_NCCL_WINDOWS=on TESSERA_DOUBLE_NCCL_WINDOWS=none TESSERA_DOUBLE_LOG=calls expect 0 on_double "$TESSERA" train $gpt -n 2
[ "$(of 0 ncclCommWindowRegister) $(of 0 ncclCommWindowDeregister)" = "4 0" ] || fail "windows that there are not are given up"

# The step arena grows: its windows go before it does, and the larger one has them again.
rm -f calls
export TESSERA_DEVICE=cuda TESSERA_COMM=nccl
TESSERA_NCCL_WINDOWS=on TESSERA_PREFETCH=0 TESSERA_DOUBLE_LOG=calls delay=2000 expect 0 \
  on_double "$TESSERA" run -n 2 -- "$BUILD/tests/e2e/step_arena_probe"
[ "$(of 1 ncclCommWindowRegister) $(of 1 ncclCommWindowDeregister)" = "6 6" ] ||
  fail "arena that grows: $(of 1 ncclCommWindowRegister) windows made, $(of 1 ncclCommWindowDeregister) given up, expected 6"
unset TESSERA_DEVICE TESSERA_COMM

# One rank fails while the others wait for it, with the first communicator or the second: all end, and name it.
for call in 1 2; do
  TESSERA_NCCL_WINDOWS=on TESSERA_DOUBLE_FAIL=ncclCommWindowRegister:$call@1 expect 3 on_double "$TESSERA" train $gpt -n 3
  [ "$(grep -c "^tessera\[1\]: error: comm nccl: ncclCommWindowRegister gave 2" err)" = 1 ] || fail "call $call: $(cat err)"
  ! grep error: err | grep -v "^tessera\[1\]" | grep -v "rank 1 failed in the sharing of memory: comm nccl: ncclCommWindowRegister gave 2" ||
    fail "call $call: $(cat err)"
done

# Ranks that would not all come to it.
cat >differs <<'S'
if [ "$RANK" = 1 ]; then export $1=off; else export $1=on; fi
exec "$2"
S
export TESSERA_NCCL_WINDOWS=on # which engines need
for variable in TESSERA_NCCL_WINDOWS TESSERA_NCCL_APART TESSERA_NCCL_ENGINES; do
  TESSERA_DEVICE=cuda TESSERA_COMM=nccl expect 3 on_double "$TESSERA" run -n 2 -- bash differs $variable "$BUILD/tests/e2e/step_arena_probe"
  grep -q "nccl: rank 0 has $variable=on and rank 1 has off, expected the same" err || fail "$(cat err)"
done
echo "arenas are windows on every communicator, and the bits stay"
