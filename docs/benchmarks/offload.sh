#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# Paired steps of gpt without and with offload: ROUNDS runs of each in turn, STEPS timed steps per run. Prints one line per
# run: what, clip, the median wall time of a step and the processor time of all ranks per step, in seconds.
#   TESSERA=build/tessera ROUNDS=3 STEPS=3 docs/benchmarks/offload.sh [option of tessera train …]
set -eu
tessera=${TESSERA:-tessera}
options=(--layers 12 --width 768 --heads 12 --batch 4 --context 256 -n 2 --json "$@")
export TESSERA_COMM=gloo TESSERA_LOG=error

# Processor time of a process and all below it, in ticks of 1/100 s.
ticks() {
  local pid=$1 sum child
  sum=$(awk '{print $14 + $15}' "/proc/$pid/stat" 2>/dev/null || echo 0)
  for child in $(cat "/proc/$pid/task/$pid/children" 2>/dev/null); do
    sum=$((sum + $(ticks "$child")))
  done
  echo "$sum"
}

# The first step is not timed: pages are touched there for the first time.
run() {
  local offload=$1 clip=$2 line last=0 now used=0 seen=0 times=()
  coproc T { exec "$tessera" train gpt "${options[@]}" --clip "$clip" --steps $((STEPS + 2)) --offload "$offload"; }
  local pid=$T_PID
  while read -r line <&"${T[0]}"; do
    [[ $line == *'"event":"step"'* ]] || continue
    now=$(date +%s%N)
    seen=$((seen + 1))
    [ $seen = 1 ] && used=$(ticks "$pid")
    [ $seen -gt 1 ] && times+=($((now - last)))
    last=$now
    [ $seen -le "$STEPS" ] || break
  done
  used=$(($(ticks "$pid") - used))
  kill "$pid" 2>/dev/null || true # the evaluation that would follow is not of interest
  wait "$pid" 2>/dev/null || true
  printf '%s\n' "${times[@]}" | sort -n | awk -v w="$offload" -v c="$clip" -v u="$used" -v s="$STEPS" \
    '{ t[NR] = $1 } END { printf "%-5s clip %s  step %.3f  cpu %.3f  (min %.3f)\n", w, c, t[int((NR + 1) / 2)] / 1e9, u / 100 / s, t[1] / 1e9 }'
}

for ((round = 0; round < ${ROUNDS:=3}; round++)); do
  for clip in ${CLIPS:-0 1}; do
    STEPS=${STEPS:=3}
    run none "$clip"
    run "${OFFLOAD:-cpu}" "$clip"
  done
done
