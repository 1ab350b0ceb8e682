#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# Reads and writes of what rests in files go wrong in the middle of a run, by threads and by io_uring: an error of the device, an end that
# comes too soon, a part at a time, slowness. Each ends in one line and exit code 6, or is survived to the digest of a run without. Checkpoints go
# on from there; with images another process takes the place of the rank, or the others go on.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/e2e/faulty_disk.sh"
gpt="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 1 --threads 1 --steps 40 --optimizer adamw --quiet --deterministic"
field() { summary "$1" "$2" | tail -n 1; }
digest() { summary params_digest "$1" | tail -n 1; }
none_left_there() { [ -z "$(ls -A files)" ] || fail "$case: files are left: $(ls -A files)"; }
calls() { # shellcheck disable=SC2086
  rm -f calls
  expect 0 faulty DISK_FAULT_OF="$1" DISK_FAULT_LOG="$PWD/calls" "$TESSERA" train $gpt $disk --json=run.json
  [ "$(digest run.json)" = "$want" ] || fail "undisturbed: another digest"
  wc -l < calls
}

# An error, and an end that comes too soon: at the first call, in the middle, and at the last but one.
ends_with() { # WORDS OF AT FAULT
  case="$4 at call $3 of $2"
  # shellcheck disable=SC2086
  expect 6 faulty DISK_FAULT="$4" DISK_FAULT_AT="$3" DISK_FAULT_OF="$2" "$TESSERA" train $gpt $disk
  one=$(cat err)
  [ "$(wc -l < err)" = 1 ] || fail "$case: not one line: $one"
  echo "$one" | grep -Eq "offload disk: the file of rank 0 in files, offset [0-9]+: $1" || fail "$case: $one"
  none_left_there
}

# Parts at a time, and a slow disk, are survived. The other rank waits for a slow one, and does not take it for lost.
survives() { # CASE RANKS FAULT…
  case=$1
  # shellcheck disable=SC2086
  expect 0 faulty "${@:3}" "$TESSERA" train $gpt -n "$2" $disk --json=run.json
  [ "$(digest run.json)" = "$want" ] || fail "$case: another digest"
  [ ! -s err ] || fail "$case: $(cat err)"
  none_left_there
}
goes_wrong() { # READ WRITE: the calls
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" train $gpt --json=whole.json
  want=$(digest whole.json)
  reads=$(calls "$1") writes=$(calls "$2")
  [ "$reads" -ge 40 ] && [ "$writes" -ge 40 ] || fail "$reads of $1 and $writes of $2 in 40 steps"
  for at in 1 $((reads / 2)) $((reads - 1)); do
    ends_with 'reading: Input/output error' "$1" $at broken
    ends_with 'reading: the file ends here: it was cut' "$1" $at end
  done
  for at in 1 $((writes / 2)) $((writes - 1)); do
    ends_with 'writing: Input/output error' "$2" $at broken
    ends_with 'writing: No space left on device' "$2" $at full
  done
  for of in "$1" "$2"; do
    survives "short $of" 1 DISK_FAULT=short DISK_FAULT_AT=$((reads / 2)) DISK_FAULT_OF="$of"
  done
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" train $gpt -n 2 --json=whole.json
  want=$(digest whole.json)
  survives "slow disk" 2 DISK_FAULT=slow DISK_FAULT_MS=30 DISK_FAULT_OF="$1" DISK_FAULT_RANK=1
  took=$(grep '"event":"step"' run.json | wc -l)
  [ "$took" = 40 ] || fail "slow disk: $took steps"
}
# Requests of a step lie in registered memory. Only what is written before the first step does not. Where the system refuses that memory,
# one line of the log says so, and requests lie where they did.
memory_is_registered() {
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" train $gpt --json=whole.json
  want=$(digest whole.json)
  fixed=$(calls ring_fixed)
  [ "${fixed:-0}" -gt 0 ] && [ $((100 * fixed)) -ge $((98 * (reads + writes))) ] ||
    fail "$fixed of $reads reads and $writes writes are in registered memory"
  case="memory refused"
  rm -f calls
  # shellcheck disable=SC2086
  expect 0 faulty TESSERA_LOG=info DISK_FAULT=broken DISK_FAULT_AT=1 DISK_FAULT_OF=ring_register DISK_FAULT_LOG="$PWD/calls" "$TESSERA" train $gpt $disk --json=run.json
  [ "$(digest run.json)" = "$want" ] || fail "$case: another digest"
  [ "$(wc -l < calls)" = 1 ] && [ "$(grep -c 'is not registered with io_uring: Input/output error' err)" = 1 ] || fail "$case: $(cat err)"
  case="memory refused by its limit"
  limited=(bash -c 'ulimit -l 8 && exec "$@"' bash)
  [ "$(id -u)" != 0 ] || limited+=(setpriv --bounding-set=-ipc_lock --inh-caps=-ipc_lock) # the limit holds for others only
  # shellcheck disable=SC2086
  expect 0 env TESSERA_LOG=info "${limited[@]}" "$TESSERA" train $gpt $disk --json=run.json
  [ "$(digest run.json)" = "$want" ] || fail "$case: another digest"
  [ "$(grep -c 'is not registered with io_uring: Cannot allocate memory' err)" = 1 ] || fail "$case: $(cat err)"
}
disk="--offload disk:files,all,io=uring"
# shellcheck disable=SC2086
expect 0 env TESSERA_LOG=warning "$TESSERA" train $gpt --steps 1 $disk
if grep -q 'no io_uring here' err; then
  echo "without io_uring: $(cat err)" # a kernel or a container forbids it, or liburing is not there
else
  goes_wrong ring_read ring_write
  memory_is_registered
fi
disk="--offload disk:files,io=threads"
goes_wrong pread pwrite

# A rank of several says whose file it is, and a run goes on from its checkpoint.
case="error of rank 1"
rm -rf save
# shellcheck disable=SC2086
expect 6 faulty DISK_FAULT=broken DISK_FAULT_AT=$reads DISK_FAULT_OF=pread DISK_FAULT_RANK=1 "$TESSERA" train $gpt -n 2 $disk --save save --save-every 5
grep -Eq 'the file of rank 1 in files, offset [0-9]+: reading: Input/output error' err || fail "$case: $(cat err)"
[ -n "$(ls save)" ] || fail "$case: no checkpoint: $(cat err)"
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $gpt -n 2 $disk --save save --resume save --json=again.json
[ "$(digest again.json)" = "$want" ] || fail "$case: resumed, another digest"
none_left_there

# Nor is such a run tried again: the disk is the same. One line, one start.
case="no restart"
rm -rf save calls
# shellcheck disable=SC2086
expect 6 faulty DISK_FAULT=broken DISK_FAULT_AT=$reads DISK_FAULT_OF=pread DISK_FAULT_RANK=1 DISK_FAULT_ONCE="$PWD/once" "$TESSERA" train $gpt -n 2 $disk --save save --save-every 5 --restarts 3 --json=run.json
grep -q 'the file of rank 1 in files' err || fail "$case: $(cat err)"
! grep -qi 'restart' err && [ "$(grep -c '"event":"start"' run.json)" = 1 ] || fail "$case: it was tried again: $(cat err)"
rm -f once

# With images a rank whose disk fails is replaced; or the others go on without it. Their files are their own.
recovers() { # FAULTS COMMAND…
  rm -f once run.json
  # shellcheck disable=SC2086
  expect 0 faulty DISK_FAULT=broken DISK_FAULT_AT=$reads DISK_FAULT_OF="$1" DISK_FAULT_RANK="$2" DISK_FAULT_ONCE="$PWD/once" "${@:3}" --json=run.json
  [ -e once ] && [ "$(field recoveries run.json)" = 1 ] || fail "$case: $(field recoveries run.json) recoveries: $(cat err)"
  grep -Eq "the file of rank $2 in files, offset [0-9]+: [a-z]+: Input/output error: rank $2 ends, and the others go on from images" err || fail "$case: $(cat err)"
  [ "$(digest run.json)" = "$want" ] || fail "$case: another digest: $(cat err)"
  for domain in device host disk; do
    [ "$(field peak_${domain}_bytes run.json)" = "$(field planned_peak_${domain}_bytes run.json)" ] ||
      fail "$case: $domain: $(field peak_${domain}_bytes run.json), planned $(field planned_peak_${domain}_bytes run.json)"
  done
  none_left_there
}
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $gpt -n 4 --json=whole.json
want=$(digest whole.json)
case="replaced, reading"
# shellcheck disable=SC2086
recovers pread 1 "$TESSERA" train $gpt -n 4 $disk --mirror 3
case="replaced, writing; parameters in host memory"
# shellcheck disable=SC2086
recovers pwrite 2 "$TESSERA" train $gpt -n 4 $disk+cpu:params --mirror 3
case="fewer ranks"
# shellcheck disable=SC2086
recovers pread 3 env TESSERA_MIRROR=3 "$TESSERA" run --ranks 1:4 --replacements 0 -- "$TESSERA" train $gpt $disk
[ "$(field ranks run.json)" = 2 ] || fail "$case: $(field ranks run.json) ranks at the end"
case="rank 0"
# shellcheck disable=SC2086
recovers pread 0 "$TESSERA" train $gpt -n 4 $disk --mirror 3
nothing_left
