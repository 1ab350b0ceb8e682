#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# `tessera doctor`: a row for each thing, a repair for what is not well, and the exit code says whether training works. Faults
# are made: too few open files, an installation without plugins, a damaged plugin, no room in /dev/shm, no loopback.
. "$SOURCE/tests/e2e/lib.sh"
[ -e "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skipped: no comm-shm in this build"; exit 77; }
well() { expect 0 "$@"; has_line out 'Training works here: 0 bad, [0-9]+ notes\.'; }
# after ROW: the line below the row that begins so.
after() { grep -E -A1 -- "$1" out | sed -n 2p | grep -q '^ *→ .' || fail "no repair of '$1': $(cat out)"; }

well "$TESSERA" doctor
for row in 'ok +processor +[0-9]+ cores, kernels for ' 'ok +loopback ' "ok +comm shm +$BUILD/plugins/libtessera-comm-shm.so" 'ok +1 rank +a training step' \
  'ok +2 ranks +a training step' 'ok +2 ranks, shm +a training step'; do
  grep -Eq "^$row" out || fail "no row '$row': $(cat out)"
done
[ "$(grep -c '^note' out)" = "$(sed -n 's/^Training works here: 0 bad, \([0-9]*\) notes\.$/\1/p' out)" ] || fail "notes are not counted: $(cat out)"
[ "$(grep -c '^ *→ ' out)" = "$(grep -c '^note' out)" ] || fail "a note without a repair: $(cat out)"
RANK=1 WORLD_SIZE=4 MASTER_ADDR=nowhere expect 0 "$TESSERA" doctor --json # which is not about the job it is called in
[ "$(grep -c '^{"event":"check","what":".*","state":"\(ok\|note\|bad\)","found":".*","repair":.*}$' out)" = $(($(wc -l <out) - 1)) ] || fail "rows: $(cat out)"
! grep '"state":"note"' out | grep -q '"repair":null' || fail "a note without a repair: $(cat out)"
grep '"state":"ok"' out | grep -qv '"repair":null' && fail "a repair of what is well: $(cat out)"
tail -n 1 out | grep -qx '{"event":"doctor","works":true,"bad":0,"notes":[0-9]*}' || fail "the verdict: $(tail -n 1 out)"

few() { (ulimit -n 12; exec "$TESSERA" doctor "$@"); }
expect 1 few
has_line out 'Training does not work here: 1 bad, [0-9]+ notes\.'
has_line out 'bad +2 ranks +exit code 3: .*needs [0-9]+ files open at once, ulimit -n allows 12.*'
after '^bad +2 ranks'
after '^note +open files +12$'
expect 1 few --json
tail -n 1 out | grep -q '"works":false,"bad":1,' || fail "the verdict: $(tail -n 1 out)"

alone=$(mktemp -d) # outside the build tree, whose programs find its plugins
trap 'rm -rf "$alone"' EXIT
cp "$TESSERA" "$alone/"
expect 1 env -u TESSERA_PLUGIN_PATH "$alone/tessera" doctor
grep -Eq '^bad +2 ranks +exit code 3: .*comm' out || fail "without plugins: $(cat out)"
grep -Eq '^ok +1 rank ' out || fail "one rank needs no plugin: $(cat out)"

mkdir -p unfit
head -c 5000 "$BUILD/plugins/libtessera-comm-shm.so" >unfit/libtessera-comm-cut.so
unfit() { (ulimit -l 16; TESSERA_PLUGIN_PATH=$PWD/unfit:$BUILD/plugins exec "$TESSERA" doctor); }
well unfit
after '^note +comm cut +not usable: .'
after '^note +locked memory +16 KiB$'
if unshare -mn true 2>/dev/null; then
  well unshare -mn sh -c "mount -t tmpfs -o size=1M none /dev/shm && exec '$TESSERA' doctor"
  after '^note +/dev/shm +1 MiB free$'
  after '^note +loopback +127\.0\.0\.1: '
  namespaces=", in namespaces too"
fi
expect 2 "$TESSERA" doctor gpt
one_line err "tessera doctor: unexpected 'gpt'"
nothing_left
echo "each fault has its row and its repair${namespaces:-}"
