#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Many ranks: 1,000 of them, that are connections only, on one key-value server; the files and threads of a real rank of 64
# over gloo; limits on open files, said in one line before anybody waits.
. "$SOURCE/tests/e2e/lib.sh"
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT TESSERA_COMM
many=$BUILD/tests/support/many_ranks
[ "$(ulimit -Hn)" -ge 1200 ] || { echo "skipped: no 1200 files may be open here"; exit 77; }
ulimit -n 1200
# Start-up, exchange and news of a death, in seconds: printed, for a busy machine takes its time. All ranks must hear all.
for how in unix tcp; do
  expect 0 "$many" 1000 $how
  cat out
done

# Too few files.
(ulimit -n 256 && exec "$many" 1000) >out 2>err && fail "1000 ranks with 256 files: $(cat out)"
grep -Eqx 'many_ranks: the server: the key-value server of 1000 ranks needs 10[0-9]+ files open at once, ulimit -n allows 256: Too many open files' err ||
  fail "no word of the limit: $(cat err)"

[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || exit 0
[ -z "$SANITIZE" ] || exit 0
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=120 TESSERA_HEARTBEAT=60
code=0
"$TESSERA" run -n 32 --bind none -- sh -c 'ulimit -n 30; exec "$0" train linear --steps 1 --comm gloo' "$TESSERA" >out 2>err || code=$?
[ $code = 3 ] || fail "32 ranks with 30 files: exit code $code: $(head -c 2000 err)"
grep -q 'a group of 32 ranks needs [0-9]* files open at once, ulimit -n allows 30: Too many open files' err || fail "no word: $(head -c 2000 err)"

# A rank of 64: a connection to each other, and a few; threads that do not grow with the ranks.
cat >probe <<'END'
#!/bin/bash
# Reads its rank's files and threads while it trains.
"$@" >/dev/null & pid=$!
most_files=0 most_threads=0
while kill -0 $pid 2>/dev/null; do
  files=$(ls /proc/$pid/fd 2>/dev/null | wc -l) threads=$(ls /proc/$pid/task 2>/dev/null | wc -l)
  [ "$files" -le $most_files ] || most_files=$files
  [ "$threads" -le $most_threads ] || most_threads=$threads
  sleep 0.05
done
wait $pid || exit $?
echo "files $most_files threads $most_threads"
END
for n in 4 64; do
  expect 0 "$TESSERA" run -n $n --bind none --no-prefix -- sh -c '[ $RANK = 1 ] && exec bash probe "$@"; exec "$@" >/dev/null' sh \
    "$TESSERA" train linear --steps $((n == 4 ? 3000 : 20)) --comm gloo --json
  grep -o 'files [0-9]* threads [0-9]*' out >$n.count || fail "nothing counted: $(cat out err)"
  echo "$n ranks over gloo: $(cat $n.count)"
done
read -r _ few _ threads4 <4.count
read -r _ many _ threads64 <64.count
[ "$many" -ge 63 ] && [ $((many - few)) -le 70 ] || fail "$many files at 64 ranks, $few at 4"
[ "$threads64" -le "$threads4" ] && [ "$threads64" -le 10 ] || fail "$threads64 threads at 64 ranks, $threads4 at 4"
nothing_left
