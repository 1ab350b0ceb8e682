#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# TESSERA_STRICT=1 watches pointers into a GPU's memory too: on the doubles of CUDA and NCCL, each mistake of test_misuse
# that a pointer makes gets its message. Where the GPU has no room for the copies, one line says that nothing watches.
. "$SOURCE/tests/e2e/lib.sh"
doubles=$BUILD/tests/doubles
[ -e "$doubles/libnccl.so.2" ] || { echo "skipped: the doubles of CUDA and NCCL are not built"; exit 77; }
export LD_LIBRARY_PATH=$doubles TESSERA_DOUBLE_DEVICES=2 TESSERA_DOUBLE_DELAY_US=20 TESSERA_DEVICE=cuda TESSERA_LOG=warning
export TESSERA_STRICT=1
[ -z "$SANITIZE" ] || export HWLOC_PLUGINS_BLACKLIST=hwloc_pci.so # leaks a little

# says N FORM CODE PATTERN CASE [VARIABLE=VALUE…]
says() {
  local n=$1 form=$2 code=$3 pattern=$4 case=$5
  shift 5
  expect "$code" env TESSERA_COMM=$([ "$n" = 1 ] && echo self || echo nccl) "$@" \
    "$TESSERA" run -n "$n" -- "$BUILD/tests/support/misuse" "$case" "$form"
  [ -z "$pattern" ] || grep -Eq -- "$pattern" err || fail "$case on $n GPUs, $form: no '$pattern' in: $(cat out err)"
}
for n in 1 2; do
  for form in hooks blocks; do
    calls="tess_forward_end|tess_backward_end"
    [ $form = hooks ] || calls="forward|backward"
    says $n $form 0 "" nothing
    says $n $form 3 "($calls) of scope \"b\": the program wrote to parameter \"b.weight\", which is read-only" write_param
    says $n $form 3 "gradient of \"c.weight\" was written after ($calls) of scope \"c\"" grad_after_end
    says $n $form 3 "gradient of \"a.weight\" was written after ($calls) of scope \"a\"" grad_after_end_last
    says $n $form 3 "a pointer was used after its end" use_after_end
    says $n $form 3 "gradient of \"a.weight\" holds the NaN .* a pointer was used after its end" use_after_end_last
    says $n $form 3 "($calls) of scope \"c\": the program wrote past the end of the gradient of \"c.bias\"" small_bias
  done
done
# A GPU with room for the plan alone.
says 1 hooks 0 'warning: TESSERA_STRICT=1 does not watch pointers, as the copies that it hands out find no room: device cuda: ' \
  write_param TESSERA_DEVICE_MEMORY=4MiB # two arenas of 2 MiB
nothing_left
echo "pointers into a GPU's memory are watched"
