#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Variables that the command sets for the processes it starts, set here by hand: what a program declares goes to a file;
# a later life of a run resumes and counts what it repeats. And the interface of data between hosts.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=warning TESSERA_THREADS=1
unset RANK WORLD_SIZE
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'; }
summary() { grep '"event":"summary"' run.json | field "$1"; }

# TESSERA_PLAN_FILE: the program's declarations, which plan reads back to the peak that it prints of the program itself.
first=$BUILD/examples/first/train
: >declared.plan
expect 0 env TESSERA_PLAN=3 TESSERA_PLAN_FILE="$PWD/declared.plan" TESSERA_JSON=plan.json "$first" # plan's own, no slip
! grep 'nothing here reads' err || fail "a program that is planned warns of what plan reads"
has_line declared.plan 'tessera-plan 3'
for what in ./declared.plan "-- $first"; do
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" plan -n 3 --json $what
  field planned_peak_device_bytes <out >>peaks
  field units <out >>peaks
done
[ "$(sort -u peaks | wc -l)" = 2 ] && [ "$(wc -l <peaks)" = 4 ] || fail "file and program: $(tr '\n' ' ' <peaks)"
expect 3 env TESSERA_LOG=error TESSERA_PLAN=3 TESSERA_PLAN_FILE="$PWD/none/declared" "$first"
one_line err "TESSERA_PLAN_FILE=$PWD/none/declared: No such file or directory"

# TESSERA_RESTART and TESSERA_RESTART_FILE, on one rank, as a launcher of ours sets them itself: the third life of a run that lost step 5, from the checkpoint of step 4.
train() { "$TESSERA" train linear -n 2 --quiet --json=run.json "$@"; }
expect 0 "$TESSERA" train linear --quiet --json=run.json --steps 8
whole=$(summary params_digest)
: >lives
rm run.json # a restart appends
expect 0 env TESSERA_RESTART_FILE="$PWD/lives" "$TESSERA" train linear --quiet --steps 5 --save run --save-every 2
rm -r run/step-000005
expect 0 env TESSERA_RESTART=2 TESSERA_RESTART_FILE="$PWD/lives" "$TESSERA" train linear --quiet --steps 8 --save run \
  --save-every 2 --json=run.json
[ "$(summary restarts) $(summary steps_repeated) $(summary params_digest)" = "2 1 $whole" ] || fail "$(cat run.json)"
awk -v lost="$(summary seconds_lost)" 'BEGIN { exit !(lost > 0 && lost < 100) }' || fail "seconds_lost: $(summary seconds_lost)"
rm run.json
expect 0 env TESSERA_RESTART=1 "$TESSERA" train linear --quiet --steps 2 --json=run.json # nothing is saved: from the start
[ "$(summary restarts) $(summary steps_repeated)" = "1 0" ] || fail "$(cat run.json)"
expect 0 train --steps 8
whole=$(summary params_digest)
# TESSERA_RESTART_RANKS: before a checkpoint a step keeps the microbatches of the two ranks that there were.
expect 0 train --steps 8 --deterministic
two=$(summary params_digest)
rm run.json
expect 0 env TESSERA_RESTART=1 TESSERA_RESTART_RANKS=2 "$TESSERA" train linear --quiet --steps 8 --deterministic --json=run.json
[ "$(summary accum) $(summary params_digest)" = "2 $two" ] || fail "one of two ranks: $(cat run.json)"
expect 3 env TESSERA_RESTART=1 TESSERA_RESTART_RANKS=0 "$TESSERA" train linear --quiet --steps 1
grep -q "TESSERA_RESTART_RANKS" err || fail "TESSERA_RESTART_RANKS=0: $(cat err)"
for bad in -1 x 1048577; do
  expect 3 env TESSERA_RESTART=$bad "$TESSERA" train linear --quiet --steps 1
  [ "$(wc -l <err)" = 1 ] && grep -q "TESSERA_RESTART" err || fail "TESSERA_RESTART=$bad: $(cat err)"
done
expect 0 env TESSERA_RESTART_FILE="$PWD/none/lives" "$TESSERA" train linear --quiet --steps 1
grep -q "TESSERA_RESTART_FILE: $PWD/none/lives: No such file or directory" err || fail "no warning: $(cat err)"

# TESSERA_INTERFACE: Gloo listens there.
if [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ]; then
  expect 0 train --steps 8 --comm gloo
  TESSERA_INTERFACE=lo expect 0 train --steps 8 --comm gloo
  [ "$(summary params_digest)" = "$whole" ] || fail "over lo: $(summary params_digest), expected $whole"
  TESSERA_INTERFACE=bogus0 expect 3 train --steps 8 --comm gloo
  grep -q "cannot listen on interface 'bogus0' (TESSERA_INTERFACE" err || fail "bogus0: $(cat err)"
fi
nothing_left
