#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Every call to the disk of a run that saves after each of three steps goes wrong once, in every way: cut short, a full disk, an
# error, a kill before it and in the middle of it. The run goes on or says so in one line; then the newest checkpoint
# verifies, the next run goes on to the digest of an undisturbed one, and nothing is left over.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
[ -z "${SANITIZE:-}" ] || { echo "skipped: a sanitizer's library must come first"; exit 77; }
shim="$BUILD/tests/support/disk_faults.so"
linear="linear --steps 3 --quiet"
save="--save $PWD/run --save-every 1 --checkpoint sync"
faulty() { env LD_PRELOAD="$shim" DISK_FAULT_DIR="$PWD/run" "$@"; }
expect 0 "$TESSERA" train $linear --json=whole.json

rm -rf run
expect 0 faulty DISK_FAULT_LOG="$PWD/calls" "$TESSERA" train $linear $save
total=$(wc -l <calls)
[ "$total" -ge 15 ] && [ "$(sort -u calls | tr '\n' ' ')" = "fsync pwrite rename " ] || fail "the calls of three saves: $(sort calls | uniq -c)"
runs=0 gave_up=0
for fault in short full broken kill torn; do
  for ((at = 1; at <= total; at++)); do
    rm -rf run
    code=0
    faulty DISK_FAULT="$fault" DISK_FAULT_AT="$at" "$TESSERA" train $linear $save >out 2>err || code=$?
    case $fault:$code in
    kill:137 | torn:137 | *:0) ;;
    full:6 | broken:6) [ -s err ] || fail "$fault at $at: exit code 6 without a word" ;;
    *) fail "$fault at call $at ($(sed -n "${at}p" calls)): exit code $code, $(cat out err)" ;;
    esac
    case $fault in
    short) [ $code = 0 ] && [ ! -s err ] || fail "short at $at: exit code $code, $(cat err)" ;;
    full | broken)
      grep -q "no checkpoint: " err || fail "$fault at $at: $(cat err)"
      gave_up=$((gave_up + 1))
      ;;
    esac
    if [ "$(ls run | grep -c step)" != 0 ] && "$TESSERA" ckpt list run 2>/dev/null | grep -q step; then
      newest=$("$TESSERA" ckpt list run --json | sed -E 's/.*"path":"([^"]*)".*/\1/' | tail -n 1)
      expect 0 "$TESSERA" ckpt verify "$newest" --quiet
      expect 0 "$TESSERA" train $linear $save --resume run --json=again.json
    else
      expect 0 "$TESSERA" train $linear $save --json=again.json
    fi
    [ "$(digest again.json)" = "$(digest whole.json)" ] || fail "$fault at call $at: another digest after going on"
    [ "$(find run -name '*.tmp' | wc -l)" = 0 ] || fail "$fault at call $at: left over: $(find run)"
    for step in run/step-*; do [ -e "$step/manifest.json" ] || fail "$fault at call $at: $step has no manifest"; done
    runs=$((runs + 1))
  done
done
# An exported folder gets no name that a crash could leave without its data.
rm -f calls
expect 0 env LD_PRELOAD="$shim" DISK_FAULT_DIR="$PWD/folder" DISK_FAULT_LOG="$PWD/calls" "$TESSERA" ckpt export run "$PWD/folder" --quiet
awk '$1 == "rename" { n++; bad += before != "fsync" } { before = $1 } END { exit !n || bad }' calls || fail "an export: $(cat calls)"
echo "$runs runs: $total calls, 5 faults each; $gave_up saves given up, 0 lost"
