#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The matrix model with device=cuda and CPU offload on the doubles: every call of the driver fails, its first,
# middle and last time (FAULTS=all: every time; slow), on one rank and over NCCL on two. A clear line and an exit code of
# the contract each time, the other rank ends too, nothing is left behind and nothing hangs.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
toy=$BUILD/tests/support/toy tessera=$BUILD/tessera
[ -e "$BUILD/tests/doubles/libcuda.so.1" ] && [ -e "$BUILD/plugins/libtessera-device-cuda.so" ] ||
  { echo "skipped: the doubles of CUDA are not built here (CUDA toolkit not found)"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: the sanitizer's own report at exit would be the double's"; exit 77; }
export TESSERA_PLUGIN_PATH=$BUILD/plugins LD_LIBRARY_PATH=$BUILD/tests/doubles
export TESSERA_DEVICE=cuda TESSERA_OFFLOAD=cpu TESSERA_DOUBLE_LEAKS=99 TESSERA_DOUBLE_DELAY_US=0

# one RANKS NAME:N: runs with that fault, and looks at how it ends.
one() {
  local code=0
  if [ "$1" = 1 ]; then
    TESSERA_DOUBLE_FAIL=$2 timeout 30 "$toy" blocks-clip 2 >out 2>err </dev/null || code=$?
  else
    TESSERA_DOUBLE_FAIL=$2@1 timeout 30 "$tessera" run -n "$1" --no-prefix -- "$toy" blocks-clip 2 >out 2>err </dev/null || code=$?
  fi
  runs=$((runs + 1))
  case $code in
    0) grep -q 'digest=' out || fail "$2 on $1 ranks: exit code 0 and no result: $(cat err)" ;;
    3 | 4 | 5)
      failed=$((failed + 1))
      grep -q 'toy: ' err || fail "$2 on $1 ranks: exit code $code without a line"
      ;;
    99) # what cannot make the context current at the end cannot give anything back
      case $2 in cuCtxPushCurrent:*) ;; *) fail "$2 on $1 ranks: $(cat err)" ;; esac ;;
    *) fail "$2 on $1 ranks: exit code $code: $(head -c 2000 err)" ;;
  esac
}

# A program that gives no stream works on the default one.
digest() { sed -n 's/^digest=\([0-9a-f]*\) .*/\1/p' out; }
expect 0 env TESSERA_DEVICE=cpu "$toy" blocks-clip 2
want=$(digest)
expect 0 env TOY_DEFAULT_STREAM=1 TESSERA_DOUBLE_DELAY_US=50 "$toy" blocks-clip 2
[ -n "$want" ] && [ "$(digest)" = "$want" ] || fail "on the default stream: digest $(digest), expected $want"

runs=0 failed=0
for ranks in 1 2; do
  rm -f calls
  if [ $ranks = 1 ]; then
    TESSERA_DOUBLE_LOG=$PWD/calls expect 0 "$toy" blocks-clip 2
  else
    TESSERA_DOUBLE_LOG=$PWD/calls expect 0 "$tessera" run -n $ranks -- "$toy" blocks-clip 2
  fi
  while read -r rank name calls; do
    [ "$rank" = $((ranks - 1)) ] || continue
    case $name in cu* | work | nccl*) ;; *) continue ;; esac
    if [ "${FAULTS:-}" = all ]; then
      times=$(seq "$calls")
    else
      times=$(printf '%s\n' 1 $((calls / 2)) "$calls" | sort -nu)
    fi
    for n in $times; do
      [ "$n" -ge 1 ] && [ "$n" -le "$calls" ] && one $ranks "$name:$n"
    done
  done <calls
done
nothing_left
[ $failed -ge 60 ] || fail "only $failed of $runs runs failed"
echo "$runs runs with one failing call each, of which $failed failed, on the doubles"
