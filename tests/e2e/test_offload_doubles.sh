#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 60
# With what is offloaded to the host, casts on their way up and down are a few blocks, beside which products run; activations
# are copied without a kernel.
. "$SOURCE/tests/e2e/lib.sh"
doubles="$BUILD/tests/doubles"
[ -e "$doubles/libcublas.so.13" ] || { echo "skipped: the doubles of CUDA and cuBLAS are not built"; exit 77; }
[ -z "${SANITIZE:-}" ] || export HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so # leaks a little
seq 1 400 >text
calls() { awk -v name="$2" '$2 == name { n = $3 } END { print n + 0 }' "$1"; } # FILE NAME
# train LOG OPTIONS…: a layer of 197,632 elements, which elsewhere is 193 blocks
train() {
  env LD_LIBRARY_PATH="$doubles" TESSERA_DOUBLE_LEAKS=99 TESSERA_DOUBLE_DELAY_US=0 TESSERA_DOUBLE_LOG="$1" "$TESSERA" train gpt --batch 1 \
    --layers 2 --heads 2 --width 128 --context 8 --steps 2 --precision bf16 --device cuda --sample 0 --data text --quiet "${@:2}"
}
expect 0 train up --offload cpu
[ "$(calls up cast-blocks-over-host)" = 32 ] || fail "a cast over host memory is $(calls up cast-blocks-over-host) blocks: $(cat up)"
expect 0 train plain
[ "$(calls plain cast-blocks-over-host)" = 0 ] || fail "casts over host memory without offload"
expect 0 train activations --activations offload
[ "$(calls activations cast-blocks-over-host)" = 0 ] || fail "activations move by kernels: $(cat activations)"
[ "$(calls activations cuMemcpyDtoHAsync)" -gt "$(calls plain cuMemcpyDtoHAsync)" ] || fail "no activations moved: $(cat activations)"
echo "casts over host memory leave the GPU to products"
