#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# Optimizer states that are three times the host memory allowed rest in files, and the model trains: under a budget, and in a
# cgroup that kills whoever takes what they would take in memory. 64 ranks share one disk.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-offload-disk.so" ] || { echo "skip: offload-disk is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error
head -c 3000 "$SOURCE/README.md" >text # the evaluation at the end is short
mkdir -p files
field() { sed -n 's/.*"event":"'"$1"'".*"'"$2"'":"\{0,1\}\([^",}]*\).*/\1/p' "$3" | tail -n 1; }

# The plan alone says so, and a run obtains what was planned.
gpt="gpt --data text --layers 20 --width 128 --heads 2 --context 16 --batch 1 --optimizer adamw --steps 2"
# shellcheck disable=SC2086
expect 0 "$TESSERA" plan $gpt --offload disk:files --quiet --json=plan
disk=$(field plan planned_peak_disk_bytes plan)
[ "$disk" -ge $((20 * 12 * 128 * 128 * 8)) ] || fail "the states of 20 blocks take $disk bytes of the disk"
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $gpt --quiet --json --offload disk:files --host-memory $((disk / 3)) --disk-memory "$disk"
for domain in device host disk; do
  [ "$(field summary peak_${domain}_bytes out)" = "$(field plan planned_peak_${domain}_bytes plan)" ] || fail "$domain: $(tail -n 1 out)"
done
digest=$(field summary params_digest out)
# shellcheck disable=SC2086
expect 4 "$TESSERA" train $gpt --quiet --offload cpu:optimizer --host-memory $((disk / 3))
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $gpt --quiet --json
[ "$(field summary params_digest out)" = "$digest" ] || fail "the digest is another without: $(tail -n 1 out)"

# 64 ranks, one disk.
small="gpt --data text --layers 1 --width 64 --heads 2 --context 16 --batch 1 --optimizer adamw --steps 2 -n 64"
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $small --quiet --json
digest=$(field summary params_digest out)
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $small --quiet --json --offload disk:files
[ "$(field summary params_digest out)" = "$digest" ] || fail "64 ranks: the digest is another: $(tail -n 1 out)"
[ "$(grep -c '"event":"rank"' out)" = 64 ] || fail "not 64 ranks: $(tail -n 1 out)"
[ -z "$(ls -A files)" ] || fail "files are left: $(ls -A files)"

# In a cgroup there is room for all but the states. Version 1 and 2 name the limit differently.
group= limit=
for root in /sys/fs/cgroup/memory /sys/fs/cgroup; do
  mkdir "$root/tessera-$$" 2> /dev/null || continue
  for limit in memory.limit_in_bytes memory.max; do
    [ ! -w "$root/tessera-$$/$limit" ] || { group=$root/tessera-$$ && break 2; }
  done
  rmdir "$root/tessera-$$"
done
[ -n "$group" ] || { echo "no cgroup can be made here: its part is left out"; exit 0; }
trap 'rmdir "$group"' EXIT
within_limit() { echo "$BASHPID" > "$group/cgroup.procs" && exec "$@"; }
large="gpt --data text --layers 6 --width 512 --heads 4 --context 16 --batch 1 --optimizer adamw --steps 3 --threads 1 --quiet --json"
# shellcheck disable=SC2086
expect 0 "$TESSERA" plan $large --offload disk:files --json=plan
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $large
digest=$(field summary params_digest out) alone=$(field summary peak_resident_bytes out)
disk=$(field plan planned_peak_disk_bytes plan)
room=$((alone - disk + $(field plan planned_peak_host_bytes plan) + disk / 3))
echo "$room" > "$group/$limit"
# shellcheck disable=SC2086
(within_limit "$TESSERA" train $large) > out 2> err && fail "$room bytes are enough in memory, too: $(tail -n 1 out)"
# shellcheck disable=SC2086
(within_limit "$TESSERA" train $large --offload disk:files) > out 2> err || fail "exit code $? in $room bytes: $(cat err)"
[ "$(field summary params_digest out)" = "$digest" ] || fail "the digest is another in a cgroup: $(tail -n 1 out)"
