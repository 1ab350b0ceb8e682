#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 400
# processors: 2
# `bench --machine` writes what `plan --machine` reads: numbers above 0, and a time of a step.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer's speeds are not the machine's"; exit 77; }
export TESSERA_LOG=error
expect 0 "$TESSERA" bench --machine="$PWD/here.json" --quiet
for field in cores memory_bytes_per_second copy_bytes_per_second sum_bytes_per_second optimizer_bytes_per_second \
  norm_bytes_per_second kernel_seconds host_bytes_per_second; do
  value=$(sed -n "s/.*\"$field\":\([0-9.e+-]*\).*/\1/p" here.json)
  awk "BEGIN { exit !($value + 0 > 0) }" || fail "$field is '$value': $(cat here.json)"
done
# Of collectives those that steps post, over each comm plugin that has them.
for op in all_gather reduce_scatter all_reduce all_to_all all_to_all_v; do
  grep -q "\"op\":\"$op\"" here.json || [ ! -e "$BUILD/plugins/libtessera-comm-shm.so" ] || fail "no $op: $(cat here.json)"
done
expect 0 "$TESSERA" plan mnist -n 2 --machine "$PWD/here.json" --json --quiet
grep -Eq '"step_seconds":[0-9.]*[1-9]|"seconds":[0-9.e-]*[1-9]' out || fail "no time of a step: $(tail -n 3 out | cut -c 1-600)"
sed 's/"cores":[0-9]*/"cores":"two"/' here.json >wrong.json
expect 6 "$TESSERA" plan mnist -n 2 --machine "$PWD/wrong.json"
grep -q 'wrong.json: offset [0-9]*: expected a number' err || fail "wrong cores: $(cat err)"
