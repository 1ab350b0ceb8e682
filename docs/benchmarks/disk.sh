#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Optimizer states in files against fio with the same blocks, depth and direction, in turns, on a machine with nothing else to do: gpt,
# then llama. Usage: docs/benchmarks/disk.sh TESSERA DIR [ROUNDS]. DIR lies on the disk. LAYERS (4), WIDTH (512) and BATCH (8) are the
# size of both, OPTIONS more of tessera train (--clip 0). It ends after five minutes. Prints medians: fio's bandwidth, the step without and
# with, and the step against the larger of the step without and of the time that fio takes for the same bytes (goal 1.1). A step reads
# all states and writes them. Then what one step waited for, by its trace.
set -eu
tessera=$(realpath "$1") dir=$2 rounds=${3:-5} layers=${LAYERS:-4} width=${WIDTH:-512}
cd "$dir"
trap 'rm -f fio.data run.json run.html run.trace llama.json without with reads writes' EXIT
echo '{"model_type":"llama","vocab_size":256,"hidden_size":'"$width"',"intermediate_size":'$((width * 8 / 3 / 64 * 64))',"num_hidden_layers":'"$layers"',
  "num_attention_heads":8,"num_key_value_heads":4,"max_position_embeddings":64,"rms_norm_eps":1e-5,"rope_theta":10000.0,"tie_word_embeddings":true}' >llama.json
field() { grep '"event":"summary"' run.json | sed -E "s/.*\"$1\":([^,}]*).*/\\1/"; }
median() { sort -g | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }
fio_bytes() { # DIRECTION: bytes per second
  fio --name=states --filename=fio.data --size="$bytes" --bs=1M --iodepth=16 --ioengine=io_uring --direct=1 --rw="$1" --minimal |
    awk -F';' -v d="$1" '{ print (d == "read" ? $7 : $48) * 1024 }'
}
train() { # shellcheck disable=SC2086
  "$tessera" train $model --batch "${BATCH:-8}" --context 64 --optimizer adamw --steps 12 --sample 0 --quiet ${OPTIONS:-} --json=run.json "$@" >/dev/null
}
compare() { # SECONDS: when no more rounds begin
  : >without; : >with; : >reads; : >writes
  train --offload disk:.
  bytes=$(field peak_disk_bytes)
  for ((i = 0; i < rounds && (i == 0 || SECONDS < $1); i++)); do
    train
    field step_seconds >>without
    fio_bytes write >>writes
    fio_bytes read >>reads
    train --offload disk:.
    field step_seconds >>with
  done
  awk -v bytes="$bytes" -v without="$(median <without)" -v with="$(median <with)" -v read="$(median <reads)" -v write="$(median <writes)" 'BEGIN {
    disk = bytes / read + bytes / write; least = disk > without ? disk : without
    printf "%.1f MB of states; fio reads %.0f and writes %.0f MB/s\n", bytes / 1e6, read / 1e6, write / 1e6
    printf "step without %.4f s, with %.4f s; fio for the same bytes %.4f s; with / max(without, fio) = %.3f\n", without, with, disk, with / least
  }'
  train --offload disk:. --report run.html
  "$tessera" report run.json --perfetto -o run.trace
  grep -o '"dur":[0-9.]*,"args":{"op":"wait_[a-z_]*' run.trace | sed 's/"dur":\([0-9.]*\).*"op":"/\1 /' |
    awk '{ sum[$2] += $1 } END { for (op in sum) printf "exposed: %s %.4f s\n", op, sum[op] / 1e6 }'
}
model="gpt --layers $layers --heads 8 --width $width"
echo gpt
compare 130
model="llama --config llama.json"
echo llama
compare 270
