#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 1200
# slow: 3600 ALL=1
# Nobody takes a lost rank's place, and another rank dies while the group becomes smaller: in each phase of tess_recover,
# before and after it. Where the shards are left somewhere (all have them, or the images of the new group are whole) the
# rest go on to the digest of a run that nothing happened to. Elsewhere one line says so, and the exit code is 5.
# A third of the phases, by the seed (SEED); ALL=1: every one (test_recover_twice_slow).
set -eu
. "$SOURCE/tests/e2e/lib.sh"
program="$BUILD/tests/support/recover"
export TESSERA_DETERMINISTIC=1
survived=0 ended=0
# second STRATEGY RANKS KILL: after rank 1 has died in its fifth step. What became of it: $got.
second() {
  local code=0
  rm -rf marks
  mkdir marks
  TESSERA_STRATEGY=$1 RECOVER_MARKS=marks RECOVER_KILLS="1:5:backward $3" timeout 300 \
    "$TESSERA" run --ranks "1:$2" --replacements 0 --no-prefix --bind none -- "$program" >out 2>err || code=$?
  [ -e marks/0 ] && [ -e marks/1 ] || fail "$1, $3: only $(ls marks | wc -l) of two deaths: $(cat out err)"
  case $code in
  0)
    has_line out "digest=$want recoveries=2 planned=equal"
    got=digest survived=$((survived + 1))
    ;;
  5)
    [ ! -s out ] || fail "$1, $3: $(cat out) after exit code 5"
    got=$(grep -cE "no image is left of rank [0-9]+.s shard: it was lost with the rank that kept its copy" err) || true
    [ "$got" = 1 ] || fail "$1, $3: $got lines say that images are gone: $(cat err)"
    got=line ended=$((ended + 1))
    ;;
  *) fail "$1, $3: exit code $code: $(cat out err)" ;;
  esac
}
phases="recover join afterjoin carry plan afterplan compare aftercompare aftercarry restore send aftersend
  afterrestore image afterimage finish afterfinish"
choose() { # one of three, by the seed; all with ALL=1
  local seed=${SEED:-$("$SOURCE/tests/chance" recover_twice)} i=0 p
  for p in $phases; do
    i=$((i + 1))
    [ -z "${ALL:-}" ] && [ $(((i + seed) % 3)) != 0 ] || echo "$p"
  done
}
# Of 4 ranks with one microbatch each two go on: 0 and 3, which have what is left of 1 and 2; of whole replicas 0 and 2.
declare -A stay=( [full]="0 3" [none]="0 2" )
for strategy in full none; do
  expect 0 env TESSERA_STRATEGY=$strategy "$TESSERA" run -n 4 --no-prefix --bind none -- "$program"
  want=$(sed -E 's/digest=([0-9a-f]+) recoveries=0 planned=equal/\1/' out)
  [ ${#want} = 16 ] || fail "an undisturbed run: $(cat out)"
  for phase in $(choose); do
    for rank in ${stay[$strategy]}; do
      second $strategy 4 "$rank:0:$phase"
      echo "$strategy, rank $rank in $phase: $got"
      [ $strategy = full ] || [ $got = digest ] || fail "$strategy: every rank has all, and they did not go on"
      [ $phase != afterfinish ] || [ $got = digest ] || fail "the images of the smaller group were whole"
    done
  done
done
[ $survived -gt 0 ] && [ $ended -gt 0 ] || fail "$survived went on, $ended ended"
nothing_left
