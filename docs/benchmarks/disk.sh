#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Optimizer states in files against fio with the same blocks, depth and direction, in turns, on a machine with nothing else to do.
# Usage: docs/benchmarks/disk.sh TESSERA DIR [ROUNDS]. DIR lies on the disk. LAYERS (8), WIDTH (1024) and BATCH (1) are the size of
# the gpt model. Prints medians: fio's bandwidth, the step without and with, and the step against the larger of the step
# without and of the time that fio takes for the same bytes. A step reads all states and writes them.
set -eu
tessera=$1 dir=$2 rounds=${3:-7}
cd "$dir"
model="gpt --layers ${LAYERS:-8} --heads 8 --width ${WIDTH:-1024} --context 64 --batch ${BATCH:-1} --optimizer adamw --steps 12 --quiet"
field() { grep '"event":"summary"' run.json | sed -E "s/.*\"$1\":([^,}]*).*/\\1/"; }
median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
fio_bytes() { # DIRECTION: bytes per second
  fio --name=states --filename=fio.data --size="$bytes" --bs=1M --iodepth=16 --ioengine=io_uring --direct=1 --rw="$1" --minimal |
    awk -F';' -v d="$1" '{ print (d == "read" ? $7 : $48) * 1024 }'
}
: >without; : >with; : >reads; : >writes
# shellcheck disable=SC2086
"$tessera" train $model --offload disk:. --json=run.json >/dev/null
bytes=$(field peak_disk_bytes)
for ((i = 0; i < rounds; i++)); do
  # shellcheck disable=SC2086
  "$tessera" train $model --json=run.json >/dev/null
  field step_seconds >>without
  fio_bytes write >>writes
  fio_bytes read >>reads
  # shellcheck disable=SC2086
  "$tessera" train $model --offload disk:. --json=run.json >/dev/null
  field step_seconds >>with
done
rm -f fio.data run.json
awk -v bytes="$bytes" -v without="$(median <without)" -v with="$(median <with)" -v read="$(median <reads)" -v write="$(median <writes)" 'BEGIN {
  disk = bytes / read + bytes / write; least = disk > without ? disk : without
  printf "%.1f MB of states; fio reads %.0f and writes %.0f MB/s\n", bytes / 1e6, read / 1e6, write / 1e6
  printf "step without %.4f s, with %.4f s; fio for the same bytes %.4f s; with / max(without, fio) = %.3f\n", without, with, disk, with / least
}'
rm -f without with reads writes
