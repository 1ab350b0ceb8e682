#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# Every field of the structs with which a program declares: `tessera plan -- PROGRAM` plans the bytes that its run on two
# ranks takes, or refuses what the run refuses. A field without a case fails, and a case without its field. Several
# engines are planned and summed.
. "$SOURCE/tests/e2e/lib.sh"
probe=$BUILD/tests/e2e/declare_probe
export TESSERA_LOG=error TESSERA_THREADS=1 TESSERA_COMM=shm
unset RANK WORLD_SIZE TESSERA_WRAP TESSERA_STRATEGY TESSERA_OFFLOAD TESSERA_PRECISION TESSERA_DEVICE_MEMORY TESSERA_HOST_MEMORY
[ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skipped: comm-shm is not built"; exit 77; }
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'; }

# same WORD…: planned as run; both results are in $peaks. refused CODE WORD…: by both alike.
same() {
  expect 0 "$TESSERA" run -n 2 --no-prefix -- "$probe" "$@"
  peaks=$(cat out)
  expect 0 "$TESSERA" plan -n 2 --quiet --json -- "$probe" "$@"
  [ "$(tail -n 1 out | field planned_peak_device_bytes) $(tail -n 1 out | field planned_peak_host_bytes)" = "$peaks" ] ||
    fail "$*: a run takes $peaks, planned: $(tail -n 1 out | grep -o '"planned_peak_[^,]*')"
}
refused() {
  local code=$1
  shift
  expect "$code" "$TESSERA" run -n 2 --no-prefix -- "$probe" "$@"
  expect "$code" "$TESSERA" plan -n 2 --quiet -- "$probe" "$@"
}
# moves WORD…: the same, and not the bytes of the plain program, or of the one that `than` names.
moves() {
  same "$@"
  [ "$peaks" != "${than:-$plain}" ] || fail "$*: nothing has changed, so that the case shows nothing"
}
# says KEY:VALUE WORD…: the same bytes, and the plan has this value.
says() {
  same "${@:2}"
  tail -n 1 out | grep -q "\"${1%:*}\":${1#*:}," || fail "${*:2}: planned without $1: $(tail -n 1 out)"
}
# alone COMMAND…: without the environment's words, which win over the program's.
alone() {
  unset TESSERA_COMM TESSERA_THREADS TESSERA_LOG
  "$@"
  export TESSERA_LOG=error TESSERA_THREADS=1 TESSERA_COMM=shm
}
# more WORD OTHER…: it moves what the others take.
more() {
  same "${@:2}"
  than=$peaks moves "$@"
}

same
plain=$peaks
declare -A cases=(
  [options.pointer_mem]="refused 3 options.pointer_mem=1024"
  [options.comm]="alone refused 3 options.comm=nope"
  [options.offload]="moves options.offload=cpu"
  [options.precision]="moves options.precision=bf16 param.compute_dtypes=$((1 << 6 | 1 << 7))"
  [options.wrap]="moves options.wrap=none"
  [options.strategy]="moves options.strategy=none"
  [options.device]="refused 3 options.device=nope"
  [options.optimizer]="moves options.optimizer=sgd"
  [options.momentum]="moves options.optimizer=sgd options.momentum=0.5"
  [options.accum]="moves options.accum=2"
  [options.device_memory_bytes]="refused 4 options.device_memory_bytes=1"
  [options.host_memory_bytes]="refused 4 options.host_memory_bytes=1 options.checkpoint=1"
  [options.input_bytes]="moves options.input_bytes=65536"
  [options.flags]="more options.flags=6 options.strategy=none options.activations=recompute" # STEP_IN_PASS, NO_CLIP
  [options.own_states]="moves options.optimizer=own options.own_states=1"
  [options.activations]="moves options.activations=recompute"
  [options.sync]="moves options.sync=end options.accum=2"
  [options.prefetch]="moves options.prefetch=0"
  [options.log]="alone refused 3 options.log=nope"
  [options.threads]="alone says threads:3 options.threads=3"
  [options.deterministic]="moves options.deterministic=1 options.sync=end options.accum=2"
  [options.strict]="same options.strict=1"
  [options.checkpoint]="moves options.checkpoint=1"
  [options.recover]="moves options.recover=1 options.mirror=2"
  [options.audit]="more options.audit=1/1 block.flags=8"
  [options.on_audit]="refused 3 options.on_audit=nope"
  [options.common_bytes]="more options.common_bytes=4096 options.recover=1 options.mirror=2"
  [options.microbatches]="moves options.microbatches=8"
  [options.mirror]="moves options.recover=1 options.mirror=2"
  [block.flags]="more block.flags=1 options.activations=recompute"
  [block.name]="same block.name=b"
  [block.output_bytes]="moves block.output_bytes=8192"
  [block.saved_bytes]="moves block.saved_bytes=200000"
  [block.forward_scratch_bytes]="moves block.forward_scratch_bytes=100000"
  [block.backward_scratch_bytes]="moves block.backward_scratch_bytes=100000"
  [block.remake_scratch_bytes]="moves block.remake_scratch_bytes=4096 options.activations=recompute"
  [block.selective_saved_bytes]="moves block.selective_saved_bytes=512 options.activations=selective"
  [block.selective_scratch_bytes]="moves block.selective_saved_bytes=512 block.selective_scratch_bytes=90000 options.activations=selective"
  [block.forward_work]="more block.forward_work=0.001 options.activations=auto:250000"
  [block.selective_work]="more block.selective_work=1e9 options.activations=auto:200000 block.selective_saved_bytes=512"
  [block.also]="moves block.also=d"
  [param.dtype]="more param.dtype=8 param.flags=1"
  [param.flags]="moves param.flags=1"
  [param.compute_dtypes]="refused 3 options.precision=bf16 param.compute_dtypes=$((1 << 7))"
  [param.name]="same"
  [param.ndim]="moves param.ndim=1"
  [param.optimizer_group]="refused 3 param.optimizer_group=-1"
)
for name in $("$probe" list); do
  [ -n "${cases[$name]:-}" ] || fail "$name has no case here"
  ${cases[$name]}
  unset "cases[$name]"
done
[ ${#cases[@]} = 0 ] || fail "no part of a plan any more: ${!cases[*]}"

# Settings, and which of the program's and the environment's wins.
moves settings.wrap=none
TESSERA_WRAP=none moves
TESSERA_WRAP=none same options.wrap=scopes
[ "$peaks" != "$plain" ] || fail "the environment does not win"
TESSERA_WRAP=none same options.wrap=scopes options.flags=1
[ "$peaks" = "$plain" ] || fail "TESS_OPTIONS_WIN does not"

same options.microbatches=4 # two each
[ "$peaks" = "$(TESSERA_ACCUM=2 "$TESSERA" run -n 2 --no-prefix -- "$probe")" ] || fail "4 on 2 ranks are not accum 2"
expect 0 "$TESSERA" plan -n 2 --accum 3 --json -- "$probe" options.microbatches=4
[ "$(tail -n 1 out | field accum)" = 3 ] || fail "--accum does not win: $(tail -n 1 out)"
TESSERA_ACCUM=3 same options.microbatches=4 options.flags=1
[ "$(tail -n 1 out | field accum)" = 2 ] || fail "TESS_OPTIONS_WIN does not win: $(tail -n 1 out)"
refused 3 options.microbatches=3

# Several engines: each is planned, and what they take adds up. One that stops at the first says so.
same engines=2
expect 0 "$TESSERA" plan -n 2 -- "$probe" engines=2
[ "$(grep -c 'per rank of 2$' out)" = 2 ] || fail "not two reports: $(cat out)"
has_line out ".*: its 2 engines together take at most .* of device memory and .* of host memory"
TESSERA_LOG=warning expect 0 "$TESSERA" plan -n 2 --quiet -- "$probe" engines=2 stop=1
grep -q "opens 2 engines, and 1 of them came to tess_shard" err || fail "nothing says that one is left out: $(cat err)"
refused 4 engines=2 options.device_memory_bytes=1
nothing_left
