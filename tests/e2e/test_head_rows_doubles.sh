#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# --head-rows: the rows on which a decoder's head works at a time. On the doubles there are as many products as chunks ask for, bytes are as planned, and
# one number of rows has one digest at any number of ranks, units, microbatches and memory-saving options. The CPU takes it too. The plan
# names the chunks, and the peak with one.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libcublas.so.13
[ -e "$BUILD/plugins/libtessera-precision-bf16.so" ] || { echo "skipped: no precision-bf16 in this build"; exit 77; }
several=1
[ -e "$doubles/libnccl.so.2" ] && [ -e "$BUILD/plugins/libtessera-comm-nccl.so" ] || several=0
gpt="gpt $(brief_text) --batch 2 --layers 2 --heads 2 --width 32 --context 16 --steps 3 --quiet --deterministic --precision bf16"
run() { # run OPTIONS…: exact books; sets digest, peak
  expect 0 on_double "$TESSERA" train $gpt --json=run.json "$@"
  peak=$(summary peak_device_bytes run.json)
  [ "$peak" = "$(summary planned_peak_device_bytes run.json)" ] ||
    fail "$*: peak $peak, planned $(summary planned_peak_device_bytes run.json)"
  [ -n "${SANITIZE:-}" ] || [ "$(summary step_allocations run.json)" = 0 ] || fail "$*: $(summary step_allocations run.json) allocations in steps"
  digest=$(summary params_digest run.json)
  [ ${#digest} = 32 ] || fail "digest '$digest' of $*"
}
same() { run "$@" && [ "$digest" = "$first" ] || fail "another digest: $*"; }
run --device cuda --accum 4 --head-rows 8
first=$digest few=$peak
same --device cuda --accum 4 --head-rows 8 --wrap none
TESSERA_GRAPHS=0 same --device cuda --accum 4 --head-rows 8 --activations recompute --offload cpu
if [ $several = 1 ]; then
  same --device cuda --head-rows 8 -n 2 --accum 2 --sync end --strategy grad_op
  same --device cuda --head-rows 8 -n 4
fi
run --device cuda --accum 4
first=$digest
[ "$peak" -ge "$few" ] || fail "all rows at once take $peak bytes, 8 at a time $few"
same --device cuda --accum 4 --head-rows 32
same --device cuda --accum 4 --head-rows 1000

# Three products of a chunk in each pass.
products() { # products ROWS: of a step
  local n
  for n in 1 3; do
    rm -f calls
    TESSERA_GRAPHS=0 TESSERA_DOUBLE_LOG=calls expect 0 on_double "$TESSERA" train $gpt --device cuda --steps $n --head-rows "$1"
    eval "of$n=$(awk '$2 == "cublasGemm" { n += $3 } END { print n + 0 }' calls)"
  done
  echo $(((of3 - of1) / 2))
}
one=$(products 32) four=$(products 8)
[ $((four - one)) = 9 ] || fail "$one products with one chunk, $four with four: expected nine more"

# On the CPU.
run --accum 4 --head-rows 8
first=$digest
same --accum 2 --head-rows 8 -n 2 --wrap none

# The plan. GPT-2's vocabulary, and so few layers that scratch of one holds no more than the least chunk.
cat >config.json <<'END'
{"model_type": "gpt2", "vocab_size": 50257, "n_embd": 64, "n_head": 2, "n_layer": 1, "n_positions": 1024}
END
planned() { expect 0 on_double "$TESSERA" plan gpt2 --config config.json --batch 8 --context 1024 --device cuda --precision bf16 "$@"; }
peak_of() { sed -n 's/.*"planned_peak_device_bytes": *\([0-9]*\).*/\1/p' out | head -1; }
planned --json --head-rows 8192
whole=$(peak_of)
! grep -q 'gradient_passes' out || fail "one chunk, and a word of it: $(grep gradient_passes out)"
planned --json
grep -Eq '"head": *\{"chunks": *3, *"rows": *2752, *"gradient_passes": *5, *"whole_rows": *8192, *"whole_planned_peak_device_bytes": *'"$whole}" out ||
  fail "expected three chunks and $whole bytes: $(grep gradient_passes out)"
planned --machine h100-8x-node
grep -Eq '^head: 3 chunks of 2752 rows, 5 passes over its matrix.s gradient; with --head-rows 8192 one, and [0-9.]+ MiB more at the peak, [0-9.e-]+ s per step$' out ||
  fail "no word of chunks: $(grep head out)"
awk '/ s per step/ { at[++n] = $(NF - 3) } END { exit !(n == 2 && at[1] < at[2]) }' out || fail "one chunk is no faster: $(grep ' s per step' out)"
planned --json --device cpu --head-rows 64
few=$(peak_of)
planned --json --device cpu --head-rows 8192
# fp32 and a bf16 gradient of 8,128 rows more
[ $(($(peak_of) - few)) -ge $((8128 * 50257 * 6)) ] || fail "on the CPU 8192 rows take $(peak_of) bytes, 64 rows $few"
refused() {
  expect "$1" "$TESSERA" "${@:3}"
  grep -qF -- "$2" err || fail "expected '$2': $(cat err)"
}
refused 2 "head-rows" train gpt --head-rows 0
refused 2 "head-rows" train mnist --head-rows 8
echo "rows of the head: one digest for one number of rows, bytes as planned; $one and $four products"
