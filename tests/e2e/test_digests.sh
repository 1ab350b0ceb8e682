#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# One params_digest at each number of ranks, whatever the strategy, the units, the prefetch or the run; a second one with
# clipping. In each run the planned bytes are the obtained ones and nothing is allocated after the first step.
set -u
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1
failed=0 runs=0
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' <<< "$line"; }
run() { # run NAME W OPTION…: the digest must be the first one of NAME and W
  local key=$1,$2 w=$2 digest
  shift 2
  "$TESSERA" train "$@" -n "$w" --quiet --json > out 2> err || { echo "FAILED: exit code $?: train $* -n $w: $(head -c 600 err)"; failed=1; }
  line=$(tail -n 1 out)
  runs=$((runs + 1))
  digest=$(field params_digest)
  [ -n "$digest" ] && [ "$digest" != null ] || { echo "FAILED: no digest: train $* -n $w: $(head -c 600 err)"; failed=1; return; }
  [ "$(field peak_device_bytes)" = "$(field planned_peak_device_bytes)" ] || { echo "FAILED: planned differs: $* -n $w"; failed=1; }
  case $(field step_allocations) in 0 | null) ;; *) echo "FAILED: allocations in a step: $* -n $w: $line"; failed=1 ;; esac
  [ -n "${first[$key]-}" ] || first[$key]=$digest
  [ "$digest" = "${first[$key]}" ] || { echo "FAILED: $key: $digest, not ${first[$key]}: $* -n $w"; failed=1; }
}
declare -A first
gpt="gpt --steps 4 --layers 2 --width 32 --heads 2 --context 16 --batch 2"
for w in 1 2 3 4; do
  for strategy in full grad_op none; do
    for wrap in scopes none size:20000 'module:h.*'; do
      # shellcheck disable=SC2086
      run gpt $w $gpt --clip 0 --strategy $strategy --wrap "$wrap"
    done
  done
  # shellcheck disable=SC2086
  run gpt $w $gpt --clip 0 # again
  for prefetch in 0 2; do
    # shellcheck disable=SC2086
    TESSERA_PREFETCH=$prefetch run gpt $w $gpt --clip 0
  done
  for strategy in full grad_op none; do
    # shellcheck disable=SC2086
    run clipped $w $gpt --clip 0.5 --strategy $strategy
    run mnist $w mnist --steps 2 --batch 8 --strategy $strategy
  done
  run mnist $w mnist --steps 2 --batch 8 --wrap size:20000
  [ "${first[gpt,$w]}" != "${first[clipped,$w]}" ] || { echo "FAILED: clipping changed nothing at W=$w"; failed=1; }
done
echo "$runs runs, ${#first[@]} digests"
exit $failed
