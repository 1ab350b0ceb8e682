#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 400
# A run that goes back behind newer steps stays there: it is refused, or moves them aside, and whenever it dies it goes on with
# its own steps, to the digest of a run that nothing happened to. The same for a new run in a used directory.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
linear="linear --quiet --steps 5"
train() { expect 0 "$TESSERA" train $linear "$@"; }
used() { rm -rf run && cp -r kept run; }
refuse() { # refuse PATTERN COMMAND…
  expect 6 "${@:2}"
  [ "$(grep -c 'error: ' err)" = 1 ] && grep -Eq -- "error: $1" err || fail "no line '$1' of: ${*:2}: $(cat err)"
}
train --save kept --save-every 1 --keep 0 --json=first.json --steps 4
[ "$(ls kept | wc -l)" = 4 ] || fail "saved: $(ls kept)"
used
train --resume run/step-000002 --lr 0.003 --json=whole.json
[ "$(digest first.json)" != "$(digest whole.json)" ] || fail "another learning rate changes nothing"

# Refused before the first step, on every rank, and nothing is changed.
for ranks in 1 2; do
  refuse 'run: step 4 and 1 other there would be left behind: .*--on-newer aside' \
    "$TESSERA" train $linear -n $ranks --resume run/step-000002 --save run --json=refused.json
  ! grep -q '"event":"step"' refused.json || fail "it trained"
  refuse 'run: step 4 and 3 others there would be left behind: go on from the directory itself' "$TESSERA" train $linear -n $ranks --save run
done
diff -r kept run || fail "a refusal changed the directory"

# dies_once CALL COMMAND…: the process is killed before its CALL-th call to the disk, in its first life only; $died: how often.
shim="$BUILD/tests/support/disk_faults.so"
dies_once() {
  local at=$1
  shift
  expect 0 "$TESSERA" run -n 1 --bind none --restarts 3 -- sh -c \
    'if [ "${TESSERA_RESTART:-0}" = 0 ]; then export LD_PRELOAD=$0 DISK_FAULT=kill DISK_FAULT_AT=$1 DISK_FAULT_DIR=$2; fi; shift 2; exec "$@"' \
    "$shim" "$at" "$PWD/run" "$@"
  died=$(grep -c 'ranks were lost: restart' err) || true
}
# rolled_back NAME: it ended as an undisturbed one, and everything is whole where it should be.
rolled_back() {
  [ "$(digest again.json)" = "$(digest whole.json)" ] || fail "$1: it went on with what it had left behind: $(cat err)"
  find run -name 'step-*' | xargs -n 64 "$TESSERA" ckpt verify --quiet || fail "$1: $(find run)"
  [ "$(find run/aside-* -name 'step-*' | wc -l)" = 2 ] || fail "$1: aside: $(find run)"
}
back="--resume run/step-000002 --save $PWD/run --save-every 1 --keep 0 --lr 0.003 --on-newer aside --json=again.json"
if [ -z "${SANITIZE:-}" ]; then
  killed=0
  for ((at = 1; ; at++)); do
    used
    dies_once $at "$TESSERA" train $linear $back
    rolled_back "killed at call $at"
    [ "$died" = 1 ] || break
    killed=$((killed + 1))
  done
  [ $killed -ge 12 ] || fail "$killed calls to the disk were all"
else
  used
  train $back
  rolled_back "with a sanitizer"
fi

train --resume run --json=again.json
[ "$(digest again.json)" = "$(digest whole.json)" ] || fail "--resume run goes on with what was left behind"
"$TESSERA" ckpt list run >list
[ "$(grep -Ec 'step-00000[345] .* lineage [0-9a-f]{8} from [0-9a-f]{8} after step 2$' list)" = 3 ] || fail "the last one's lineage: $(cat list)"

# A new run in the same directory, with what it leaves behind aside; no step of it is pruned.
used
TESSERA_ON_NEWER=aside train --save run --keep 1 --steps 2 --json=again.json
[ "$(ls run)" = "$(printf 'aside-1\nstep-000002')" ] && diff -r kept run/aside-1 || fail "a new run: $(find run)"
train --save run --keep 1 --resume run --steps 3
[ "$(ls run)" = "$(printf 'aside-1\nstep-000003')" ] || fail "gone on with: $(find run)"

# Steps of the other lineage that somebody puts back do not count, whatever their number, nor does pruning touch them.
mv run/aside-1/step-000004 run
expect 0 "$TESSERA" ckpt prune run --keep 1
[ "$(ls run)" = "$(printf 'aside-1\nstep-000003\nstep-000004')" ] || fail "pruned: $(find run)"
"$TESSERA" train linear --steps 4 --resume run >out 2>&1 || fail "$(cat out)"
grep -q 'going on after step 3 of 4' out || fail "resumed: $(cat out)"
refuse 'run: step 4 there would be left behind' "$TESSERA" train $linear --resume run --save run

# Checkpoints of before there were lineages are all one: a run goes on with them, or goes back.
used
for manifest in run/*/manifest.json; do
  sed -i -E 's/"version":2/"version":1/; /^"(order|lineage)":/d; s/^("xxh128_of_all_above":").{32}/\100000000000000000000000000000000/' "$manifest"
done
expect 0 "$TESSERA" ckpt verify run
"$TESSERA" ckpt list run >list
! grep -q lineage list || fail "old ones have a lineage: $(cat list)"
refuse 'run: step 4 and 1 other there' "$TESSERA" train $linear --resume run/step-000002 --save run
train --resume run --save run --keep 2
[ "$(ls run)" = "$(printf 'step-000004\nstep-000005')" ] || fail "old and new: $(ls run)"
train --resume run --json=again.json

# A folder that was given another step's name is found, is not gone on with, and is not written over.
used
mv run/step-000003 run/step-000005
expect 1 "$TESSERA" ckpt verify run/step-000005/
grep -q "renamed" err || fail "verify by its name: $(cat err)"
expect 1 "$TESSERA" ckpt verify run
grep -q 'run/step-000005: the folder has been renamed: its manifest is of step 3' err || fail "verify: $(cat err)"
refuse 'run/step-000005: the folder has been renamed' "$TESSERA" train $linear --resume run/step-000005
train --resume run --steps 4
grep -q 'renamed.*trying the checkpoint before' err || fail "resume: $(cat err)"
refuse 'run: step 5 there would be left behind' "$TESSERA" train $linear --resume run --save run

echo "refused, moved aside; ${killed:-no} deaths on the way back, 0 undone"
