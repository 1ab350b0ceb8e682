#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# A call that rank 0 alone makes ends on all ranks within seconds, with a message that names both sides; so do ranks that
# differ in what must be equal. Every rank is watched, so they are started here and not by the launcher.
. "$SOURCE/tests/e2e/lib.sh"
alone="$BUILD/tests/support/alone" toy="$BUILD/tests/support/toy"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
unset TESSERA_KV TESSERA_SECRET TESSERA_RANKS
export TESSERA_COMM=gloo TESSERA_THREADS=1

# ranks N PROGRAM…: err.R and code_R of each; RANK_R holds more variables of rank R. The port may be taken: try another.
ranks() {
  local n=$1 r more pids
  shift
  for _ in 1 2 3 4 5; do
    pick_port
    pids=()
    for ((r = 0; r < n; r++)); do
      more=RANK_$r
      env ${!more:-} RANK=$r WORLD_SIZE="$n" LOCAL_RANK=$r MASTER_ADDR=127.0.0.1 MASTER_PORT=$MASTER_PORT \
        timeout 60 "$@" >"out.$r" 2>"err.$r" &
      pids[r]=$!
    done
    for ((r = 0; r < n; r++)); do
      code=0
      wait "${pids[r]}" || code=$?
      eval "code_$r=$code"
    done
    grep -q "in use" err.* || return 0
  done
}

# check N CODE PATTERN PROGRAM…: every rank ends with that code in a few seconds; some line of each matches.
check() {
  local n=$1 want=$2 pattern=$3 r code begun
  shift 3
  begun=$(milliseconds)
  ranks "$n" "$@"
  [ $(($(milliseconds) - begun)) -lt 40000 ] || fail "$*: took $(($(milliseconds) - begun)) ms"
  for ((r = 0; r < n; r++)); do
    code=code_$r
    [ "${!code}" = "$want" ] || fail "$*: rank $r ended with ${!code}, expected $want: $(cat "err.$r")"
    grep -Eq -- "$pattern" "err.$r" || fail "$*: rank $r does not say '$pattern': $(cat "err.$r")"
  done
}
both='rank 0 is in (wait for )?%s.*rank [123]|rank [123] is in .*rank 0 in (wait for )?%s'
sides() { printf "${both//%s/$1}"; }

for n in 2 3; do
  check $n 5 "$(sides tess_all_reduce)" "$alone" all_reduce
  check $n 5 "$(sides tess_barrier)" "$alone" barrier
  check $n 5 "$(sides 'all_reduce of the gradient norm')" "$alone" grad_norm
  check $n 5 "$(sides 'all_gather of unit h.0')" "$alone" summon
  check $n 5 "$(sides 'the walk over full parameters')" "$alone" each_full
  check $n 5 "$(sides 'all_gather of unit h.[01]')" "$alone" forward_begin
  check $n 5 "rank 0 (is )?in .*rank [12]" "$alone" last_all_reduce
  check $n 5 "tess_close" "$alone" last_barrier
  check $n 5 "tess_close" "$alone" last_each_full
done
# Without gathers only the reductions, or the comparison of programs, can tell.
for strategy in none hybrid:1 grad_op; do
  export TESSERA_STRATEGY=$strategy
  check 2 5 "$(sides tess_all_reduce)" "$alone" all_reduce
  check 2 5 "rank 0 (is )?in .* of unit" "$alone" shortened
done
# Across communicators: the shard group waits here, all ranks there.
export TESSERA_STRATEGY=hybrid:2
check 4 5 "$(sides tess_all_reduce)" "$alone" all_reduce
check 4 5 "$(sides 'the walk over full parameters')" "$alone" each_full
check 4 5 "tess_close" "$alone" last_summon
# All together may depart: one compilation for the new order, one for the old again, whatever is in flight.
for strategy in full grad_op none hybrid:2; do
  for prefetch in 0 1 3; do
    TESSERA_STRATEGY=$strategy TESSERA_PREFETCH=$prefetch check 2 0 "^alone: 2 recompilations" "$alone" everyone
  done
done
TESSERA_STRATEGY=hybrid:2 check 4 0 "^alone: 2 recompilations" "$alone" everyone
TESSERA_STRATEGY=full check 3 0 "^alone: 2 recompilations" "$alone" everyone
unset TESSERA_STRATEGY
# A step that is not due: the rank that asked says why, the others name it.
ranks 2 "$alone" step
[ "$code_0/$code_1" = 3/5 ] || fail "step: exit codes $code_0 and $code_1"
grep -q "tess_step: 0 of 1 training passes" err.0 || fail "step: rank 0 says $(cat err.0)"
grep -q "rank 0 failed.*tess_step: 0 of 1 training passes" err.1 || fail "step: rank 1 says $(cat err.1)"

# Ranks that differ.
differ() { # PATTERN VARIABLES-OF-RANK-1
  RANK_1="$2" check 3 3 "$1" "$toy" hooks
  [ "$(cat err.0 | grep -c "$1")" = 1 ] || fail "$2: more than one line: $(cat err.0)"
}
differ "the ranks differ in compute threads or instruction set: rank 0 has 1 threads.*rank 1 has 2 threads" TESSERA_THREADS=2
differ "rank 0 has .*, rank 1 has 1 threads, instruction set sse41" TESSERA_ISA=sse41
differ "the ranks differ in plugins: rank 0 has wrap scopes.*rank 1 has wrap none" TESSERA_WRAP=none
differ "the ranks differ in plugins: rank 0 has comm gloo.*rank 1 has comm self" TESSERA_COMM=self
differ "the ranks differ in options: .*accum 1.*accum 2" TESSERA_ACCUM=2
differ "the ranks differ in options: .*low-copy 0.*low-copy 1" TESSERA_LOW_COPY=1
differ "the ranks differ in options: rank 0 has shard group 3.*rank 1 has shard group 1" TESSERA_STRATEGY=none
check 2 5 "declaration 9 is \"parameter h.2.extra, f32 \[3, 5\]\" on rank 0 and \"parameter h.2.extra, f32 \[3, 6\]\" on rank 1" \
  "$alone" shape
nothing_left
