#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# `tessera run`: environment, output, exit codes, and that it stops everyone.
. "$SOURCE/tests/e2e/lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS OMP_NUM_THREADS TESSERA_HELPER_CPUS
run() { "$TESSERA" run "$@"; }

# What ranks are told.
expect 0 run -n 3 -- sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${#TESSERA_SECRET} $TESSERA_SECRET_FD'
for r in 0 1 2; do has_line out "\[$r\] $r/3 $r/3 127.0.0.1 0 ?"; done
[ "$(wc -l <out)" = 3 ] || fail "more lines than ranks"
[ ! -s err ] || fail "something on standard error: $(cat err)"
expect 0 run -n 2 -- sh -c 'echo $MASTER_PORT $TESSERA_KV $OMP_NUM_THREADS'
has_line out '\[1\] [0-9]+ /.*/tessera[^/]*/run-[0-9]+\.sock [1-9][0-9]*'
[ "$(sed 's/^.......//' out | sort -u | wc -l)" -le 2 ] || fail "ranks differ in what they should share"
socket=$(sed -n 's/^\[1\] [0-9]* \([^ ]*\) .*/\1/p' out)
[ ! -e "$socket" ] || fail "the socket $socket is left over"
[ "$(stat -c %a "${socket%/*}")" = 700 ] || fail "${socket%/*} is open to others"
OMP_NUM_THREADS=7 TESSERA_HELPER_CPUS=5 expect 0 run -n 1 --no-prefix -- sh -c 'echo $OMP_NUM_THREADS $TESSERA_HELPER_CPUS'
one_line out "7 5"

# Threads that share cores wait by sleeping, unless the user says how: more than there are cores, or a busy machine.
unset GOMP_SPINCOUNT OMP_WAIT_POLICY
TESSERA_THREADS=4096 expect 0 run -n 2 --no-prefix -- sh -c 'echo $GOMP_SPINCOUNT'
[ "$(sort -u out)" = 1000 ] || fail "too many threads spin: $(cat out)"
TESSERA_THREADS=4096 GOMP_SPINCOUNT=7 expect 0 run -n 1 --no-prefix -- sh -c 'echo $GOMP_SPINCOUNT'
one_line out 7
TESSERA_THREADS=4096 OMP_WAIT_POLICY=active expect 0 run -n 1 --no-prefix -- sh -c 'echo $OMP_WAIT_POLICY$GOMP_SPINCOUNT'
one_line out active
# One rank begins anew with it; shown where the last minute was busy.
minute=$(cut -d. -f1 /proc/loadavg)
if [ "$minute" -ge 1 ]; then
  timeout 60 sh -c 'while :; do :; done' &
  hog=$!
  "$TESSERA" train linear --steps 1000000000 --quiet &
  rank=$!
  bounded() { tr '\0' '\n' <"/proc/$rank/environ" | grep -qx GOMP_SPINCOUNT=1000; }
  within 20 bounded || fail "a single rank spins on a busy machine"
  kill -9 $rank
  kill $hog
  wait $rank $hog 2>/dev/null
else
  echo "the machine is idle: a single rank on a busy one is left to unit/tools/test_spinning"
fi

# Output: whole lines, both streams, a last line without its end, nothing added without a prefix.
expect 0 run -n 2 -- sh -c 'printf "a\nb"; printf "c\n\nd" >&2'
has_line out '\[0\] a' && has_line out '\[0\] b' && has_line out '\[1\] b'
[ "$(grep -c . out)" = 4 ] || fail "not four lines: $(cat out)"
has_line err '\[1\] c' && has_line err '\[1\] d' && has_line err '\[1\] '
expect 0 run -n 1 --no-prefix -- sh -c 'printf "a\nb"; printf "c" >&2'
[ "$(od -c out | head -1)" = "$(printf 'a\nb' | od -c | head -1)" ] || fail "--no-prefix changed the output"
[ "$(cat err)" = c ] || fail "--no-prefix changed the errors"
expect 0 run -n 4 -- sh -c 'i=0; while [ $i -lt 2000 ]; do echo "$RANK line $i of many that have to stay whole"; i=$((i + 1)); done'
[ "$(grep -Exc '\[([0-3])\] \1 line [0-9]+ of many that have to stay whole' out)" = 8000 ] || fail "lines are torn"
expect 0 run -n 1 -- sh -c 'head -c 3000000 /dev/zero | tr "\0" x'
[ "$(tr -cd x <out | wc -c)" = 3000000 ] || fail "a long line lost bytes: $(tr -cd x <out | wc -c)"
printf 'question\n' | expect 0 run -n 2 -- sh -c 'read x && echo "got $x"; true'
one_line out "[0] got question"

# Exit codes, and the line that says which rank.
expect 0 run -n 4 -- true
expect 7 run -n 3 -- sh -c '[ $RANK != 1 ] || exit 7; exec sleep 30'
one_line err "tessera: error: rank 1 exited with code 7"
expect 5 run -n 2 -- sh -c '[ $RANK != 1 ] || kill -9 $$; exec sleep 30'
one_line err "tessera: error: rank 1 was killed by signal 9 (Killed)"
expect 5 run -n 2 -- sh -c '[ $RANK != 0 ] || kill -SEGV $$; exec sleep 30'
has_line err "tessera: error: rank 0 was killed by signal 11 \(Segmentation fault\)"
nothing_left

# Ranks that do not listen, and what ranks leave behind, are ended too.
TESSERA_GRACE=0.2 expect 3 run -n 2 -- sh -c 'trap "" TERM; [ $RANK != 1 ] || exit 3; while :; do sleep 0.1; done'
expect 0 run -n 2 -- sh -c 'sleep 60 & exit 0'
expect 4 run -n 2 -- sh -c 'sleep 60 & [ $RANK != 1 ] || exit 4; wait'
nothing_left

# Mistakes: one line, nothing started.
expect 3 run -n 2 -- ./no-such-program
one_line err "tessera: error: cannot start './no-such-program': No such file or directory"
printf 'x' >not-executable
expect 3 run -n 2 -- ./not-executable
one_line err "tessera: error: cannot start './not-executable': Permission denied"
expect 2 run -- true
one_line err "tessera run: how many ranks? -n N is missing"
expect 2 run -n 2
one_line err "tessera run: no program given: tessera run -n N -- PROGRAM [ARGUMENT…]"
for n in 0 -1 x 2x 5000 ''; do
  expect 2 run -n "$n" -- touch started
  [ "$(wc -l <err)" = 1 ] || fail "-n '$n': $(cat err)"
done
expect 2 run -n 2 --bind socket -- touch started
expect 2 run -n 2 --nonsense -- touch started
[ "$(wc -l <err)" = 1 ] || fail "--nonsense: $(cat err)"
WORLD_SIZE=3 expect 2 run -n 2 -- touch started
one_line err "tessera run: -n 2 differs from WORLD_SIZE, which is '3'"
RANK=0 WORLD_SIZE=2 expect 2 run -n 2 -- touch started
one_line err "tessera run: RANK is set: this is a rank already, of another launcher"
[ ! -e started ] || fail "a rank was started in spite of a mistake"
TESSERA_GRACE=-1 expect 3 run -n 2 -- true
has_line err 'tessera: error: TESSERA_GRACE is -1, expected .*'
WORLD_SIZE=2 expect 0 run -- sh -c 'echo $RANK'
[ "$(sort out | tr '\n' ' ')" = "[0] 0 [1] 1 " ] || fail "WORLD_SIZE alone: $(cat out)"
TESSERA_RANKS=2 expect 0 run -- sh -c 'echo $RANK'
[ "$(wc -l <out)" = 2 ] || fail "TESSERA_RANKS alone: $(cat out)"
TESSERA_RANKS=1:2 expect 0 run --no-prefix -- sh -c 'echo $WORLD_SIZE ${TESSERA_RANKS-unset}'
[ "$(cat out)" = "$(printf '2 unset\n2 unset')" ] || fail "TESSERA_RANKS is for the command that starts ranks: $(cat out)"

# Whoever reads us stops: so do the ranks.
code=0
"$TESSERA" run -n 2 -- sh -c 'while :; do echo y; sleep 0.01; done' 2>err | head -3 >out || code=$?
[ "$(wc -l <out)" = 3 ] || fail "head got $(wc -l <out) lines"
nothing_left

# Cores: disjoint, as many as there are.
if [ "$(nproc)" -ge 2 ] && "$TESSERA" run -n 2 -- sh -c '[ -n "$TESSERA_HELPER_CPUS" ]' 2>/dev/null; then
  expect 0 run -n 2 --no-prefix -- sh -c 'grep Cpus_allowed_list /proc/self/status; echo $TESSERA_HELPER_CPUS'
  [ "$(grep Cpus out | sort -u | wc -l)" = 2 ] || fail "ranks share cores: $(cat out)"
  expect 0 run -n 2 --no-prefix --bind none -- sh -c 'grep Cpus_allowed_list /proc/self/status'
  [ "$(sort -u out | wc -l)" = 1 ] || fail "--bind none binds"
  expect 0 run -n $(($(nproc) + 1)) --no-prefix -- sh -c 'grep Cpus_allowed_list /proc/self/status; echo "$OMP_NUM_THREADS"'
  [ "$(sort -u out | wc -l)" = 2 ] || fail "more ranks than cores are bound: $(cat out)"
  has_line out 1
fi
nothing_left
