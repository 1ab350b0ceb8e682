#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The toy on gloo ranks: one digest at each number of ranks whatever the strategy, wrap policy, prefetch and way of
# running; planned bytes are the bytes obtained; nothing is allocated in a step. A covering set: every pair of values.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
export TESSERA_COMM=gloo TESSERA_THREADS=1

# toy RANKS MODE VARIABLES…: sets `digest`; the line says what it must.
toy() {
  local n=$1 mode=$2 line key
  shift 2
  expect 0 env "$@" "$TESSERA" run -n "$n" --no-prefix -- "$BUILD/tests/support/toy" "$mode"
  line=$(cat out)
  for key in digest peak planned host_peak mapped step_allocations recompiles resting; do
    eval "$key=$(printf '%s\n' "$line" | grep -o "\b$key=[^ ]*" | head -1 | cut -d= -f2)"
  done
  [ -n "$digest" ] || fail "$n ranks, $mode, $*: no digest in: $line"
  [ "$peak" = "$planned" ] && [ "$peak" -gt 0 ] || fail "$n ranks, $mode, $*: peak $peak, planned $planned"
  if [ "$step_allocations" != -1 ]; then # -1: a sanitizer owns malloc
    [ "$step_allocations" = 0 ] || fail "$n ranks, $mode, $*: $step_allocations allocations after the first step"
    [ "$mapped" = $((peak + host_peak)) ] || fail "$n ranks, $mode, $*: $mapped bytes mapped, $peak and $host_peak obtained"
  fi
  [ "$recompiles/$resting" = 0/equal ] || fail "$n ranks, $mode, $*: recompiles=$recompiles resting=$resting"
}

# same AS RANKS MODE VARIABLES…: the digest is AS.
same() {
  local as=$1
  shift
  toy "$@"
  [ "$digest" = "$as" ] || fail "ranks $1, $2, ${*:3}: digest $digest, expected $as"
}

# Rows of an orthogonal array over strategy, wrap, prefetch and mode: each pair of values is in one row.
rows="full:scopes:0:hooks full:none:1:blocks full:size\:100:2:fused full:module\:a,b:3:blocks
grad_op:scopes:1:fused grad_op:none:0:hooks grad_op:size\:100:3:blocks grad_op:module\:a,b:2:hooks
none:scopes:2:blocks none:none:3:fused none:size\:100:0:blocks none:module\:a,b:1:hooks
hybrid\:H:scopes:3:hooks hybrid\:H:none:2:blocks hybrid\:H:size\:100:1:hooks hybrid\:H:module\:a,b:0:fused"
runs=0
for n in 2 3 4; do
  toy $n hooks TESSERA_STRATEGY=full
  plain=$digest
  for row in $rows; do
    row=${row//\\:/;}
    IFS=: read -r strategy wrap prefetch mode <<<"$row"
    [ $n = 4 ] && group=2 || group=1 # a group must divide the ranks
    strategy=${strategy/;H/:$group}
    same "$plain" $n "$mode" TESSERA_STRATEGY="$strategy" TESSERA_WRAP="${wrap/;/:}" TESSERA_PREFETCH="$prefetch"
    runs=$((runs + 1))
  done
done
same "$plain" 4 blocks TESSERA_ACTIVATIONS=recompute
same "$plain" 4 hooks TESSERA_STRICT=1
toy 3 clip
clipped=$digest
same "$clipped" 3 blocks-clip TESSERA_STRATEGY=none TESSERA_WRAP=none
[ "$clipped" != "$plain" ] || fail "clipping changes nothing"

# Frozen parameters that rest in bf16 and as opaque bytes.
toy 3 hooks-stored
stored=$digest
for row in full:blocks:none grad_op:blocks-fused:cpu none:hooks:none hybrid\;1:blocks:cpu; do
  IFS=: read -r strategy mode offload <<<"$row"
  same "$stored" 3 "$mode-stored" TESSERA_STRATEGY="${strategy/;/:}" TESSERA_OFFLOAD="$offload" TESSERA_STRICT=1
done
same "$stored" 3 blocks-stored TESSERA_STRATEGY=full TESSERA_WRAP=none TESSERA_ACTIVATIONS=recompute

# The same global microbatches give the same bits, whoever computes them: W x K = 4.
export TESSERA_DETERMINISTIC=1
toy 4 blocks TESSERA_ACCUM=1
deterministic=$digest
for sync in each end; do
  same "$deterministic" 1 blocks TESSERA_COMM=self TESSERA_ACCUM=4 TESSERA_SYNC=$sync
  same "$deterministic" 2 blocks TESSERA_ACCUM=2 TESSERA_SYNC=$sync
  same "$deterministic" 2 hooks TESSERA_ACCUM=2 TESSERA_SYNC=$sync TESSERA_STRATEGY=none
done
nothing_left
echo "$runs rows of strategy, wrap, prefetch and mode; $((runs + 21)) runs in all"
