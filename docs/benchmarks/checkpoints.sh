#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Bandwidth of a checkpoint against dd with the same fsync, in turns, and the stall of an asynchronous save against one copy
# of the shard. Usage: docs/benchmarks/checkpoints.sh TESSERA [DIR [ROUNDS]]. The medians of ROUNDS (7) rounds are printed. LAYERS
# (4) and WIDTH (768) are the size of the gpt model.
set -eu
tessera=$1 dir=${2:-.} rounds=${3:-7}
cd "$dir"
model="gpt --layers ${LAYERS:-4} --heads 8 --width ${WIDTH:-768} --context 16 --batch 1 --threads 1 --quiet"
field() { grep "\"event\":\"$1\"" run.json | tail -n 1 | sed -E "s/.*\"$2\":([^,}]*).*/\\1/"; }
median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
: >ours; : >dds; : >stalls; : >syncs
for ((i = 0; i < rounds; i++)); do
  for mode in async sync; do
    rm -rf saved
    "$tessera" train $model --steps 1 --save saved --checkpoint $mode --json=run.json >/dev/null
    bytes=$(field checkpoint bytes)
    [ $mode = async ] || { field checkpoint write_seconds >>syncs; continue; }
    field checkpoint stall_seconds >>stalls
    field checkpoint write_seconds >>ours
    host="$(field summary peak_host_bytes) of $(field summary planned_peak_host_bytes) planned"
  done
  cp saved/step-*/data-*.safetensors data # what is written the other way is the same
  sync data
  rm -f written
  began=$(date +%s.%N)
  dd if=data of=written bs=8M conv=fsync status=none
  echo "$(date +%s.%N) $began" | awk '{ print $1 - $2 }' >>dds
done
rm -rf saved data written
awk -v b="$bytes" -v a="$(median <ours)" -v s="$(median <syncs)" -v d="$(median <dds)" -v t="$(median <stalls)" -v h="$host" 'BEGIN {
  printf "%d bytes: asynchronous %.0f MB/s, synchronous %.0f MB/s, dd %.0f MB/s, ratios %.2f and %.2f; ", b, b / a / 1e6, b / s / 1e6, b / d / 1e6, d / a, d / s
  printf "stall %.3f s (%.1f GB/s); peak host memory %s\n", t, b / t / 1e9, h }'
