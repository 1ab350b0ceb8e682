#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# Optimizer states that rest in files: the digest is that of a run without, whatever else is combined. Planned bytes are the
# measured ones in all three domains, and no step allocates. Faults of the disk end in one line and their exit code.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/e2e/disk.sh"
same() {
  trains "${without[@]}" "$@"
  first=$digest
  [ "$(field peak_disk_bytes)" = 0 ] || fail "a run without takes of the disk: $*: $line"
  trains --offload disk:files "${without[@]}" "$@"
  [ "$digest" = "$first" ] || fail "$*: $digest on the disk, $first without"
  [ "$(field peak_disk_bytes)" -gt 0 ] || fail "nothing rests on the disk: $*: $line"
  [ -z "$(ls -A files)" ] || fail "$*: files are left: $(ls -A files)"
}
without=()
same
same --clip 0.5
same -n 2 --activations recompute
same -n 4 --strategy hybrid:2 --accum 2
same -n 2 --accum 2 --sync end --clip 0.5
same -n 2 --wrap none --strategy grad_op
same -n 3 --prefetch 0
same -n 2 --prefetch 2 --optimizer sgd --momentum 0.9
same --activations offload

# Whoever reads and writes: io_uring, threads, threads where a container forbids io_uring. One line says so.
trains
first=$digest
for io in threads auto,depth=1 auto,depth=256; do
  trains --offload "disk:files,io=$io"
  [ "$digest" = "$first" ] || fail "io=$io: $digest, not $first"
done
(
  export TESSERA_OFFLOAD_DISK_DIR=files TESSERA_OFFLOAD_DISK_VERIFY=0 TESSERA_OFFLOAD_DISK_FRACTION=0.5
  export TESSERA_OFFLOAD_DISK_IO=threads TESSERA_OFFLOAD_DISK_THREADS=2 TESSERA_OFFLOAD_DISK_DEPTH=3
  trains --offload disk
  [ "$digest" = "$first" ] || fail "by variables: $digest, not $first"
  part=$(field peak_disk_bytes)
  trains --offload disk:fraction=1
  [ "$part" -gt 0 ] && [ "$(field peak_disk_bytes)" -gt "$part" ] || fail "half of the units take $part bytes: $line"
) || exit 1
without_uring=$BUILD/tests/support/without_uring
if "$without_uring" true 2> /dev/null; then
  # shellcheck disable=SC2086
  expect 0 env TESSERA_LOG=warning "$without_uring" "$TESSERA" train $gpt -n 2 --quiet --json --offload disk:files,io=uring
  [ "$(grep -c 'no io_uring here ([A-Z].*): 4 threads of a rank read and write' err)" = 1 ] || fail "io_uring forbidden: $(cat err)"
fi

# Optimizers with states of other shapes; ones that rest in part.
for optimizer in adamw8bit lion muon; do
  [ -e "$BUILD/plugins/libtessera-optimizer-$optimizer.so" ] || continue
  same -n 2 --optimizer $optimizer --lr 0.01
  same --optimizer $optimizer --lr 0.01 --clip 0.5 --prefetch 0
done
trains -n 2
first=$digest
trains -n 2 --offload disk:files,fraction=0.5,verify=0
[ "$digest" = "$first" ] || fail "with a part on the disk the digest is $digest, not $first"

# Checkpoints, of both kinds, go from one to the other; digests of a ledger are those of a run without.
for how in async sync; do
  rm -rf save
  TESSERA_CHECKPOINT=$how trains -n 2 --offload disk:files --save save --save-every 2
  [ "$digest" = "$first" ] || fail "$how: $digest, not $first"
  rm -rf save
  TESSERA_CHECKPOINT=$how trains -n 2 --offload disk:files,params,optimizer --save save --save-every 2
  [ "$digest" = "$first" ] || fail "$how: $digest with parameters, not $first"
  trains -n 2 --resume save/step-000002
  [ "$digest" = "$first" ] || fail "$how: resumed without, $digest, not $first"
  trains -n 2 --resume save/step-000002 --offload disk:files,params,optimizer
  [ "$digest" = "$first" ] || fail "$how: resumed on the disk, $digest, not $first"
done
trains -n 2 --ledger with.jsonl --offload disk:files --at-rest-digests
trains -n 2 --ledger without.jsonl
digests() { grep -o '"root":"[0-9a-f]*","digests":[^]]*' "$1"; }
[ "$(digests with.jsonl | wc -l)" = 3 ] && [ "$(digests with.jsonl)" = "$(digests without.jsonl)" ] ||
  fail "ledgers differ: $(diff with.jsonl without.jsonl | head -n 4)"

# Refused in one line, before anything is trained.
refused() {
  local code=$1 line=$2
  shift 2
  # shellcheck disable=SC2086
  expect "$code" "$TESSERA" train $gpt --quiet "$@"
  grep -q -- "$line" err || fail "no '$line' in: $(cat err)"
  [ "$(wc -l < err)" = 1 ] || fail "not one line: $(cat err)"
  [ -z "$(ls -A files)" ] || fail "files are left: $(ls -A files)"
}
refused 3 'no folder is given for its files: TESSERA_OFFLOAD=disk:DIR' --offload disk
refused 3 'none: no file can be made there for rank 0: No such file' --offload disk:none
refused 3 'verify is "often", expected' --offload disk:files,verify=often
refused 3 '"fast" is no setting' --offload disk:files,fast
trains --offload disk:files
disk=$(field peak_disk_bytes)
trains --offload disk:files --disk-memory "$disk"
refused 4 "bytes of disk per rank and TESSERA_DISK_MEMORY allows $((disk - 1))" --offload disk:files --disk-memory $((disk - 1))

# shellcheck disable=SC2086
expect 4 "$TESSERA" plan $gpt --offload disk:files --disk-memory 4096
grep -q 'of disk are allowed' out || fail "the plan does not speak of the disk: $(cat out)"
! grep -q 'planned fit:' out || fail "changes of memory are listed for the disk: $(tail -n 5 out)"

# Faults beside a run: its file is cut, or a byte of it is another, from outside; it is killed.
large="gpt --data text --layers 3 --width 72 --heads 2 --context 16 --batch 2 --optimizer adamw --steps 100000 --quiet --offload disk:files"
# shellcheck disable=SC2010
store_of() { ls -l "/proc/$1/fd" 2> /dev/null | grep "$PWD/files" | sed 's/.* \([0-9]*\) -> .*/\1/' | head -n 1; }
begun() { fd=$(store_of "$pid") && [ -n "$fd" ] && [ "$(wc -l < json)" -ge 3 ]; }
starts() {
  # shellcheck disable=SC2086
  "$TESSERA" train $large --json=json "$@" > out 2> err &
  pid=$!
  within 60 begun || fail "nothing is trained: $(cat err)"
}
gone() { ! kill -0 "$pid" 2> /dev/null; }
ends() {
  local got=0
  within 30 gone || { kill -9 "$pid"; fail "goes on as if nothing were wrong, and is to end with $1"; }
  wait "$pid" || got=$?
  [ "$got" = "$1" ] || fail "exit code $got, expected $1: $(cat err)"
  [ -z "$(ls -A files)" ] || fail "files are left: $(ls -A files)"
}
rm -f json
starts
truncate -s 4096 "/proc/$pid/fd/$fd"
ends 6
grep -Eq 'the file of rank 0 in files, offset [0-9]+: (reading: the file ends here|what is read there is not)' err || fail "cut: $(cat err)"
[ "$(wc -l < err)" = 1 ] || fail "cut, not one line: $(cat err)"
rm -f json
starts
for ((at = 0; at < disk; at += 4096)); do printf 'X' | dd of="/proc/$pid/fd/$fd" bs=1 seek=$at conv=notrunc status=none || break; done 2> /dev/null
ends 6
grep -q 'what is read there is not what was written' err || fail "another byte: $(cat err)"
rm -f json
starts
kill -9 "$pid"
ends 137

# A disk that is full is an error before training.
if unshare -rm sh -c 'mount -t tmpfs -o size=256k none files' 2> /dev/null; then
  # shellcheck disable=SC2086
  expect 4 unshare -rm sh -c 'mount -t tmpfs -o size=256k none files && exec "$@"' sh "$TESSERA" train $gpt --quiet --offload disk:files
  grep -q 'files has no room for the [0-9]* bytes of rank 0: No space left on device' err || fail "full: $(cat err)"
  trains
  first=$digest
  # shellcheck disable=SC2086
  expect 0 unshare -rm sh -c 'mount -t tmpfs -o size=64m none files && exec "$@"' sh env TESSERA_LOG=warning "$TESSERA" train $gpt --quiet --json --offload disk:files
  grep -q "\"params_digest\":\"$first\"" out || fail "on a tmpfs the digest is another: $(tail -n 1 out)"
fi
