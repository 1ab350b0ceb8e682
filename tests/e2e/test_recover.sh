#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 1200
# slow: 7200 ALL=1
# Ranks of a run with images in memory are killed, or stopped (SIGSTOP), which the heartbeat finds. Another process takes their
# place; or nobody does, and those that are left go on with all microbatches of a step. The run ends with the digest of one that
# nothing happened to, and has the planned memory. A stopped rank does not come back. What cannot be is one line and exit code 5.
# A third of the cases, by the seed (SEED); CASES: those whose words match this pattern, of the slow ones too; ALL=1: every one.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
gpt="gpt $(brief_text) --layers 2 --heads 4 --width 64 --context 64 --batch 2 --threads 1 --quiet --deterministic"
twice="--steps 240" long="--steps 120" short="--steps 60" kills=${KILLS:-2} # twice: for a second death, on a busy machine too
field() { grep '"event":"summary"' "$1" | tail -n 1 | sed -E "s/.*\"$2\":([^,}]*).*/\\1/"; }
steps() { local n; n=$(grep -c '"event":"step"' run.json 2>/dev/null) || n=${n:-0}; echo "$n"; }
steps_after() { [ "$(steps)" -gt "$1" ]; }
goes_on() { steps_after "$1" || gone $pid; } # or has ended
found() { process_of "$1" >process || gone $pid; }
# find_ranks RANK…: their processes, in $victims. Many steps go by meanwhile.
find_ranks() {
  local r
  victims=()
  for r; do
    within 100 found "$r" && [ -s process ] || fail "$case: rank $r does not run: $(cat err)"
    victims+=("$(cat process)")
  done
}
strike() { # SIGNAL: all of them at one moment
  local victim
  at=$(steps)
  for victim in "${victims[@]}"; do kill -"$1" "$victim" || fail "$case: no process $victim after step $at: $(cat err)"; done
}
hit() { find_ranks "${@:2}" && strike "$1"; } # SIGNAL RANK…
launch() { # COMMAND…
  rm -f run.json
  "$@" --json=run.json >out 2>err & pid=$!
}
start() { # COMMAND…
  launch "$@"
  within 300 steps_after 7 || fail "no step of: $* $(cat err)"
}
# killed "RANKS…" COMMAND…: ranks with a comma die at one moment, the others one after another. Between deaths there are steps
# of two images, because a second death before the next image may take the only copy with it.
killed() {
  local each
  launch "${@:2}"
  at=-5
  for each in $1; do
    find_ranks ${each//,/ } # ahead of time, since a run may be short
    within 300 goes_on $((at + 12)) || fail "$case: no step after $at: $(cat err)"
    strike KILL
    within 300 goes_on $((at + 2)) || fail "$case: no step after the death of rank $each: $(cat err)"
  done
  ends $pid 600
}
whole() { # OPTION…: the undisturbed run, once; $want
  local name="whole $*"
  [ -e "$name" ] || expect 0 "$TESSERA" train $gpt "$@" --comm shm --json="$name"
  cp "$name" whole.json
  want=$(digest whole.json)
}
# ended CODE PATTERN…: with these lines on standard error.
ended() {
  local pattern
  [ $code = "$1" ] || fail "$case: exit code $code, expected $1: $(tail -n 8 err)"
  for pattern in "${@:2}"; do grep -q -- "$pattern" err || fail "$case: no '$pattern': $(cat err)"; done
  nothing_left
}
# recovered LEFT [RECOVERIES]: the run is right, with so many ranks at its end.
recovered() {
  ended 0
  [ "$(digest run.json)" = "$want" ] || fail "$case: another digest, after $(field run.json recoveries) recoveries: $(cat err)"
  [ "$(field run.json ranks)" = "$1" ] || fail "$case: $(field run.json ranks) ranks at the end: $(cat err)"
  [ "$(field run.json recoveries)" -ge 1 ] && [ "$(field run.json recoveries)" = "${2:-$(field run.json recoveries)}" ] ||
    fail "$case: $(field run.json recoveries) recoveries, expected ${2:-some}: $(cat err)"
  for kind in host device; do
    [ "$(field run.json peak_${kind}_bytes)" = "$(field run.json planned_peak_${kind}_bytes)" ] ||
      fail "$case: $kind memory: $(field run.json peak_${kind}_bytes), planned $(field run.json planned_peak_${kind}_bytes)"
  done
  echo "$case: $(field run.json recoveries) recoveries, $(field run.json steps_repeated) steps repeated, $(field run.json seconds_lost) s lost"
}
comms=shm
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] && comms="shm gloo" || echo "without gloo, which was not built"

# ---- another process takes the place ----

any_rank() { # RANKS COMM: at random instants
  local i who=
  for ((i = 0; i < kills; i++)); do who="$who $((RANDOM % $1))"; done
  whole -n $1 $long
  start "$TESSERA" train $gpt -n $1 $long --comm "$2" --mirror 5
  for i in $who; do
    within 300 goes_on "$(($(steps) + RANDOM % 10))" || fail "$case: no further step: $(cat err)"
    sleep "0.0$((RANDOM % 10))"
    gone $pid || hit KILL $i
    within 300 goes_on "$((at + 12))" || fail "$case: no step after the death of rank $i: $(cat err)"
  done
  ends $pid 600
  recovered $1
}
two_at_once() { # 0 and 2 keep each other's copies, 0 and 1 do not
  whole -n 4 $long
  killed 0,1 "$TESSERA" train $gpt -n 4 $long --mirror 5
  recovered 4
}
replicas() { # STRATEGY
  whole -n 4 $long
  killed $((RANDOM % 4)) "$TESSERA" train $gpt -n 4 $long --mirror 5 --strategy "$1"
  recovered 4
}
under_run() { # and offload
  whole -n 4 $long
  killed $((RANDOM % 4)) env TESSERA_MIRROR=3 "$TESSERA" run -n 4 -- "$TESSERA" train $gpt $long --offload cpu
  recovered 4
}
unseen() { # the launcher does not see the variable, and counts all the same
  whole -n 4 $long
  killed $((RANDOM % 4)) "$TESSERA" run -n 4 -- env TESSERA_MIRROR=3 "$TESSERA" train $gpt $long
  recovered 4
}
both_copies() { # gone
  killed 0,2 "$TESSERA" train $gpt -n 4 $long --mirror 5
  ended 5 'no image is left of rank [02].s shard: it was lost with the rank that kept its copy'
}
restarts() { # and with a checkpoint and --restarts the run goes on from there
  whole -n 4 $long
  killed 0,2 "$TESSERA" train $gpt -n 4 $long --mirror 5 --save saved --save-every 20 --restarts 3
  ended 0
  [ "$(digest run.json)" = "$want" ] || fail "$case: another digest: $(cat err)"
  [ "$(field run.json restarts)" = 1 ] || fail "restarts: $(field run.json restarts)"
}

# ---- stopped ones ----

all_ended() { local p; for p in "${victims[@]}"; do gone "$p" || return 1; done; }
stopped() { # "RANKS": ended, and replaced as a dead one
  whole -n 4 $long
  start env TESSERA_HEARTBEAT=1 "$TESSERA" train $gpt -n 4 $long --mirror 5
  hit STOP $1
  within 60 all_ended || fail "$case: the stopped rank still exists: $(cat err)"
  ends $pid 300
  recovered 4
  [ "$1" != 2 ] || ended 0 'rank 2 gave no sign of life and was ended: another process takes its place (recovery 1)'
}
stopped_for_a_moment() { # it goes on the moment it counts as lost, before it is ended: the group has no place for it
  whole -n 4 $long
  start env TESSERA_HEARTBEAT=1 TESSERA_MIRROR=5 "$TESSERA" run -n 4 -- "$TESSERA" train $gpt $long
  hit STOP 3
  sleep 1.1
  kill -CONT "${victims[@]}" 2>/dev/null || true
  ends $pid 300
  ended 0
  [ "$(digest run.json)" = "$want" ] || fail "$case: another digest: $(cat err)"
}
stopped_smaller() { # nobody to replace it
  whole -n 4 $long
  start env TESSERA_HEARTBEAT=1 TESSERA_MIRROR=5 "$TESSERA" run --ranks 1:4 --replacements 0 -- "$TESSERA" train $gpt $long
  hit STOP 1
  ends $pid 300
  recovered 2
}
stopped_alone() { # without images the others name it and end
  start env TESSERA_HEARTBEAT=1 "$TESSERA" train $gpt -n 4 $long
  hit STOP 2
  ends $pid 300
  ended 5 'rank 2 was lost.*no sign of life'
}

# ---- nobody takes the place ----

# smaller LEFT "RANKS…" RANKS OPTION…
smaller() {
  local left=$1 ranks=$2 n=$3 steps=$short
  shift 3
  [[ $ranks != *' '* ]] || steps=$twice
  whole -n $n $steps "$@"
  killed "$ranks" env TESSERA_MIRROR=5 "$TESSERA" run --ranks "1:$n" --replacements 0 -- "$TESSERA" train $gpt $steps "$@"
  recovered "$left" "$(wc -w <<<"$ranks")"
}
replaced_once() { # as long as --replacements lasts
  whole -n 4 $twice
  killed "1 1" env TESSERA_MIRROR=5 "$TESSERA" run --ranks 2:4 --replacements 1 -- "$TESSERA" train $gpt $twice
  recovered 2 2
  ended 0 'another process takes its place (recovery 1)' 'nobody takes its place: 2 of 4 ranks go on (recovery 2)'
}
no_division() { # said at the start, and again at the death, which ends the run; TESSERA_RANKS_LEAST is how the ranks learn of MIN
  killed 2 env TESSERA_MIRROR=5 "$TESSERA" run --ranks 3:4 --replacements 0 -- "$TESSERA" train $gpt $short
  ended 5 'rank 2 was killed by signal 9.*no smaller group of 3 ranks or more can go on'
  [ "$(grep -c 'no smaller group could go on without a lost rank: 3 ranks do not divide the 4 microbatches' err)" = 1 ] || fail "$case: $(cat err)"
}
no_memory() { # is planned, and not tried: 4 ranks fit, 2 do not
  whole -n 4 $short
  killed 2 env TESSERA_MIRROR=5 TESSERA_DEVICE_MEMORY=$(($(field whole.json planned_peak_device_bytes) + ${SPARE:-524288})) \
    "$TESSERA" run --ranks 1:4 --replacements 0 -- "$TESSERA" train $gpt $short
  ended 5 'no smaller group could go on without a lost rank: a step needs'
}

adapters() { # beside a base that rests in blocks of codes
  local lora="--lora rank=2,alpha=4,targets=all-linear,base=nf4"
  whole -n 3 $long $lora
  killed $((RANDOM % 3)) "$TESSERA" train $gpt -n 3 $long $lora --mirror 5
  recovered 3
}
thin() { # STRATEGY: eight bits on the wire, with what else saves memory
  local with="--precision wire8:fp8,compute=bf16 --offload cpu --accum 2"
  whole -n 4 $short $with
  killed $((RANDOM % 4)) "$TESSERA" train $gpt -n 4 $short $with --strategy "$1" --mirror 5
  recovered 4
}
cases=()
for comm in $comms; do for w in 2 3 4; do cases+=("any_rank $w $comm"); done; done
cases+=(two_at_once "replicas none" under_run both_copies "replicas hybrid:2" unseen restarts adapters "stopped 2" "stopped '0 1'"
  stopped_for_a_moment stopped_smaller stopped_alone "smaller 1 '0 1' 4" "smaller 3 2 4 --accum 3 --steps 30"
  "smaller 2 1 4 --optimizer adamw8bit --steps 30" "smaller 2 1 4 --optimizer muon --steps 30" replaced_once
  "smaller 2 1 4 --optimizer muon --groups 'embed.*:lr=0.001,schedule=constant;h.0.*:lr=0.004' --steps 30"
  "smaller 2 1 4 --precision wire8:compute=bf16,rounding=stochastic --offload cpu --accum 2 --steps 30" "thin hybrid:2"
  no_division no_memory)
rows=$BUILD/tests/conformance/rows # a plugin with states of rows
if [ -e "$rows/libtessera-optimizer-rows.so" ]; then
  export TESSERA_PLUGIN_PATH=${TESSERA_PLUGIN_PATH:-$BUILD/plugins}:$rows
  cases+=("smaller 2 1 4 --optimizer rows --steps 30")
fi
slow=("smaller 2 0 4 --offload cpu" "smaller 2 3 4 --precision bf16" "smaller 2 2 4 --activations recompute --clip 0.5"
  "smaller 2 0 4 --activations offload --offload cpu" "smaller 2 1 4 --wrap none" "smaller 4 1 6 --accum 2 --sync end")
for strategy in full grad_op none hybrid:2 hybrid_grad_op:2; do slow+=("smaller 2 1 4 --strategy $strategy"); done
[ "$comms" = shm ] || slow+=("smaller 1 '3 1' 4 --comm gloo")
seed=${SEED:-$("$SOURCE/tests/chance" recover)} i=0
for case in "${cases[@]}" "${slow[@]}"; do
  i=$((i + 1))
  if [ -n "${CASES:-}" ]; then
    [[ $case == $CASES ]] || continue
  elif [ -z "${ALL:-}" ]; then
    [ $i -le ${#cases[@]} ] && { [ $(((i + seed) % 3)) = 0 ] || [[ $case == *" --optimizer "*" --steps 30" && $case != *groups* ]]; } || continue
  fi
  eval "$case"
  run="${run:-}; $case"
done
expect 2 "$TESSERA" run --ranks 2:4 --replacements many -- true
grep -q -- "--replacements is 'many', expected 0 to" err || fail "$(cat err)"
nothing_left
echo "ran: ${run#; }"
