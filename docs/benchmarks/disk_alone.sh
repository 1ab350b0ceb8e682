#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# The store of offload-disk by itself against fio with the same blocks, depth and direction, in turns, on a machine with nothing else to do.
# Usage: docs/benchmarks/disk_alone.sh BUILD DIR [ROUNDS]. DIR lies on the disk. MIB (1024), DEPTH (16), SETTINGS (verify=0). It ends after
# four minutes at the latest. Prints a line per round, and medians: of each, and of the ratios (goal 0.9).
set -eu
build=$(realpath "$1") dir=$2 rounds=${3:-7} mib=${MIB:-1024} depth=${DEPTH:-16}
cd "$dir"
trap 'rm -f fio.data ratios' EXIT
fio_bytes() { # DIRECTION: bytes per second
  fio --name=store --filename=fio.data --size="${mib}m" --bs=1M --iodepth="$depth" --ioengine=io_uring --direct=1 --fallocate=posix --rw="$1" --minimal |
    awk -F';' -v d="$1" '{ print (d == "read" ? $7 : $48) * 1024 }'
}
: >ratios
for ((i = 0; i < rounds && SECONDS < 240; i++)); do
  rm -f fio.data # a store's file is new, too
  fio_writes=$(fio_bytes write) fio_reads=$(fio_bytes read)
  read -r writes reads < <("$build/tests/e2e/store_speed" "$build/plugins/libtessera-offload-disk.so" ".,depth=$depth,${SETTINGS:-verify=0}" "$mib" "$depth")
  awk -v w="$writes" -v r="$reads" -v fw="$fio_writes" -v fr="$fio_reads" 'BEGIN { print w / 1e6, fw / 1e6, w / fw, r / 1e6, fr / 1e6, r / fr }' | tee -a ratios |
    awk '{ printf "writes %.0f, fio %.0f MB/s: %.3f; reads %.0f, fio %.0f MB/s: %.3f\n", $1, $2, $3, $4, $5, $6 }'
done
median() { cut -d' ' -f"$1" ratios | sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
printf 'medians: writes %.3f and reads %.3f of fio\n' "$(median 3)" "$(median 6)"
