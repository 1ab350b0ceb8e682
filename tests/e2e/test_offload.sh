#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The toy on gloo ranks with shards, gradients, optimizer state and activations in host memory: the digest of the plain
# run; planned bytes are the bytes obtained, device and host; nothing is allocated in a step. Locking that the system
# refuses is said once, and the run goes on.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
export TESSERA_COMM=gloo TESSERA_THREADS=1

# toy RANKS MODE VARIABLES…: sets `digest`, `host`; the line says what it must.
toy() {
  local n=$1 mode=$2 line key
  shift 2
  expect 0 env "$@" "$TESSERA" run -n "$n" --no-prefix -- "$BUILD/tests/support/toy" "$mode"
  line=$(cat out)
  for key in digest peak planned host_peak host_planned mapped step_allocations resting; do
    eval "$key=$(printf '%s\n' "$line" | grep -o "\b$key=[^ ]*" | head -1 | cut -d= -f2)"
  done
  [ -n "$digest" ] || fail "$n ranks, $mode, $*: no digest in: $line"
  [ "$peak/$host_peak" = "$planned/$host_planned" ] || [ "$mode" = hooks,part ] || fail "$n ranks, $mode, $*: obtained is not planned: $line"
  [ "$resting" = equal ] || fail "$n ranks, $mode, $*: something stays booked: $line"
  host=$host_peak
  [ "$mode" != hooks,part ] || return 0 # departs once: beside the plan, and recompiled
  [ "$step_allocations" != -1 ] || return 0 # a sanitizer owns malloc
  [ "$step_allocations" = 0 ] || fail "$n ranks, $mode, $*: $step_allocations allocations after the first step"
  [ "$mapped" = $((peak + host_peak)) ] || fail "$n ranks, $mode, $*: $mapped bytes mapped, $peak + $host_peak obtained"
}

runs=0
# against RANKS MODE COMMON…: each way of offloading gives the digest of none.
against() {
  local n=$1 mode=$2 plain settings
  shift 2
  toy "$n" "$mode" "$@"
  plain=$digest
  [ "$host" = 0 ] || fail "$n ranks, $mode, $*: $host bytes of host memory without offload"
  for settings in TESSERA_OFFLOAD=cpu TESSERA_OFFLOAD=cpu:grads,optimizer TESSERA_OFFLOAD=cpu:fraction=0.5,pinned=4KiB \
    "TESSERA_OFFLOAD=cpu:params TESSERA_ACTIVATIONS=offload" "TESSERA_OFFLOAD=none TESSERA_ACTIVATIONS=offload"; do
    [[ $mode != hooks* || $settings != *ACTIVATIONS* ]] || continue # activations are the program's own
    # shellcheck disable=SC2086
    toy "$n" "$mode" "$@" $settings
    [ "$digest" = "$plain" ] || fail "$n ranks, $mode, $* $settings: digest $digest, expected $plain"
    [ "$host" -gt 0 ] || fail "$n ranks, $mode, $* $settings: no host memory was used"
    runs=$((runs + 1))
  done
}
for n in 2 3; do
  against $n hooks
  against $n blocks TESSERA_STRATEGY=grad_op
  against $n blocks,fused TESSERA_PREFETCH=2
  against $n blocks,clip TESSERA_STRATEGY=none
done
against 2 hooks,part
against 3 hooks,part TESSERA_ACCUM=2 TESSERA_PREFETCH=2
against 2 blocks,fused TESSERA_PRECISION=bf16
against 3 blocks TESSERA_PRECISION=bf16 TESSERA_ACCUM=2 TESSERA_SYNC=each
against 2 blocks TESSERA_ACCUM=2 TESSERA_SYNC=end TESSERA_DETERMINISTIC=1
against 2 blocks TESSERA_STRATEGY=hybrid:1 TESSERA_ACCUM=2

# Without the right to lock memory: a limit does not bind root, so that right is given up first.
toy 2 blocks TESSERA_OFFLOAD=cpu
[ ! -s err ] || { [ -n "${SANITIZE:-}" ] || fail "locking is allowed here, but: $(cat err)"; }
plain=$digest
refused='setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock'
[ "$(id -u)" = 0 ] || refused=
if [ -z "${SANITIZE:-}" ] && (ulimit -l 0 && $refused true) 2>/dev/null; then
  # shellcheck disable=SC2086
  TESSERA_OFFLOAD=cpu expect 0 $refused bash -c 'ulimit -l 0; "$0" run -n 2 --no-prefix -- "$1" blocks' "$TESSERA" \
    "$BUILD/tests/support/toy"
  grep -q "digest=$plain" out || fail "unlocked memory changes the bits: $(cat out)"
  [ "$(grep -c 'cannot lock .* going on with pageable memory' err)" = 2 ] || fail "not once per rank: $(cat err)"
else
  echo "not tested here: the right to lock memory cannot be given up"
fi
nothing_left
echo "$runs runs against the plain ones"
