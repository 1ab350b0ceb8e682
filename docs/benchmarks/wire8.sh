#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Seconds of a step over a link of 100 Mbit/s, by what travels: two hosts of one rank each, network namespaces on the tests' own
# switch, three rounds in turns. As root, from the tree: docs/benchmarks/wire8.sh [BUILD [COMM…]]
set -eu
SOURCE=$(cd "$(dirname "$0")/../.." && pwd)
BUILD=$(cd "${1:-$SOURCE/build/release}" && pwd)
shift || true
TESSERA=$BUILD/tessera
export SOURCE BUILD TESSERA
cd "$(mktemp -d)"
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
hosts_on_switch 2
wire_rules all all rate_kbit=100000
secret=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
head -c 4000 "$SOURCE/README.md" >text # little, since what is held out is evaluated too
export TESSERA_LOG=error TESSERA_SECRET="$secret"

steps() { # STEPS PRECISION COMM OPTION…: seconds of the steps
  local n=$1 precision=$2 comm=$3 node pids=()
  shift 3
  for node in 0 1; do
    on $node env TESSERA_COMM="$comm" "$TESSERA" run --nnodes 2 --node-rank $node --rendezvous "${address[0]}:29400" -n 1 -- \
      "$TESSERA" train gpt --data text --layers 4 --width 256 --heads 4 --context 32 --batch 1 --threads 1 --steps "$n" --sample 0 \
      --precision "$precision" --quiet --json "$@" >out.$node 2>err.$node &
    pids+=($!)
  done
  wait "${pids[0]}" && wait "${pids[1]}" || fail "$precision: $(cat err.0 err.1)"
  sed -n 's/.*"event":"summary".*"seconds":\([0-9.]*\).*/\1/p' out.0
}
for comm in "${@:-gloo}"; do
  for round in 1 2 3; do
    for precision in fp32 bf16 wire8; do
      short=$(steps 3 $precision "$comm")
      long=$(steps 11 $precision "$comm")
      awk -v a="$short" -v b="$long" -v what="$comm $round $precision" 'BEGIN { printf "%s %.3f\n", what, (b - a) / 8 }'
    done
  done
done
