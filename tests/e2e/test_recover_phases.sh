#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 900
# A program with its own loop and recovery in memory: ranks die in each phase of a step, while another is being replaced,
# and in the place of one that died. The digest is that of a run that nothing happened to, and planned bytes are obtained.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
program="$BUILD/tests/support/recover"
comms=shm
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] && comms="shm gloo" || echo "without gloo, which was not built"

# dies COMM RANKS KILLS RECOVERIES
dies() {
  rm -rf marks
  mkdir marks
  expect 0 env TESSERA_COMM="$1" RECOVER_MARKS=marks RECOVER_KILLS="$3" timeout 300 \
    "$TESSERA" run -n "$2" --no-prefix --bind none -- "$program"
  one_line out "digest=$want recoveries=$4 planned=equal"
  [ "$(find marks -type f | wc -l)" = "$(wc -w <<<"$3")" ] || fail "only $(find marks -type f | wc -l) of the deaths $3"
}
for comm in $comms; do
  for w in 2 3; do
    expect 0 env TESSERA_COMM=$comm "$TESSERA" run -n $w --no-prefix --bind none -- "$program"
    want=$(sed -E 's/digest=([0-9a-f]+) recoveries=0 planned=equal/\1/' out)
    [ ${#want} = 16 ] || fail "an undisturbed run: $(cat out)"
    dies $comm $w "1:2:before 1:5:backward 1:8:gradients 1:10:after" 4
    dies $comm $w "0:4:after 0:9:backward 1:11:before" 3
  done
  dies $comm 3 "1:6:backward 1:0:open 0:13:end" 2   # the one that takes its place dies before it has come
  dies $comm 3 "2:6:backward 2:0:recover" 2         # and when it has
  # The one that takes its place says hello, and dies before the launcher's server has read it.
  LD_PRELOAD="$BUILD/tests/support/slow_server.so" dies $comm 3 "2:6:backward 2:0:hello" 2
  # The same of one that was left. And: rank 0 dies as soon as it has told of the first images, and rank 1 is late with its own.
  expect 0 env TESSERA_COMM=$comm "$TESSERA" run -n 4 --no-prefix --bind none -- "$program"
  want=$(sed -E 's/digest=([0-9a-f]+) recoveries=0 planned=equal/\1/' out)
  LD_PRELOAD="$BUILD/tests/support/slow_server.so" dies $comm 4 "2:6:backward 1:0:hello" 2
  RECOVER_SLOW=1 dies $comm 4 "0:1:announced" 1
  # One dies in the recovery, and its connections end before the launcher can say so: that is no lack of an image.
  dies $comm 4 "2:6:backward 1:0:image" 2
  # The images of before stay until those that are being made are whole: in a step, and in a recovery that had one only.
  dies $comm 4 "1:5:copying" 1
  dies $comm 4 "2:1:backward 1:0:image" 2
  dies $comm 4 "2:6:backward$(printf ' 2:0:open%.0s' 1 2 3 4 5 6 7 8 9)" 1 # many in a row
done
rm -rf marks && mkdir marks
expect 5 env RECOVER_MARKS=marks RECOVER_KILLS="1:1:before" "$TESSERA" run -n 2 --no-prefix --bind none -- "$program"
grep -q "rank 1 was lost" err || fail "a death before the first image: $(cat err)"
# So does one while others are in tess_close, who would not go back: nobody is announced in its place.
rm -rf marks && mkdir marks
expect 5 env RECOVER_MARKS=marks RECOVER_KILLS="1:13:close" "$TESSERA" run -n 3 --no-prefix --bind none -- "$program"
grep -q "rank 1 was lost" err && ! grep -q "takes its place" err || fail "a death during tess_close: $(cat err)"
nothing_left

# Without the launcher nobody takes a lost rank's place: one line says so, and the run is as it was without.
pick_port
for r in 0 1; do
  RANK=$r WORLD_SIZE=2 timeout 300 "$program" >"out$r" 2>"err$r" &
done
wait
one_line out0 "digest=$(RANK=0 sed -E 's/digest=([0-9a-f]+).*/\1/' out0) recoveries=0 planned=equal"
[ "$(grep -c 'only `tessera run` on one host replaces a lost rank; off' err0)" = 1 ] && [ ! -s err1 ] || fail "$(cat err0 err1)"
