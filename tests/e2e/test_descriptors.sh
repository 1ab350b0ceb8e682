#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# Closed standard descriptors, output that cannot be written, few descriptors: runs go on, or say whose fault it is.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error
train() { "$TESSERA" train linear -n 3 --steps 2 "$@"; }

for closed in '0<&-' '1>&-' '0<&- 1>&-' '0<&- 1>&- 2>&-'; do
  code=0
  rm -f json
  eval "train --quiet --json=json $closed" 2>err || code=$?
  [ $code = 0 ] || fail "exit code $code with $closed: $(cat err)"
  grep -q '"event":"summary"' json || fail "no summary with $closed"
done

# Output that is not written is no success: exit code 3, whoever writes it.
for words in "plan linear --json" "train linear --steps 1 --json" "train linear -n 2 --steps 1" "run -n 2 -- echo x" "plugins list" "plugins list --json" "plugins info self" \
  "--help" "--version" "train --help" "bench --help" "tune linear --ranks 1 --json" "bench cast --bytes 4KiB" "ckpt --help" \
  "plugins check self" "--help=names"; do
  for to in '>/dev/full' '>&-'; do
    code=0
    eval '"$TESSERA" $words' "$to" 2>err || code=$?
    [ $code = 3 ] || fail "exit code $code of '$words $to', expected 3: $(cat err)"
    [ "$(grep -Ec '^tessera: .*(cannot write|could be written)' err)" = 1 ] || fail "'$words $to' says: $(cat err)"
  done
done
code=0
"$TESSERA" run -n 1 -- sh -c '{ yes | head -n 100000; } 2>/dev/null' 2>err | head -n 1 >out # yes may end before the launcher does
[ ! -s err ] || fail "a reader that goes away: $(cat err)"
for words in "plan linear" "train linear --steps 1" "train linear -n 2 --steps 1"; do
  code=0
  # shellcheck disable=SC2086
  "$TESSERA" $words --json=/dev/full >out 2>err || code=$?
  [ $code = 3 ] || fail "exit code $code of '$words --json=/dev/full', expected 3: $(cat err)"
done
expect 3 "$TESSERA" train linear --steps 1 --quiet --csv /dev/full
one_line err "tessera: error: --csv=/dev/full: not everything could be written"

# A rank's own failure of the system is exit code 3 and blames no other rank.
TESSERA_GLOO_INTERFACE=bogus0 expect 3 train --comm gloo
for r in 0 1 2; do
  has_line err "tessera\[$r\]: error: comm gloo: gloo cannot listen on interface 'bogus0' .*"
done
if grep -q 'rank [0-9] failed' err; then fail "another rank is blamed: $(cat err)"; fi
failed=0
for n in 9 10 11 12 13 14; do
  code=0
  (ulimit -n $n && exec timeout 30 "$TESSERA" train linear -n 3 --steps 2 --comm shm) >out 2>err || code=$?
  case $code in
    0) ;;
    3) failed=1 && grep -q 'Too many open files' err || fail "with $n descriptors: $(cat err)" ;;
    *) fail "exit code $code with $n descriptors, expected 0 or 3: $(cat err)" ;;
  esac
done
[ $failed = 1 ] || fail "no limit was low enough to matter"
nothing_left
