#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# Training on several GPUs over NCCL, on the doubles: comm=auto picks nccl, planned equals measured, nothing taken in a step,
# losses near the CPU's; the same bits for 1, 2 and 4 GPUs in deterministic mode; what does not fit together is one line.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
gpt="gpt $(brief_text) --batch 2 --layers 1 --heads 2 --width 16 --context 8 --steps 2"
holds() { # holds WHAT: what every run on GPUs must show
  [ "$(summary peak_device_bytes gpu.json)" = "$(summary planned_peak_device_bytes gpu.json)" ] ||
    fail "$1: peak $(summary peak_device_bytes gpu.json), planned $(summary planned_peak_device_bytes gpu.json)"
  [ -n "${SANITIZE:-}" ] || [ "$(summary step_allocations gpu.json)" = 0 ] ||
    fail "$1: $(summary step_allocations gpu.json) allocations in steps"
}

for options in "-n 3 --clip 0.5 --strategy grad_op" "-n 4 --strategy hybrid:2 --precision bf16" \
  "-n 2 --offload cpu --activations recompute"; do
  expect 0 on_double "$TESSERA" train $gpt $options --device cuda --json=gpu.json
  expect 0 "$TESSERA" train $gpt $options --json=cpu.json
  [ "$(summary comm gpu.json)" = nccl ] || fail "$options: comm=auto picked $(summary comm gpu.json)"
  holds "$options"
  awk -v a="$(summary loss gpu.json)" -v b="$(summary loss cpu.json)" \
    'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= 0.01 * b) }' ||
    fail "$options: loss $(summary loss gpu.json), on the CPU $(summary loss cpu.json)"
done

# Both arenas are registered with the world, the shard group, the replicas of hybrid and for reductions, and with each only
# once.
rm -f calls
TESSERA_DOUBLE_LOG=calls expect 0 on_double "$TESSERA" train $gpt -n 4 --strategy hybrid:2 --device cuda --quiet
for rank in 0 1 2 3; do
  registered=$(awk -v r=$rank '$1 == r && $2 == "ncclCommRegister" { n += $3 } END { print n + 0 }' calls)
  [ "$registered" = 8 ] || fail "hybrid: rank $rank registered $registered times, expected 2 arenas with 4 communicators"
done

digest=
for n in 1 2 4; do
  expect 0 on_double "$TESSERA" train $gpt -n $n --accum $((4 / n)) --sync end --deterministic --device cuda --json=gpu.json
  holds "deterministic, $n GPUs"
  : "${digest:=$(summary params_digest gpu.json)}"
  [ "$(summary params_digest gpu.json)" = "$digest" ] || fail "$n GPUs have other bits than one"
done

# The other decoders, whose batches are tokens; Llama's heads share keys and values.
for decoder in "gpt2 --heads 2" "llama --heads 4"; do
  decoder="$decoder $(brief_text) --batch 2 --layers 1 --width 32 --context 8 --steps 2" digest=
  for n in 1 2; do
    expect 0 on_double "$TESSERA" train $decoder -n $n --accum $((2 / n)) --sync end --deterministic --device cuda --json=gpu.json
    holds "$decoder, $n GPUs"
    : "${digest:=$(summary params_digest gpu.json)}"
    [ "$(summary params_digest gpu.json)" = "$digest" ] || fail "$decoder: $n GPUs have other bits than one"
  done
  expect 0 "$TESSERA" train $decoder -n 2 --sync end --deterministic --json=cpu.json
  awk -v a="$(summary loss gpu.json)" -v b="$(summary loss cpu.json)" \
    'BEGIN { d = a - b; exit !((d < 0 ? -d : d) <= 1e-5 * b) }' ||
    fail "$decoder: loss $(summary loss gpu.json), on the CPU $(summary loss cpu.json)"
done

refused() { # refused TEXT OPTIONS…
  local text=$1
  shift
  expect 3 on_double "$TESSERA" train linear -n 2 "$@"
  [ "$(grep -c . err)" = 1 ] && grep -q "$text" err || fail "$*: $(cat err)"
}
refused "TESSERA_COMM=gloo does not reach the memory of device cuda" --device cuda --comm gloo
refused "TESSERA_COMM=nccl does not reach the memory of device cpu" --device cpu --comm nccl
