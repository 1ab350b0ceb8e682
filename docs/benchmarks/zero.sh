#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Optimizer states in files, beside DeepSpeed's ZeRO-Infinity on a CPU: gpt on one rank, both without and with files, in turns, on a
# machine with nothing else to do. Usage: PYTHON=/path/to/python docs/benchmarks/zero.sh TESSERA DIR [ROUNDS]. PYTHON has deepspeed and
# torch; a compiler, ninja and libaio-dev are there. DIR lies on the disk. LAYERS (4), WIDTH (512) and BATCH (8) are the size of both.
# Prints medians of steps, and the most resident MiB. The first run compiles DeepSpeed's operators, for minutes.
set -eu
here=$(cd "$(dirname "$0")/../.." && pwd)
tessera=$(realpath "$1") dir=$2 rounds=${3:-3} layers=${LAYERS:-4} width=${WIDTH:-512} batch=${BATCH:-8}
python=${PYTHON:-python3}
export PATH=$(dirname "$(realpath -s "$python")"):$PATH
cd "$dir"
trap 'rm -rf zero zero.* run.json' EXIT
median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
field() { grep '"event":"summary"' run.json | sed -E "s/.*\"$1\":([^,}]*).*/\\1/"; }
ours() { # FILE OPTION…
  "$tessera" train gpt --layers "$layers" --heads 8 --width "$width" --batch "$batch" --context 64 --optimizer adamw --clip 0 --steps 12 --sample 0 \
    --quiet --json=run.json "${@:2}" >/dev/null
  field step_seconds >>"zero.$1"
  echo $(($(grep -o '"peak_resident_bytes":[0-9]*' run.json | head -1 | cut -d: -f2) >> 20)) >>"zero.$1.mib"
}
theirs() { # FILE OPTION…
  mkdir -p zero
  "$python" "$here/tests/reference/zero_infinity.py" --layers "$layers" --width "$width" --batch "$batch" "${@:2}" >zero.out 2>zero.err ||
    { tail -5 zero.err >&2 && exit 1; }
  read -r _ seconds _ _ _ mib < <(grep '^step ' zero.out)
  echo "$seconds" >>"zero.$1" && echo "$mib" >>"zero.$1.mib"
}
for ((i = 0; i < rounds; i++)); do
  ours tessera && theirs deepspeed && ours tessera.disk --offload disk:. && theirs deepspeed.disk --disk zero
done
for which in tessera tessera.disk deepspeed deepspeed.disk; do
  printf '%-15s %.4f s a step, %s MiB resident\n' $which "$(median <zero.$which)" "$(median <zero.$which.mib)"
done
