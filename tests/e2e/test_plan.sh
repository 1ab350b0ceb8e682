#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 120
# `tessera plan`: what it prints is what a run takes; programs are planned by running them up to tess_shard; exit codes.
. "$SOURCE/tests/e2e/lib.sh"
export TMPDIR=$PWD/tmp
mkdir tmp
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'; }
unset TESSERA_DEVICE_MEMORY TESSERA_HOST_MEMORY RANK WORLD_SIZE
export TESSERA_LOG=error TESSERA_THREADS=1

# Usage.
expect 2 "$TESSERA" plan
one_line err "tessera plan: nothing to plan: a model (mnist, gpt, convbn, linear), a file or -- PROGRAM"
expect 2 "$TESSERA" plan gpt mnist
expect 2 "$TESSERA" plan gpt -- true
expect 2 "$TESSERA" plan gpt -n 1048577
expect 3 "$TESSERA" plan gtp
expect 3 "$TESSERA" plan linear --wrap nothing

# Programs: what has no tess_shard, and what fails before it.
expect 3 "$TESSERA" plan -- true
one_line err "tessera: error: true has ended without tess_shard, so there is nothing to plan"
expect 7 "$TESSERA" plan -- sh -c 'echo out; echo err >&2; exit 7'
[ "$(sort err)" = "err
out" ] || fail "what the program wrote is lost: $(cat err)"
[ ! -s out ] || fail "standard output is not the program's"
expect 5 "$TESSERA" plan -- sh -c 'kill -9 $$'
one_line err "tessera: error: sh was killed by signal 9 before tess_shard"
expect 3 "$TESSERA" plan -- ./no-such-program
one_line err "tessera: error: cannot start './no-such-program': No such file or directory"
first=$BUILD/examples/first/train gpt=$BUILD/examples/gpt/gpt_sharded
if [ -x "$first" ]; then
  expect 0 "$TESSERA" plan -n 1 --json -- "$first"
  planned=$(tail -n 1 out | field planned_peak_device_bytes)
  [ "$planned" -gt 0 ] || fail "no peak: $(cat out)"
  expect 0 env TESSERA_DEVICE_MEMORY="$planned" "$first" # the peak itself runs
  expect 4 env TESSERA_DEVICE_MEMORY=$((planned - 1)) "$first"
  expect 4 "$TESSERA" plan --quiet --device-memory $((planned - 1)) -- "$first"
  grep -q "a step needs $planned bytes of device memory per rank and TESSERA_DEVICE_MEMORY allows" err ||
    fail "the refusal does not say by how much: $(cat err)"
  expect 0 "$TESSERA" plan --device-memory "$planned" -- "$first"
  has_line out "fits: .* of device memory are allowed, 0 bytes are left \\(0 bytes\\)"
fi
if [ -x "$gpt" ]; then # takes its activations from the engine, and arguments
  expect 0 "$TESSERA" plan -n 8 --json -- "$gpt" --layers 3 --width 64
  tail -n 1 out | grep -q '"ranks":8' || fail "not for 8 ranks: $(tail -n 1 out)"
  [ "$(grep -c '"event":"unit".*"name":"h\.' out)" = 3 ] || fail "not three layers: $(cat out)"
  tail -n 1 out | grep -q '"activation":' || fail "what the program allocates is missing"
fi
[ -z "$(ls -A "$TMPDIR")" ] || fail "a file is left behind"

# What a program leaves is read with care.
bad() { # bad TEXT EXPECTED
  printf '%b' "tessera-plan 3\\n$1" >declared.txt
  expect 6 "$TESSERA" plan ./declared.txt
  one_line err "tessera: error: ./declared.txt: $2, expected what tess_shard writes"
}
bad '' 'no end'
bad 'end\n' 'no options'
bad 'scope 1 a\nend\n' 'a line of no known kind'
bad 'option comm 99999999 self\n' 'a text without a length'
bad 'option comm 9 self\n' 'a text that is cut short'
opened='open 0 0 0 0 0 0 0 0 0\nscope 1 a\n'
bad "${opened}param 7 0 0 9 0 1 1 a\n" 'a parameter that is cut short'
bad "${opened}tie 3 3 a.b\nend\n" 'a tie to no parameter'
bad "${opened}nonsense" 'a line of no known kind'

# A model's plan is its run.
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "the reference models are not built here"; exit 0; }
for model in "linear" "gpt --layers 2 --width 32 --context 16 --steps 2"; do
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" plan $model --quiet --json
  planned=$(tail -n 1 out | field planned_peak_device_bytes)
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" train $model --quiet --json
  [ "$(tail -n 1 out | field peak_device_bytes)" = "$planned" ] || fail "$model: planned $planned, $(tail -n 1 out)"
done
expect 0 "$TESSERA" plan gpt -n 1000000 --json=plan.json
has_line out "gpt: [0-9]* parameters in [0-9]* units, per rank of 1000000"
tail -n 1 plan.json | grep -q '"event":"plan","model":"gpt","ranks":1000000' || fail "$(tail -n 1 plan.json)"
[ "$(grep -c '"event":"ledger"' plan.json)" -gt 50 ] || fail "no ledger"
expect 6 "$TESSERA" plan gpt --json=/no/such/dir/file
nothing_left
