#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# A rank is killed in each phase of a run of three: all others end with code 5 within a second, naming it, and nothing
# is left behind. KILLS: how often in each phase (3 here; test_kill_slow.sh: 20).
# KILL_COMM: over which comm plugin. KILL_PATIENCE: tenths of a second until all processes are gone.
. "$SOURCE/tests/e2e/lib.sh"
names_of_ours > before
kills=${KILLS:-3}
probe=$BUILD/tests/support/kill_main
comm=${KILL_COMM:-gloo}
[ -f "$BUILD/plugins/libtessera-comm-$comm.so" ] || { echo "skip: comm-$comm is not built here"; exit 77; }
export TESSERA_LOG=warning TESSERA_COMM=$comm
failed=0 worst=0

fail() {
  echo "FAILED: $*"
  failed=1
}
check_survivor() { # check_survivor WHAT FILE PATTERN
  local line late scarce
  line=$(cat "$2" 2> /dev/null) || { fail "$1: no word from ${2##*/}"; return; }
  late=$(sed -n 's/.*late_ms=\(-\{0,1\}[0-9]*\).*/\1/p' <<< "$line")
  scarce=$(sed -n 's/.*scarce_ms=\([0-9]*\).*/\1/p' <<< "$line")
  [ "${late:-9999}" -gt 9000 ] || late=$((late - ${scarce:-0}))
  [[ $line == code=5\ * ]] || fail "$1: ${2##*/}: $line"
  [[ $line =~ $3 ]] || fail "$1: ${2##*/} does not name it: $line"
  [ "${late:-9999}" -le "$latest" ] || latest=${late:-9999}
}
# in_time COMMAND…: it sets `latest`, the time of the last survivor: a second at most, the time aside in which processors
# were scarce.
in_time() {
  latest=0
  "$@"
  [ "$latest" -le "$worst" ] || worst=$latest
  [ "$latest" -le 1000 ] || fail "$*: it took $latest ms"
}
nothing_left() { # of this test's processes: they carry the folder in their command line
  for _ in $(seq "${KILL_PATIENCE:-100}"); do
    pgrep -f "$PWD/run" > "$PWD/left" || return 0
    sleep 0.1
  done
  fail "$1: left running: $(tr '\n' ' ' < "$PWD/left")"
  xargs -r kill -9 < "$PWD/left"
}
run_case() { # run_case PHASE VICTIM DELAY_US [SIGNAL]
  local what="$1, victim $2" rank code
  rm -rf run && mkdir run
  "$TESSERA" run -n 3 -- "$probe" "$PWD/run" "$1" "$2" "$3" "${4:-9}" > log 2>&1
  code=$?
  [ "$code" = 5 ] || { fail "$what: the launcher ended with $code"; cat log; }
  for rank in 0 1 2; do
    [ "$rank" = "$2" ] || check_survivor "$what" "run/rank.$rank" "rank $2 "
  done
  nothing_left "$what"
}

for phase in rendezvous transfer forward backward step; do
  for ((i = 0; i < kills; i++)); do
    case $phase in
      rendezvous) delay=$((i * 1500)) ;;
      *) delay=$((1000 + i * 4000)) ;;
    esac
    in_time run_case $phase $((i % 3)) $delay
  done
done

# The launcher: the ranks end by themselves, code 5, naming it.
kill_launcher() {
  rm -rf run && mkdir run
  "$TESSERA" run -n 3 -- "$probe" "$PWD/run" forward -1 0 > log 2>&1 &
  launcher=$!
  sleep 1
  awk -v scarce="$(scarce)" '{ printf "%.3f %d\n", $1 * 1000, scarce }' /proc/uptime > run/death
  kill -9 $launcher
  wait $launcher 2> /dev/null
  for _ in $(seq 50); do
    [ -e run/rank.0 ] && [ -e run/rank.1 ] && [ -e run/rank.2 ] && break
    sleep 0.1
  done
  for rank in 0 1 2; do check_survivor launcher run/rank.$rank launcher; done
  nothing_left launcher
}
in_time kill_launcher

# A stopped rank is found by its missing heartbeat. The launcher ends it with the others.
export TESSERA_HEARTBEAT=1.5
rm -rf run && mkdir run
"$TESSERA" run -n 3 -- "$probe" "$PWD/run" forward 2 0 19 > log 2>&1
[ $? = 5 ] || fail "a stopped rank: the launcher did not end with 5"
for rank in 0 1; do
  line=$(cat run/rank.$rank 2> /dev/null)
  [[ $line == code=5\ *"rank 2 "* ]] || fail "a stopped rank: rank.$rank: $line"
done
nothing_left "a stopped rank"
no_new_names before
echo "kills per phase: $kills, latest survivor: $worst ms"
exit $failed
