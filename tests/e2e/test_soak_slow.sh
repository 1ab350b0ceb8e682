#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 10800
# Soak: four ranks train for four minutes, and for 10,000 steps and 200 checkpoints at least, once on shared memory and once as two
# pretended hosts (shared memory and gloo), with little of the time that other tests use. Each rank and launcher is looked at in /proc every few seconds; tests/support/soak.awk judges that its
# memory stays flat and that it gains no descriptor and no thread (docs/benchmarks/network.md).
# SOAK_SECONDS: how long at least; SAVE_EVERY: steps between checkpoints. SAMPLE_SECONDS: between two looks. COMMS: what runs. SAMPLES: the file of the looks.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer owns malloc"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT
length=${SOAK_SECONDS:-240} every=${SAMPLE_SECONDS:-4} samples=${SAMPLES:-$PWD/samples} comms=${COMMS:-auto hosts}
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || comms=auto
# A rank that gets no core for minutes is no dead one.
export TESSERA_THREADS=1 TESSERA_HEARTBEAT=7200 TESSERA_TIMEOUT=7200 TESSERA_RENDEZVOUS_TIMEOUT=3600 TESSERA_GRACE=600
model=(gpt --layers 1 --width 32 --heads 2 --context 16 --batch 4)

steps_of() { local n; n=$(grep -ac '"event":"step"' "$1.out" 2>/dev/null) || n=${n:-0}; echo "$n"; }
# warm COMM LAUNCHER: waits for its second checkpoint. A first one makes a thread, its memory and a lock that stay.
warm() {
  while [ "$(ls "saved.$1" 2>/dev/null | grep -c '^step-[0-9]*$')" -lt 2 ]; do
    ! gone "$2" || fail "$1 has ended: $(head -c 2000 "$1.err")"
    sleep 1
  done
}

# look NAME PID: a line "look SECONDS NAME memory mapped descriptors threads", in KiB. Memory is what no file backs.
look() {
  awk -v at=$((SECONDS - begin)) -v name="$1" -v descriptors="$(ls "/proc/$2/fd" 2>/dev/null | wc -l)" '{ v[$1] = $2 }
    END { if (v["VmRSS:"]) print "look", at, name, v["RssAnon:"] + v["RssShmem:"] + v["VmSwap:"], v["VmSize:"], descriptors, v["Threads:"] }' \
    "/proc/$2/status" 2>/dev/null >>"$samples" || true
}

# processes NAME LAUNCHER: lines "NAME PID", of the launcher and its ranks.
processes() {
  local pid rank
  echo "$1-launcher $2"
  for pid in $(cat "/proc/$2/task/$2/children" 2>/dev/null); do
    rank=$(tr '\0' '\n' <"/proc/$pid/environ" 2>/dev/null | sed -n 's/^RANK=//p')
    [ -z "$rank" ] || echo "$1-rank-$rank $pid"
  done
}

for comm in $comms; do
  TESSERA_COMM=$comm TESSERA_HOSTS_RANKS=$([ "$comm" != hosts ] && echo 0 || echo 2) nice -n 10 "$TESSERA" run -n 4 -- \
    "$TESSERA" train "${model[@]}" --json --steps 1000000000 --save "saved.$comm" --save-every "${SAVE_EVERY:-50}" >"$comm.out" 2>"$comm.err" &
  launchers+=($!)
done
i=0
for comm in $comms; do
  warm "$comm" "${launchers[i]}"
  processes "$comm" "${launchers[i++]}" >>running
done
[ "$(wc -l <running)" = $((5 * i)) ] || fail "expected four ranks and a launcher of each: $(cat running)"

begin=$SECONDS
: >"$samples"
# enough COMM: of seconds and of steps.
enough() { [ $((SECONDS - begin)) -ge "$length" ] && [ "$(steps_of "$1")" -ge "${STEPS:-10000}" ]; }
# finish COMM LAUNCHER
finish() {
  kill -TERM "$2"
  ends "$2" 1800
  [ "$code" = 143 ] || fail "$1: exit code $code, expected 143: $(head -c 2000 "$1.err")"
  [ -d "saved.$1" ] && "$TESSERA" ckpt verify "saved.$1" >verify 2>&1 || fail "$1: its checkpoints: $(cat verify)"
  echo "ran $1 $(steps_of "$1") steps, last checkpoint $(ls "saved.$1" | sort | tail -n 1)" | tee -a "$samples"
}
while [ -s running ]; do
  while read -r name pid; do
    ! gone "$pid" || fail "$name has ended: $(head -c 2000 ./*.err)"
    look "$name" "$pid"
  done <running
  sleep "$every"
  i=0
  for comm in $comms; do
    launcher=${launchers[i++]}
    grep -q "^$comm-" running && enough "$comm" || continue
    finish "$comm" "$launcher"
    sed -i "/^$comm-/d" running
  done
done
awk -f "$SOURCE/tests/support/soak.awk" "$samples" | tee verdict
[ "${PIPESTATUS[0]}" = 0 ] || fail "not flat"
nothing_left
