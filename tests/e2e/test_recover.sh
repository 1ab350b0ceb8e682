#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 1200
# Ranks are killed at random instants of a run with images in memory: another process takes their place, the others go on,
# and the run ends with the digest of one that nothing happened to. KILLS: of each case. With both copies gone, one line.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
gpt="gpt --layers 2 --heads 4 --width 128 --context 64 --batch 2 --threads 1 --quiet --deterministic"
steps=${STEPS:-200} kills=${KILLS:-2}
digest() { grep -o '"params_digest":"[0-9a-f]*"' "$1" | tail -n 1; }
field() { grep '"event":"summary"' "$1" | tail -n 1 | sed -E "s/.*\"$2\":([^,}]*).*/\\1/"; }
events() { local n; n=$(grep -c "\"event\":\"$1\"" run.json 2>/dev/null) || n=${n:-0}; echo "$n"; }

# kill_ranks RANK…: of this test's processes, at one moment.
kill_ranks() {
  local r mine victims=()
  mine=$(grep -lzsx "TESSERA_TEST_MARK=$TESSERA_TEST_MARK" /proc/[0-9]*/environ) || [ -n "$mine" ] || return 1
  for r in "$@"; do
    victims+=($(grep -lzsx "RANK=$r" $mine | sed -E 's,/proc/([0-9]+)/environ,\1,'))
  done
  [ ${#victims[@]} -ge $# ] && kill -KILL "${victims[@]}" 2>/dev/null
}
# steps_after N: rank 0 has written more than N lines of steps.
steps_after() { [ "$(events step)" -gt "$1" ]; }
goes_on() { steps_after "$1" || gone $pid; } # or has ended
# survives KILLS VICTIMS COMMAND…: VICTIMS are the ranks of one death, or "any W". After each, steps are waited for: those
# of two images, because a second death before the next image may take the only copy with it.
survives() {
  local n=$1 victims=$2 i at who
  shift 2
  rm -f run.json
  "$@" --json=run.json >out 2>err & pid=$!
  within 300 steps_after 3 || fail "no step of: $* $(cat err)"
  for ((i = 0; i < n; i++)); do
    at=$(events step)
    within 300 goes_on "$((at + RANDOM % 20))" || fail "no further step of: $* $(cat err)"
    sleep "0.0$((RANDOM % 10))"
    who=$victims
    [ "${who%% *}" != any ] || who=$((RANDOM % ${who#any }))
    gone $pid || kill_ranks $who || true
    at=$(events step)
    within 300 goes_on "$((at + 12))" || fail "no step after death $i ($who) of: $* $(cat err)"
  done
  ends $pid 600
}
recovered() { # NAME: the run that ended is right
  [ $code = 0 ] || fail "$1: exit code $code: $(tail -n 8 err)"
  [ "$(digest run.json)" = "$want" ] || fail "$1: another digest, after $(field run.json recoveries) recoveries"
  [ "$(field run.json recoveries)" -ge 1 ] || fail "$1: no recovery: $(cat err)"
  [ "$(field run.json peak_host_bytes)" = "$(field run.json planned_peak_host_bytes)" ] || fail "$1: host memory"
  [ "$(field run.json peak_device_bytes)" = "$(field run.json planned_peak_device_bytes)" ] || fail "$1: device memory"
  echo "$1: $(field run.json recoveries) recoveries, $(field run.json steps_repeated) steps repeated, $(field run.json seconds_lost) s lost"
  nothing_left
}
comms=shm
[ -e "$(dirname "$TESSERA")/plugins/libtessera-comm-gloo.so" ] && comms="shm gloo" || echo "without gloo, which was not built"

# The cases, of which a run has a third, by the seed (SEED); ALL=1: every one (test_recover_slow).
whole() { # RANKS: the undisturbed run
  [ -e "whole$1" ] || "$TESSERA" train $gpt -n "$1" --steps "$steps" --comm shm --json="whole$1" >out 2>err || fail "$(cat err)"
  want=$(digest "whole$1")
}
any_rank() { # RANKS COMM
  whole "$1"
  survives "$kills" "any $1" "$TESSERA" train $gpt -n "$1" --steps "$steps" --comm "$2" --mirror 5
  recovered "$2, $1 ranks"
}
two_at_once() { # 0 and 2 keep each other's copies, 0 and 1 do not
  whole 4
  survives 1 "0 1" "$TESSERA" train $gpt -n 4 --steps "$steps" --mirror 5
  recovered "two deaths at once"
}
replicas() { # STRATEGY
  whole 4
  survives 1 "any 4" "$TESSERA" train $gpt -n 4 --steps "$steps" --mirror 5 --strategy "$1"
  recovered "strategy $1"
}
under_run() {
  whole 4
  survives 1 "any 4" env TESSERA_MIRROR=3 "$TESSERA" run -n 4 -- "$TESSERA" train $gpt --steps "$steps" --offload cpu
  recovered "tessera run, offload cpu"
}
unseen() { # the launcher does not see the variable, and counts all the same
  whole 4
  survives 1 "any 4" "$TESSERA" run -n 4 -- env TESSERA_MIRROR=3 "$TESSERA" train $gpt --steps "$steps"
  recovered "tessera run -- env"
}
both_copies() { # gone: one line and exit code 5
  survives 1 "0 2" "$TESSERA" train $gpt -n 4 --steps "$steps" --mirror 5
  [ $code = 5 ] || fail "both copies gone: exit code $code"
  grep -q 'no image is left of rank [02].s shard: it was lost with the rank that kept its copy' err || fail "both copies gone: $(cat err)"
}
restarts() { # and with a checkpoint and --restarts the run goes on from there
  whole 4
  survives 1 "0 2" "$TESSERA" train $gpt -n 4 --steps "$steps" --mirror 5 --save saved --save-every 20 --restarts 3
  [ $code = 0 ] && [ "$(digest run.json)" = "$want" ] || fail "restart after both copies: exit code $code, $(cat err)"
  [ "$(field run.json restarts)" = 1 ] || fail "restarts: $(field run.json restarts)"
}
adapters() { # beside a base that rests in blocks of codes
  local gpt="$gpt --lora rank=2,alpha=4,targets=all-linear,base=nf4"
  "$TESSERA" train $gpt -n 3 --steps "$steps" --comm shm --json=adapted >out 2>err || fail "$(cat err)"
  want=$(digest adapted)
  survives 1 "any 3" "$TESSERA" train $gpt -n 3 --steps "$steps" --mirror 5
  recovered "adapters"
}
cases=()
for comm in $comms; do for w in 2 3 4; do cases+=("any_rank $w $comm"); done; done
cases+=(two_at_once "replicas none" under_run both_copies "replicas hybrid:2" unseen restarts adapters)
seed=${SEED:-$("$SOURCE/tests/chance" recover)}
for ((i = 0; i < ${#cases[@]}; i++)); do
  [ -z "${ALL:-}" ] && [ "${TESSERA_TEST_TURNS:-}" != all ] && [ $(((i + seed) % 3)) != 0 ] || ${cases[i]}
done
nothing_left
