#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# processors: 2
# A budget one byte below the planned peak is refused before anything starts, with exit code 4 and the bytes by category;
# the peak itself runs, and takes that.
. "$SOURCE/tests/e2e/lib.sh"
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
unset TESSERA_DEVICE_MEMORY TESSERA_HOST_MEMORY RANK WORLD_SIZE
export TESSERA_LOG=error TESSERA_THREADS=1
field() { tail -n 1 "$2" | sed -n 's/.*"'"$1"'":\([0-9a-z]*\).*/\1/p'; }
gpt="gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2 --data $SOURCE/core/layout/layout.c --steps 1"
mnist="mnist $(brief_digits) --batch 4 --steps 1"
convbn="convbn --image-size 16 --hidden 8 --steps 2"

check() { # check MODEL RANKS OPTIONS…: of device memory
  local model=$1 ranks=$2 peak
  shift 2
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" plan ${!model} -n "$ranks" --prefetch 1 --quiet --json "$@"
  peak=$(field planned_peak_device_bytes out)
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" train ${!model} -n "$ranks" --prefetch 1 --quiet --json=run.json --device-memory "$peak" "$@"
  [ "$(field peak_device_bytes run.json)" = "$peak" ] || fail "$model: it takes $(field peak_device_bytes run.json), not $peak"
  rm run.json
  # shellcheck disable=SC2086
  expect 4 "$TESSERA" train ${!model} -n "$ranks" --prefetch 1 --json=run.json --device-memory $((peak - 1)) "$@"
  ! grep -q '"event":"step"' run.json 2> /dev/null || fail "$model: it has trained"
  head -n 1 err | grep -q "a step needs $peak bytes of device memory per rank and TESSERA_DEVICE_MEMORY allows $((peak - 1)); at its peak, in bytes: .*activation [0-9]" ||
    fail "$model: it says $(cat err)"
  [ "$(grep -c 'a step needs' err)" = 1 ] || fail "$model: it says so more than once: $(cat err)"
  # shellcheck disable=SC2086
  expect 4 "$TESSERA" plan ${!model} -n "$ranks" --prefetch 1 --json=run.json --device-memory $((peak - 1)) "$@"
  [ "$(field fits run.json)" = false ] || fail "$model: fits is $(field fits run.json)"
  grep -q "does not fit: .* are missing (1 bytes)" out || fail "$model: the plan says $(cat out)"
  echo "$model on $ranks: $peak bytes run, $((peak - 1)) are refused"
}

check mnist 1
check gpt 1
check convbn 1 --activations recompute
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "comm-gloo is not built here: one rank only"; exit 0; }
check gpt 2
check convbn 2

# How many units are gathered ahead is ours to choose, unless it was said: with less memory it is none.
expect 0 "$TESSERA" plan $gpt -n 2 --prefetch 0 --quiet --json
less=$(field planned_peak_device_bytes out)
expect 0 "$TESSERA" plan $gpt -n 2 --quiet --json
peak=$(field planned_peak_device_bytes out)
[ "$less" -lt "$peak" ] || fail "gathering ahead costs nothing: $less, $peak"
expect 0 "$TESSERA" plan $gpt -n 2 --quiet --json --device-memory $((peak - 1))
[ "$(field planned_peak_device_bytes out)" = "$less" ] || fail "$(cat out)"
expect 4 "$TESSERA" train $gpt -n 2 --device-memory $((less - 1))

# The host's memory.
[ -f "$BUILD/plugins/libtessera-offload-cpu.so" ] || { echo "offload-cpu is not built here"; exit 0; }
expect 0 "$TESSERA" plan $convbn --offload cpu --quiet --json
host=$(field planned_peak_host_bytes out)
expect 0 "$TESSERA" train $convbn --offload cpu --quiet --host-memory "$host"
expect 4 "$TESSERA" train $convbn --offload cpu --quiet --host-memory $((host - 1))
nothing_left
