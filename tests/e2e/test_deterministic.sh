#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# TESSERA_DETERMINISTIC=1: one params_digest across W = 1, 2, 4 with accumulation 4, 2, 1 (the same global microbatches),
# communicated each time and at the end, in fp32 and bf16: mnist with its dropout, gpt, and the toy.
set -u
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
failed=0 runs=0
digest() { sed -n 's/.*"params_digest":"\([^"]*\)".*/\1/p; s/^digest=\([0-9a-f]*\) .*/\1/p' out | tail -n 1; }
# check NAME COMMAND…: it succeeds, and what it writes holds a digest equal to the first of NAME.
check() {
  local d
  "${@:2}" >out 2>err || { echo "FAILED: exit code $? of: ${*:2}: $(head -c 600 err)"; failed=1; }
  d=$(digest)
  runs=$((runs + 1))
  [ -n "$d" ] || { echo "FAILED: no digest: $1: $(head -c 600 err)"; failed=1; return; }
  [ -n "${first[$1]-}" ] || first[$1]=$d
  [ "$d" = "${first[$1]}" ] || { echo "FAILED: $1 at $w ranks, accumulation $k, $sync: $d, not ${first[$1]}"; failed=1; }
}
declare -A first
for wk in 1:4 2:2 4:1; do
  w=${wk%:*} k=${wk#*:}
  for sync in each end; do
    [ "$k" != 1 ] || [ $sync = each ] || continue
    for precision in fp32 bf16; do
      check "gpt $precision $sync" "$TESSERA" train gpt -n $w --accum $k --sync $sync --precision $precision --steps 3 \
        --layers 2 --width 32 --heads 2 --context 16 --batch 2 --quiet --json
      check "mnist $precision $sync" "$TESSERA" train mnist -n $w --accum $k --sync $sync --precision $precision --steps 2 \
        --batch 4 --quiet --json
      check "toy $precision $sync" env TESSERA_ACCUM=$k TESSERA_SYNC=$sync TESSERA_PRECISION=$precision "$TESSERA" run -n $w \
        --no-prefix -- "$BUILD/tests/support/toy" blocks
    done
  done
done
# With one microbatch per rank there is nothing to choose between each and end: both name the same run.
for name in gpt mnist toy; do
  for precision in fp32 bf16; do
    [ "${first[$name $precision each]-}" = "${first[$name $precision end]-none}" ] ||
      { echo "FAILED: $name $precision: each and end differ"; failed=1; }
  done
done
echo "$runs runs, ${#first[@]} digests"
exit $failed
