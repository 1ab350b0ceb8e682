#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# More than optimizer states in files: parameters too, and beside them two offloads at once. The digest is that of a run without,
# and planned bytes are the measured ones. Advice, tune and the simulator count files.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/e2e/disk.sh"
# Parameters too: for their gathers, and stepped; whole ones and a part of them, frozen and copied ones.
with_params() {
  trains "$@"
  first=$digest device=$(field peak_device_bytes)
  trains --offload disk:files "$@"
  disk=$(field peak_disk_bytes)
  trains --offload disk:files,params,optimizer "$@"
  [ "$digest" = "$first" ] || fail "$*: $digest with parameters on the disk, $first without"
  [ "$(field peak_disk_bytes)" -gt "$disk" ] && [ "$(field peak_device_bytes)" -le "$device" ] || fail "parameters take nothing of the disk: $*: $line"
  trains --offload disk:files,params,fraction=0.5+cpu:grads "$@"
  [ "$digest" = "$first" ] && [ "$(field peak_disk_bytes)" -gt 0 ] || fail "$*: parameters alone, in part: $line"
}
with_params
with_params --clip 0.5 --activations offload
with_params -n 2 --prefetch 0
with_params -n 2 --prefetch 2 --strategy grad_op --accum 2
with_params -n 4 --strategy hybrid:2 --activations recompute
with_params -n 2 --strategy none --optimizer sgd --momentum 0.9
with_params -n 3 --accum 2 --sync end
with_params -n 2 --optimizer sgd
with_params -n 2 --precision bf16 --low-copy
with_params -n 2 --freeze 'h.1.*' --ledger ledger.jsonl --at-rest-digests

# Two offloads at once: states in files, parameters and gradients in host memory. Of each domain no more is taken than by one alone,
# but for what is staged.
both() {
  trains "$@"
  first=$digest alone=$(field peak_device_bytes)
  trains --offload disk:files "$@"
  disk=$(field peak_disk_bytes)
  for what in params params,grads,fraction=0.5; do
    trains --offload "disk:files,verify=0+cpu:$what" "$@"
    [ "$digest" = "$first" ] || fail "$*: $digest with cpu:$what, $first without"
    [ "$(field peak_disk_bytes)" = "$disk" ] && [ "$(field peak_device_bytes)" -lt "$alone" ] || fail "cpu:$what $*: $line"
  done
}
both -n 2 --strategy grad_op --clip 0.5
both -n 2 --strategy none --accum 2
both -n 4 --strategy hybrid:2 --activations recompute
both -n 4 --strategy hybrid_grad_op:2 --accum 2 --sync end
both --activations offload --prefetch 0
trains -n 2
first=$digest
trains -n 2 --offload cpu:params+disk:files,fraction=0.5
[ "$digest" = "$first" ] && [ "$(field peak_disk_bytes)" -gt 0 ] || fail "the other way round: $line"
(
  export TESSERA_OFFLOAD_DISK_DIR=files TESSERA_OFFLOAD_DISK_WHAT=params,optimizer
  trains -n 2 --offload disk
  by_variable=$(field peak_disk_bytes)
  trains -n 2 --offload disk:files,params,optimizer
  [ "$digest" = "$first" ] && [ "$(field peak_disk_bytes)" = "$by_variable" ] || fail "by variables: $by_variable bytes, $line"
) || exit 1
mkdir -p 'a+b'
trains -n 2 --offload 'disk:a+b/'
[ "$digest" = "$first" ] || fail "a folder with a plus: $line"
for optimizer in adamw8bit lion muon; do
  [ ! -e "$BUILD/plugins/libtessera-optimizer-$optimizer.so" ] || with_params -n 2 --optimizer $optimizer --lr 0.01
done
one_of_two() { # CODE LINE SELECTION
  # shellcheck disable=SC2086
  expect "$1" "$TESSERA" train $gpt --quiet --offload "$3"
  grep -q -- "$2" err && [ "$(wc -l < err)" = 1 ] || fail "$3: $(cat err)"
}
one_of_two 3 'offload disk and disk have a store each, and a rank has one' disk:files+disk:files
one_of_two 3 "offload plugin 'ram' not found" disk:files+ram:params

# Advice and tune look at the disk's budget. States that are in files leave the device for host memory; more ranks leave less for a disk.
small="gpt --data text --layers 3 --width 72 --heads 2 --context 16 --batch 2 --optimizer adamw"
# shellcheck disable=SC2086
expect 0 "$TESSERA" plan $small --offload disk:files --quiet --json=plan
of_plan() { sed -n 's/.*"event":"plan".*"'"$1"'":\([0-9]*\).*/\1/p' plan | tail -n 1; }
device=$(of_plan planned_peak_device_bytes) disk=$(of_plan planned_peak_disk_bytes)
# shellcheck disable=SC2086
expect 4 "$TESSERA" train $small --steps 1 --quiet --offload disk:files --device-memory $((device * 9 / 10)) --disk-memory "$disk"
grep -Eq 'With TESSERA_OFFLOAD=disk:files\+cpu: [0-9.]+ MiB and [0-9.]+ [KM]iB of host memory and [0-9.]+ [KM]iB of disk' err || fail "advice: $(cat err)"
# shellcheck disable=SC2086
expect 4 "$TESSERA" train $small --steps 1 --quiet --offload disk:files --disk-memory $((disk * 6 / 10))
grep -q "of disk per rank and TESSERA_DISK_MEMORY allows .* With -n 2: .* of disk" err || fail "advice on the disk: $(cat err)"
# shellcheck disable=SC2086
expect 4 "$TESSERA" plan $small --offload disk:files --disk-memory $((disk * 6 / 10)) --json=plan
grep -q '"remedies":\[{"options":{"ranks":"2"},"planned_peak_device_bytes":[0-9]*,"planned_peak_host_bytes":[0-9]*,"planned_peak_disk_bytes":[1-9]' plan ||
  fail "remedies: $(tail -n 1 plan)"
candidates() { grep '"event":"candidate"' out | grep -c "$1"; }
# shellcheck disable=SC2086
expect 0 "$TESSERA" tune $small --json --quiet
[ "$(candidates '"offload":"disk')" = 0 ] || fail "files without a folder: $(grep disk out)"
export TESSERA_OFFLOAD_DISK_DIR=$PWD/files
# shellcheck disable=SC2086
expect 0 "$TESSERA" tune $small --json --quiet --device-memory $((device * 9 / 10)) --wrap scopes --precision fp32 --activations keep
[ "$(candidates '"offload":"disk[^}]*"fits":true')" -gt 0 ] || fail "nothing in files: $(cat out)"
# shellcheck disable=SC2086
expect 0 "$TESSERA" tune $small --json --quiet --disk-memory $((disk / 2)) --wrap scopes --precision fp32 --activations keep
[ "$(candidates '"offload":"disk[^}]*"fits":true')" = 0 ] && [ "$(candidates '"offload":"disk[^}]*"fits":false')" -gt 0 ] ||
  fail "more than the disk's budget: $(cat out)"
# shellcheck disable=SC2086
expect 4 "$TESSERA" tune $small --quiet --offload disk --disk-memory 4096 --wrap scopes --precision fp32
grep -Eq "none of [0-9]+ plans fits: .* and [1-9][0-9]* of disk .*; 4096 of disk are allowed" err || fail "tune: $(cat err)"
unset TESSERA_OFFLOAD_DISK_DIR

# The simulator prices it: a disk of half the speed takes twice the time, which a step of nothing else waits for.
machine() { echo '{"name":"x","device":"cpu","memory_bytes_per_second":1e30,"flops_per_second":{"f32":1e30},"disk_bytes_per_second":'"$1"'}' > "$1.json"; }
seconds() {
  machine "$1"
  # shellcheck disable=SC2086
  "$TESSERA" plan $small --offload "$2" --machine "./$1.json" --json --quiet > out 2> err || fail "plan: $(cat err)"
  sed -n 's/.*"event":"plan".*"seconds":\([0-9.e+-]*\).*/\1/p' out
}
slow=$(seconds 1e6 disk:files) quick=$(seconds 2e6 disk:files) both=$(seconds 2e6 disk:files+cpu:params)
awk -v disk="$disk" -v slow="$slow" -v quick="$quick" -v both="$both" 'BEGIN { exit !(slow > 2 * disk / 1e6 * 0.97 && slow < 2 * disk / 1e6 * 1.01 &&
  slow > quick * 1.99 && slow < quick * 2.01 && both > quick * 0.99 && both < quick * 1.01) }' ||
  fail "simulated: $slow s, $quick s with twice the speed, $both s with parameters in host memory; $disk bytes"
