#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# Training on the doubles: the host waits for no step before the next one is under way, and a pass is one launch of a CUDA
# graph, on one GPU and on several. Parameters, losses and bytes are those of a run whose passes are called.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libcublas.so.13
delay=0
head -c 1500 "$SOURCE/README.md" >text.txt # the evaluation at the end is short
gpt="gpt --data text.txt --batch 2 --layers 1 --heads 1 --width 8 --context 8 --device cuda --sample 0"
calls() { awk -v name="$2" -v rank="${3:-0}" '$1 == rank && $2 == name { n = $3 } END { print n + 0 }' "$1"; } # FILE NAME [RANK]
# counted FILE STEPS OPTIONS…: the calls of a run
counted() {
  rm -f "$1"
  TESSERA_DOUBLE_LOG=$1 expect 0 on_double "$TESSERA" train $gpt --quiet --steps "${@:2}"
}
# same OPTIONS…: the same bits with graphs and without, and planned bytes
same() {
  local graphs summary first=""
  for graphs in 1 0; do
    rm -f log.$graphs
    summary=$(TESSERA_GRAPHS=$graphs TESSERA_DOUBLE_LOG=log.$graphs on_double "$TESSERA" train $gpt --steps 12 --json "$@" 2>said |
      grep '"summary"') || fail "train $* failed: $(tail -1 said)"
    summary=${summary// /}
    [[ $summary =~ \"peak_device_bytes\":([0-9]+).*\"planned_peak_device_bytes\":([0-9]+) ]] || fail "no peaks: $summary"
    [ "${BASH_REMATCH[1]}" = "${BASH_REMATCH[2]}" ] || fail "$*: ${BASH_REMATCH[1]} bytes, planned ${BASH_REMATCH[2]}"
    [ -n "${SANITIZE:-}" ] || [[ $summary = *'"step_allocations":0,'* ]] || fail "$*: allocations in steps: $summary"
    [[ $summary =~ \"params_digest\":\"([0-9a-f]+)\" ]] || fail "no digest: $summary"
    [ "${first:=${BASH_REMATCH[1]}}" = "${BASH_REMATCH[1]}" ] || fail "$*: $first with graphs, ${BASH_REMATCH[1]} without"
  done
  [ "$(calls log.1 cuGraphLaunch)" -ge 5 ] && [ "$(calls log.0 cuGraphLaunch)" = 0 ] ||
    fail "$*: $(calls log.1 cuGraphLaunch) graphs, and $(calls log.0 cuGraphLaunch) without"
  # What a transfer's stream recorded goes before computation in the launch, too.
  [ "$(calls log.1 nodes-of-another-priority)" = 0 ] || fail "$*: $(calls log.1 nodes-of-another-priority) recorded pieces lost their priority"
}
delay=50 same --precision bf16
same --precision bf16 --low-copy --accum 2
same --clip 0 --optimizer sgd --momentum 0.9 --strategy none
same --activations recompute --optimizer adam
delay=200 same --activations offload --layers 4 # the last blocks' activations stay
same --accum 3
same --accum 4 --sync end --deterministic --clip 0
same --accum 2 --sync end --offload cpu # the passes without a step
if [ -e "$doubles/libnccl.so.2" ] && [ -e "$BUILD/plugins/libtessera-comm-nccl.so" ]; then
  several=1
  delay=50 same -n 2 --layers 2
  same -n 2 --clip 0 --accum 3 --strategy grad_op
  same -n 3 --accum 2 --sync end --activations offload --layers 4
  delay=50 same -n 4 --strategy hybrid:2 --precision bf16 --layers 2
  delay=50 same -n 2 --precision bf16 --low-copy --layers 2
fi

# The optimizer's launches write the copies that gathers send: each gather of the step had a launch of its own, for the cast.
launches() { # OPTIONS…: of a step
  TESSERA_GRAPHS=0 counted few 6 --precision bf16 --layers 2 "$@"
  TESSERA_GRAPHS=0 counted many 8 --precision bf16 --layers 2 "$@"
  echo $((($(calls many cuLaunchKernel) - $(calls few cuLaunchKernel)) / 2))
}
saves() { # LAUNCHES OPTIONS…
  local saved=$(($(launches "${@:2}") - $(launches "${@:2}" --low-copy)))
  [ $saved = "$1" ] || fail "${*:2} --low-copy saves $saved launches of a step, expected $1"
}
saves 10
saves 6 --strategy none
[ -z "${several:-}" ] || saves 10 -n 2

# same_losses OPTIONS…: losses, rates and norms of all steps are the same in the file, whenever they were read.
same_losses() {
  local graphs
  for graphs in 1 0; do
    TESSERA_GRAPHS=$graphs expect 0 on_double "$TESSERA" train $gpt --steps 7 --quiet --csv=losses.$graphs "$@"
    cut -d, -f1-3,7 losses.$graphs >values.$graphs
  done
  cmp -s values.1 values.0 || fail "$*: losses, rates or norms differ: $(diff values.1 values.0)"
  [ "$(grep -cE '^[1-7],[0-9.]+,[0-9.]+,[0-9.]+$' values.1)" = 7 ] || fail "$*: losses are missing: $(cat values.1)"
}
same_losses
same_losses --accum 3
[ -z "${several:-}" ] || same_losses -n 3 --accum 2

# Calls of a step, when all that repeats has been recorded.
counted few 6
counted many 8
per_step() { echo $((($(calls many "$1") - $(calls few "$1")) / 2)); } # NAME
while read -r name wanted; do
  [ "$(per_step "$name")" = "$wanted" ] || fail "a step calls $name $(per_step "$name") times, expected $wanted"
done <<'CALLS'
cuGraphLaunch 1
cuLaunchKernel 0
cublasGemm 0
cublasLtMatmul 0
cuMemcpyHtoDAsync 0
cuMemcpyDtoHAsync 0
cuMemcpyDtoDAsync 0
cuMemsetD8Async 0
cuEventSynchronize 1
cuStreamSynchronize 0
waits-that-drain 0
CALLS

# drains_nothing RANKS LAUNCHES OPTIONS…: no rank waits for the last work of a stream in a step, which is so many launches.
drains_nothing() {
  local ranks=$1 launches=$2 rank
  shift 2
  counted few 7 -n "$ranks" "$@"
  counted many 9 -n "$ranks" "$@"
  for ((rank = 0; rank < ranks; rank++)); do
    for name in waits-that-drain cuStreamSynchronize pageable-copies; do
      [ "$(calls few $name $rank)" = "$(calls many $name $rank)" ] ||
        fail "$ranks GPUs $*: rank $rank has $(calls few $name $rank) $name in 7 steps, $(calls many $name $rank) in 9"
    done
    [ $(($(calls many cuGraphLaunch $rank) - $(calls few cuGraphLaunch $rank))) = $((2 * launches)) ] ||
      fail "$ranks GPUs $*: rank $rank has $(calls few cuGraphLaunch $rank) launches in 7 steps, $(calls many cuGraphLaunch $rank) in 9"
  done
}
drains_nothing 1 3 --accum 3
if [ -n "${several:-}" ]; then
  drains_nothing 2 1
  drains_nothing 3 1 --clip 0 --strategy grad_op
  drains_nothing 2 2 --accum 2
  drains_nothing 3 2 --accum 2 --sync end
  # Rank 0 alone writes spans. All call the four steps that it watches, and the next two of each kind.
  for graphs in 1 0; do
    rm -f log
    TESSERA_GRAPHS=$graphs TESSERA_DOUBLE_LOG=$PWD/log expect 0 on_double "$TESSERA" run -n 2 --no-prefix -- \
      sh -c "[ \$RANK = 0 ] && set -- --json=$PWD/spans.$graphs; exec '$TESSERA' train $gpt --steps 10 --quiet \"\$@\"" sh
    for rank in 0 1; do
      [ "$(calls log cuGraphLaunch $rank)" = $((4 * graphs)) ] || fail "rank $rank of a watched run has $(calls log cuGraphLaunch $rank) launches"
    done
    # But waits, which are left out where they are short.
    sed -nE '/"op":"wait/d; s/.*"event":"span".*("lane":"[^"]*","op":"[^"]*","unit":[^,]*).*/\1/p' spans.$graphs | sort >names.$graphs
  done
  [ "$(wc -l <names.1)" -gt 20 ] && cmp -s names.1 names.0 || fail "a watched step has other spans: $(diff names.1 names.0)"
fi
counted few 6

# Where something cannot be recorded, it is called as ever.
TESSERA_GRAPHS=0 counted off 6
[ "$(calls few cuGraphLaunch)" -gt 0 ] && [ "$(calls off cuGraphLaunch)" = 0 ] || fail "TESSERA_GRAPHS=0: $(calls off cuGraphLaunch) graphs"
TESSERA_LOG=info counted off 6 --offload cpu
[ "$(calls off cuGraphLaunch)" = 0 ] || fail "--offload cpu: $(calls off cuGraphLaunch) graphs"
[ "$(grep -c "passes that repeat are called and not recorded: the host steps what rests there" err)" = 1 ] ||
  fail "--offload cpu: why nothing is recorded is not said: $(cat err)"
# What cannot be recorded is a line, and passes are called: the same bits, and nothing is left behind.
digest_of() { sed -n '/"summary"/s/.*"params_digest": *"\([^"]*\).*/\1/p' out; }
falls_back() { # CALL OPTIONS…
  TESSERA_GRAPHS=0 expect 0 on_double "$TESSERA" train $gpt --steps 12 --json "${@:2}"
  local want
  want=$(digest_of)
  TESSERA_DOUBLE_FAIL=$1 expect 0 on_double "$TESSERA" train $gpt --steps 12 --json "${@:2}"
  [ -n "$want" ] && [ "$(digest_of)" = "$want" ] || fail "$*: digest $(digest_of), expected $want"
  [ "$(grep -c "a pass cannot be recorded, so passes are called from now on" err)" = 1 ] || fail "$*: $(cat err)"
}
one_line() { # CALL OPTIONS…
  local code=0
  TESSERA_DOUBLE_FAIL=$1 on_double "$TESSERA" train $gpt --quiet --steps 6 "${@:2}" >out 2>err || code=$?
  [[ $code = [34] ]] && [ "$(grep -c "device cuda: GPU [01]: .* failed: CUDA_ERROR" err)" -ge 1 ] || fail "$*: exit code $code: $(cat err)"
}
falls_back cuStreamEndCapture:1 --accum 3 --activations offload --layers 4
falls_back cuGraphInstantiate:2
# Of several ranks one cannot, and the others have recorded: all call, and one says why.
if [ -n "${several:-}" ]; then
  for call in cuStreamBeginCapture cuStreamEndCapture cuGraphInstantiate; do
    falls_back $call:2@1 -n 2
  done
  falls_back cuStreamEndCapture:1@0 -n 3 --accum 2 --clip 1
  falls_back cuStreamEndCapture:1 -n 2 # both
fi
# A launch that fails is an error.
one_line cuGraphLaunch:2
TESSERA_GRAPHS=7 expect 3 on_double "$TESSERA" train $gpt --steps 1
grep -q "TESSERA_GRAPHS is '7', expected" err || fail "a bad value is not told: $(cat err)"
echo "a step is one launch, and the host is a step ahead"
