#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# A profiler sees on every rank each unit and instruction by name, in ranges that nest; without one nothing is named, and
# the bits are the same.
. "$SOURCE/tests/e2e/lib.sh"
doubles="$BUILD/tests/doubles" witness="$BUILD/tests/support/nvtx_witness.so"
for file in "$doubles/libnccl.so.2" "$doubles/libcublas.so.13" "$BUILD/plugins/libtessera-comm-nccl.so" "$witness"; do
  [ -e "$file" ] || { echo "skipped: no ${file##*/} in this build"; exit 77; }
done
[ -z "${SANITIZE:-}" ] || export HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so # leaks a little
train() { LD_LIBRARY_PATH="$doubles" TESSERA_DOUBLE_LEAKS=99 TESSERA_DOUBLE_DELAY_US=0 "$TESSERA" train gpt $(brief_text) --batch 2 --layers 2 \
  --heads 2 --width 16 --context 8 --steps 2 -n 2 --device cuda --clip 1 --json=$1; }
digest() { grep -o '"params_digest":"[^"]*"' "$1"; }

RANGES=$PWD/none expect 0 train plain.json
[ ! -e none ] || fail "ranges without a profiler"
NVTX_INJECTION64_PATH=$witness RANGES=$PWD/ranges expect 0 train named.json
[ -n "$(digest plain.json)" ] && [ "$(digest plain.json)" = "$(digest named.json)" ] || fail "other bits with a profiler"

[ "$(cut -d' ' -f1 ranges | sort -u | wc -l)" = 2 ] || fail "ranges of other than 2 processes: $(cut -d' ' -f1 ranges | sort | uniq -c)"
! grep -q unbalanced ranges || fail "a range without its end"
for name in 'forward of "h.0"' 'backward of "h.1"' 'all_gather of unit h.0 ' 'reduce_scatter of unit h.1 ' \
  'optimizer step of unit head '; do
  for process in $(cut -d' ' -f1 ranges | sort -u); do
    grep "^$process " ranges | grep -qF "$name" || fail "process $process has no range '$name': $(cut -d' ' -f3- ranges | sort | uniq -c)"
  done
done
NVTX_INJECTION64_PATH=$witness RANGES=$PWD/checked expect 0 env LD_LIBRARY_PATH="$doubles" TESSERA_DOUBLE_LEAKS=99 "$TESSERA" plugins check \
  "$BUILD/plugins/libtessera-device-cuda.so" --only "*/ranges"
grep -q ' 1 $' checked || fail "the check has no range within another: $(cat checked)"
