#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Every rank's bytes and bits are looked at, by witnesses that know no plan: planted faults on a rank other than 0 fail.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error
toy=$BUILD/tests/support/toy planted=$BUILD/tests/planted
toy() { "$TESSERA" run -n 3 --no-prefix -- "$toy" blocks; }

TESSERA_COMM=shm expect 0 toy
grep -q ' ranks=3 ' out || fail "the toy says: $(cat out)"

# Another replica's parameters, under none and hybrid; full has one copy, whose bits other tests hold. Which all_reduce
# carries a gradient is the engine's affair: one of the first does.
fault="$planted/libtessera-comm-fault.so:corrupt=data,rank=1,op=all_reduce,over=shm"
found() { # PATTERN COMMAND…: with the fault at one of the first eight, the command says so and exits with 1
  local pattern=$1 at code
  shift
  for at in 1 2 3 4 5 6 7 8; do
    code=0
    TESSERA_COMM=${fault/over=/at=$at,over=} "$@" >out 2>err || code=$?
    if [ $code = 1 ] && grep -Eq "$pattern" err; then return; fi
  done
  fail "no fault in a replica is found by: $*: $(tail -n 3 err)"
}
TESSERA_STRATEGY=none found '^rank 1: the digest is' "$TESSERA" run -n 3 --no-prefix -- "$toy" blocks
TESSERA_STRATEGY=hybrid:2 found '^rank [123]: the digest is' "$TESSERA" run -n 4 --no-prefix -- "$toy" blocks
found 'rank 1 has other parameters than rank 0' "$TESSERA" train linear -n 2 --steps 4 --strategy none --json

# Memory that a plugin takes for itself when it is opened or makes its communicator. A sanitizer owns the address space.
if [ -z "$SANITIZE" ]; then
  for when in open init; do
    for kib in 2048 1048576; do # plan and statement are generous by 1.2 MiB at most
      TESSERA_COMM=$planted/libtessera-comm-greedy.so:$when:1:$kib expect 1 toy
      grep -q '^rank 1: mapped memory grew by [0-9]* bytes' err || fail "$kib KiB at $when: $(cat err)"
    done
  done
  TESSERA_COMM=$planted/libtessera-comm-greedy.so:none expect 0 toy
fi

# The lines of train: one from every rank, which agree with the summary.
expect 0 "$TESSERA" train linear -n 3 --steps 3 --comm shm --json
[ "$(grep -c '^{"event":"rank",' out)" = 3 ] || fail "lines of ranks: $(cat out)"
value() { sed -n "$1s/.*\"$2\":\"\{0,1\}\([^\",}]*\).*/\1/p" <(grep '"event":"rank"' out); }
digest=$(sed -n 's/.*"event":"summary".*"params_digest":"\([0-9a-f]*\)".*/\1/p' out)
for i in 1 2 3; do
  [ "$(value $i rank)" = $((i - 1)) ] || fail "line $i: $(cat out)"
  [ "$(value $i params_digest)" = "$digest" ] || fail "rank $((i - 1)) has another digest: $(grep rank out)"
  [ "$(value $i peak_device_bytes)" = "$(value $i planned_peak_device_bytes)" ] || fail "rank $((i - 1)): $(cat out)"
  [ "$(value $i live_device_bytes)" = "$(value $i resting_device_bytes)" ] || fail "rank $((i - 1)) rests: $(cat out)"
  [ "$(value $i peak_resident_bytes)" -gt 1000000 ] || fail "rank $((i - 1)): $(cat out)"
  if [ -z "$SANITIZE" ]; then
    [ "$(value $i step_allocations)" = 0 ] || fail "rank $((i - 1)) allocates: $(cat out)"
    [ "$(value $i mapped_bytes)" = $(($(value $i peak_device_bytes) + $(value $i peak_host_bytes))) ] ||
      fail "rank $((i - 1)) mapped: $(grep event...rank out)"
  fi
done
nothing_left
