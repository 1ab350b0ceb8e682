#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The planned peak runs; a byte less is refused, exit code 4, with changes that fit, and each of them does fit when it is
# run with the same budget. Reference models (blocks), a program with hooks, and ranks under `tessera run`.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error TESSERA_THREADS=1
unset TESSERA_DEVICE_MEMORY TESSERA_HOST_MEMORY RANK WORLD_SIZE
"$TESSERA" train --help 2>/dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
network=0
[ ! -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || network=1

peak() { "$TESSERA" plan "$@" --quiet --json 2>/dev/null | tail -n 1 | sed -n 's/.*"planned_peak_device_bytes":\([0-9]*\).*/\1/p'; }

# advice: each change named in the file err, as options for env, one per line; "-n N" as RANKS=N
advice() {
  grep -o 'With [^:]*\(size:[0-9]*[^:]*\)\?: [0-9.]* [KMG]iB' err | sed 's/^With //; s/: [0-9.]* [KMG]iB$//; s/ and / /g; s/-n \([0-9]*\)/RANKS=\1/g'
}
refused() {
  expect 4 "$@"
  [ "$(wc -l <err)" = 1 ] || fail "more than one line: $(cat err)"
  grep -Eq "a step needs [0-9]+ bytes of device memory per rank and TESSERA_DEVICE_MEMORY allows [0-9]+; at its peak, in bytes: .*[a-z] [0-9]+\. With .*[KMG]iB" err ||
    fail "no advice: $(cat err)"
  advice >changes
  [ -s changes ] || fail "no change was found in: $(cat err)"
}

runs=0
# fits BYTES RANKS COMMAND…: every change in the file changes, run with that budget. {} in the command is the ranks.
fits() {
  local budget=$1 ranks=$2 set n
  shift 2
  while read -r set; do
    n=$ranks
    case $set in *RANKS=*) n=${set##*RANKS=} && n=${n%% *} && set=${set//RANKS=$n/} ;; esac
    if [ "$n" -gt 2 ]; then continue; fi # more than this machine's share; planned by the unit test
    # shellcheck disable=SC2086
    env $set TESSERA_DEVICE_MEMORY="$budget" "${@//\{\}/$n}" >out 2>err2 </dev/null || fail "with $set: $(cat err2)"
    runs=$((runs + 1))
  done <changes
}

# model RANKS PART OPTION…: at the peak it runs, at a byte less and at PART percent it is refused. What a change sets comes
# by the environment, as the command line would win.
model() {
  local ranks=$1 part=$2 bytes
  shift 2
  bytes=$(peak "$@" -n "$ranks")
  [ -n "$bytes" ] || fail "no plan of $*"
  expect 0 "$TESSERA" train "$@" -n "$ranks" --steps 1 --quiet --device-memory "$bytes"
  for budget in $((bytes - 1)) $((bytes * part / 100)); do
    refused "$TESSERA" train "$@" -n "$ranks" --steps 1 --quiet --device-memory $budget
    fits $budget "$ranks" "$TESSERA" train "$@" -n {} --steps 1 --quiet
  done
}
export TESSERA_PREFETCH=1 # else the engine gathers less ahead by itself
small="$(brief_text) --layers 3 --width 64 --heads 4 --context 32 --batch 4"
# shellcheck disable=SC2086
model 1 70 gpt $small
# shellcheck disable=SC2046
model 1 80 mnist --batch 8 $(brief_digits)
model 1 93 convbn --image-size 16 --hidden 8
if [ $network = 1 ]; then
  # shellcheck disable=SC2086
  TESSERA_WRAP=none model 2 70 gpt $small
  # shellcheck disable=SC2086
  TESSERA_STRATEGY=grad_op TESSERA_SYNC=end model 2 85 gpt $small --accum 2
  # What an optimizer of matrices or blocks holds is in each alternative's plan.
  for optimizer in muon adamw8bit; do
    # shellcheck disable=SC2086
    [ ! -e "$BUILD/plugins/libtessera-optimizer-$optimizer.so" ] || model 2 80 gpt $small --optimizer $optimizer
  done
fi

# hooks: the same message from the program itself, and no word of activations, which are its own
first=$BUILD/examples/first/train
bytes=$("$TESSERA" plan --quiet --json -- "$first" | tail -n 1 | sed -n 's/.*"planned_peak_device_bytes":\([0-9]*\).*/\1/p')
expect 0 env TESSERA_DEVICE_MEMORY="$bytes" "$first"
refused env TESSERA_DEVICE_MEMORY=$((bytes - 1)) "$first"
! grep -q 'ACTIVATIONS\|PRECISION' err || fail "hooks are told what they cannot do: $(cat err)"
fits $((bytes - 1)) 1 "$TESSERA" run -n {} -- "$first"
refused "$TESSERA" plan --quiet --device-memory $((bytes - 1)) -- "$first"
if [ $network = 1 ]; then
  bytes=$("$TESSERA" plan -n 2 --wrap none --quiet --json -- "$first" | tail -n 1 | sed -n 's/.*"planned_peak_device_bytes":\([0-9]*\).*/\1/p')
  expect 4 env TESSERA_WRAP=none TESSERA_DEVICE_MEMORY=$((bytes - 1)) "$TESSERA" run -n 2 -- "$first"
  grep -q "With TESSERA_" err out || fail "no advice under tessera run: $(cat out err)"
fi

# plan: a table and remedies, of a file too
expect 4 "$TESSERA" plan mnist --device-memory 28MiB --json=plan.json
has_line out '[0-9]+ of [0-9]+ alternatives that were planned fit:'
has_line out ' +[0-9.]+ [A-Za-z]+ device +[0-9.]+ [A-Za-z]+ host +.*(TESSERA_|-n ).*'
grep -q '"fits":false,"remedies":\[{"options":{"' plan.json || fail "no remedies: $(tail -n 1 plan.json)"
# with a machine, in the order of the simulated time of a step
expect 4 "$TESSERA" plan gpt --prefetch 1 --batch 32 --quiet --device-memory 45MiB --machine cpu-2-cores --json=plan.json
tail -n 1 plan.json | sed 's/.*"remedies":\[\(.*\)\],"estimate".*/\1/' | grep -o '"seconds":[0-9.e+-]*' | cut -d: -f2 >seconds
[ "$(wc -l <seconds)" -ge 2 ] || fail "fewer than two times: $(tail -n 1 plan.json)"
sort -g seconds | cmp - seconds || fail "not in the order of time: $(cat seconds)"
cat >model.json <<EOF
{"tessera_model": 1, "parameters": [{"name": "h.*.w", "shape": [1000, 1000], "stack": 4}],
 "blocks": [{"name": "h.*", "stack": 4, "output_bytes": 1000000, "saved_bytes": 8000000}]}
EOF
refused "$TESSERA" plan model.json --quiet --device-memory 80MiB
echo "$runs changes were run with the budget that they were advised for"
