#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# Parameters, gradients and states rest in files, and a rank is killed between two of its reads or writes, or its disk fails there. With
# images another process takes its place; with checkpoints all ranks start again. The end is that of a run which nothing disturbed.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/e2e/faulty_disk.sh"
gpt="gpt $(brief_text) -n 3 --layers 2 --heads 2 --width 32 --context 16 --batch 1 --threads 1 --steps 12 --optimizer adamw --quiet --deterministic"
disk="--offload disk:files,all,io=threads"
field() { summary "$1" run.json | tail -n 1; }
undisturbed() { # OPTION…: sets what is wanted, and the calls of rank 1 to the disk
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" train $gpt "$@" --json=run.json
  want=$(field params_digest)
  for of in pread pwrite; do
    rm -f calls
    # shellcheck disable=SC2086
    expect 0 faulty DISK_FAULT_OF=$of DISK_FAULT_RANK=1 DISK_FAULT_LOG="$PWD/calls" "$TESSERA" train $gpt "$@" $disk --json=run.json
    [ "$(field params_digest)" = "$want" ] || fail "$*: $(field params_digest) on the disk, $want without"
    printf -v "$of" '%s' "$(wc -l < calls)"
  done
  [ "$pread" -ge 48 ] && [ "$pwrite" -ge 48 ] || fail "$*: $pread reads and $pwrite writes in 12 steps"
}
goes_on() { # HOW FAULT OF AT OPTION…: HOW is what the summary counts
  case="${*:5}: $2 at call $4 of $3"
  rm -rf once run.json save
  # shellcheck disable=SC2086
  expect 0 faulty DISK_FAULT="$2" DISK_FAULT_OF="$3" DISK_FAULT_AT="$4" DISK_FAULT_RANK=1 DISK_FAULT_ONCE="$PWD/once" "$TESSERA" train $gpt $disk "${@:5}" --json=run.json
  [ -e once ] && [ "$(field "$1")" = 1 ] || fail "$case: $(field "$1") $1: $(cat err)"
  [ "$(field params_digest)" = "$want" ] || fail "$case: another digest: $(cat err)"
  for domain in device host disk; do
    [ "$(field peak_${domain}_bytes)" = "$(field planned_peak_${domain}_bytes)" ] ||
      fail "$case: $domain: $(field peak_${domain}_bytes), planned $(field planned_peak_${domain}_bytes)"
  done
  [ -z "$(ls -A files)" ] || fail "$case: files are left: $(ls -A files)"
}
undisturbed --clip 0.5
goes_on recoveries kill pread $((pread / 2)) --clip 0.5 --mirror 2
goes_on recoveries broken pwrite $((pwrite / 2)) --clip 0.5 --mirror 2
grep -Eq "the file of rank 1 in files, offset [0-9]+: writing: Input/output error: rank 1 ends, and the others go on from images" err || fail "$case: $(cat err)"
goes_on restarts kill pwrite $((pwrite * 3 / 4)) --clip 0.5 --save save --save-every 4 --restarts 2
undisturbed --clip 0
goes_on recoveries kill pwrite $((pwrite / 2)) --clip 0 --mirror 2
undisturbed --accum 3
goes_on recoveries broken pread $((pread / 2)) --accum 3 --mirror 2
goes_on recoveries kill pwrite $((pwrite / 2)) --accum 3 --mirror 2
nothing_left
