#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# Gradients rest in files: between passes and their step, and between microbatches. They take of the disk what as many shards of a state do
# take; nothing where each unit is stepped within its pass.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/e2e/disk.sh"
with_grads() { # ARRAYS OPTION…: as many shards of gradients rest there
  arrays=$1
  shift
  trains "$@"
  first=$digest
  trains --offload disk:files "$@"
  states=$(field peak_disk_bytes)
  for what in grads,optimizer grads,optimizer+cpu:params all; do
    trains --offload "disk:files,$what" "$@"
    [ "$digest" = "$first" ] || fail "$*: $digest with $what on the disk, $first without"
    [ "$what" = all ] || [ $((2 * $(field peak_disk_bytes))) = $(((2 + arrays) * states)) ] ||
      fail "$*, $what: $(field peak_disk_bytes) bytes, $states of two states and not $arrays more of gradients"
  done
  trains --offload disk:files,fraction=0.5,grads,verify=0 "$@"
  [ "$digest" = "$first" ] || fail "$*: gradients alone, in part: $line"
}
with_grads 1 --clip 0.5
with_grads 0 --clip 0
with_grads 1 -n 2 --accum 2
with_grads 1 -n 2 --accum 3 --prefetch 0 --strategy grad_op
with_grads 3 -n 2 --accum 5 --deterministic --clip 0.5
with_grads 1 -n 4 --accum 4 --sync end --strategy hybrid:2 --activations recompute
with_grads 1 -n 3 --strategy none --clip 0.5 --ledger other.jsonl --at-rest-digests
with_grads 1 -n 2 --precision bf16 --low-copy --prefetch 2
if [ -e "$BUILD/plugins/libtessera-optimizer-muon.so" ]; then
  trains -n 2 --optimizer muon --lr 0.01 --accum 2
  first=$digest
  trains -n 2 --optimizer muon --lr 0.01 --accum 2 --offload disk:files,all
  [ "$digest" = "$first" ] || fail "muon: $digest, not $first"
fi
rm -rf save
trains -n 2 --accum 2
first=$digest
trains -n 2 --accum 2 --offload disk:files,all --save save --save-every 2 --mirror 1
[ "$digest" = "$first" ] || fail "saved: $digest, not $first"
trains -n 2 --accum 2 --offload disk:files,all --resume save/step-000002
[ "$digest" = "$first" ] || fail "resumed: $digest, not $first"

# The simulator prices them: two microbatches write a sum and one reads it, then the step. So four shards move, as of two states.
machine='{"name":"x","device":"cpu","memory_bytes_per_second":1e30,"flops_per_second":{"f32":1e30},"disk_bytes_per_second":1e6}'
echo "$machine" > slow.json
seconds() {
  # shellcheck disable=SC2086
  "$TESSERA" plan $gpt --accum 2 --offload "$1" --machine ./slow.json --json --quiet > out 2> err || fail "plan: $(cat err)"
  sed -n 's/.*"event":"plan".*"seconds":\([0-9.e+-]*\).*/\1/p' out
}
states=$(seconds disk:files) grads=$(seconds disk:files,grads)
awk -v s="$states" -v g="$grads" 'BEGIN { exit !(g > 0.99 * s && g < 1.01 * s) }' || fail "simulated: $grads s of gradients, $states s of states"
