#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# examples/gpt: the sharded file differs from the plain one in fewer than 100 lines, trains to the same bits on one rank,
# and on 2 and 4 ranks to the same bits whatever the strategy, the units and the run. examples/first learns.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
gpt=$SOURCE/examples/gpt
plain=$BUILD/examples/gpt/gpt_plain
sharded=$BUILD/examples/gpt/gpt_sharded

# The rule: a hunk of diff that replaces n lines by m counts max(n, m).
[ "$(wc -l <"$gpt/plain.c")" -ge 600 ] || fail "plain.c has fewer than 600 lines"
changed=$(diff "$gpt/plain.c" "$gpt/sharded.c" | awk '
  function lines(range, ends) { return split(range, ends, ",") == 2 ? ends[2] - ends[1] + 1 : 1 }
  /^[0-9]/ {
    kind = $0; gsub(/[0-9,]/, "", kind); split($0, side, /[acd]/)
    before = kind == "a" ? 0 : lines(side[1]); after = kind == "d" ? 0 : lines(side[2])
    total += before > after ? before : after
  }
  END { print total + 0 }')
echo "changed lines: $changed (added: $(diff "$gpt/plain.c" "$gpt/sharded.c" | grep -c '^>'), removed: \
$(diff "$gpt/plain.c" "$gpt/sharded.c" | grep -c '^<'))"
[ "$changed" -lt 100 ] || fail "$changed changed lines, expected fewer than 100"
[ "$(diff "$gpt/plain.c" "$gpt/sharded.c" | grep -c '^>')" -lt 70 ] || fail "70 lines or more are added"

# One rank: every line of output and every bit of the checkpoint.
model="--layers 3 --heads 4 --width 32 --context 32 --steps 20 --eval-every 10 --generate 16"
"$plain" $model --batch 8 --save plain.bin | sed 's/plain\.bin/FILE/' >plain.txt
"$sharded" $model --batch 8 --save sharded.bin | sed 's/sharded\.bin/FILE/' >sharded.txt
[ "$(grep -c ' loss ' plain.txt)" = 20 ] || fail "the plain trainer did not print 20 losses"
diff plain.txt sharded.txt || fail "the losses of one rank differ"
cmp plain.bin sharded.bin || fail "the parameters of one rank differ"
echo "W = 1: $(grep 'step 20 loss' sharded.txt), parameters equal"

# Half of the run, and the rest of it from the checkpoint: parameters, moments and steps done go on to the same bits.
for half in "$plain" "$sharded"; do
  for rest in "$plain" "$sharded"; do
    "$half" $model --batch 8 --stop 10 --save half.bin >/dev/null
    "$rest" $model --batch 8 --load half.bin --save whole.bin >rest.txt
    [ "$(grep -c ' loss ' rest.txt)" = 10 ] || fail "the resumed run did not print 10 losses"
    cmp plain.bin whole.bin || fail "resumed: $half, then $rest: the parameters or moments differ"
  done
done

# More ranks: the same global batches, so nearly the same losses; among themselves the same bits.
losses() { sed -n 's/.*step \([0-9]*\) loss \(.*\)/\1 \2/p' "$1"; }
for ranks in 2 4; do
  runs=0
  for setting in "full scopes" "full scopes" "full none" "full size:20000" "full module:h.*" "grad_op scopes" "none scopes"; do
    read -r strategy wrap <<<"$setting"
    TESSERA_STRATEGY=$strategy TESSERA_WRAP=$wrap "$TESSERA" run -n $ranks -- "$sharded" $model \
      --batch $((8 / ranks)) --save "ranks.bin" >ranks.txt || fail "W = $ranks, strategy $strategy, wrap $wrap"
    [ "$(losses ranks.txt | wc -l)" = 20 ] || fail "W = $ranks did not print 20 losses"
    if [ $runs = 0 ]; then
      mv ranks.bin "first$ranks.bin"
      losses ranks.txt | paste -d ' ' - <(losses plain.txt) | awk '{ d = ($2 - $4) / $4; if (d < 0) d = -d
        if ($1 != $3 || d > 1e-4) { print "step " $1 ": " $2 " and " $4; bad = 1 } } END { exit bad }' ||
        fail "W = $ranks: losses are not those of one rank"
    else
      cmp "first$ranks.bin" ranks.bin || fail "W = $ranks, strategy $strategy, wrap $wrap: parameters differ"
    fi
    runs=$((runs + 1))
  done
  "$TESSERA" run -n $ranks -- "$sharded" $model --batch $((8 / ranks)) --stop 7 --save half.bin >/dev/null
  "$TESSERA" run -n $ranks -- "$sharded" $model --batch $((8 / ranks)) --load half.bin --save ranks.bin >/dev/null
  cmp "first$ranks.bin" ranks.bin || fail "W = $ranks: resumed, the parameters or moments differ"
  echo "W = $ranks: $runs runs, and one in two parts, ended with the same parameters"
done

# What four ranks wrote, one rank and the plain program read.
"$plain" --steps 0 --load first4.bin >plain.txt
"$sharded" --steps 0 --load first4.bin | diff plain.txt - || fail "a checkpoint of four ranks reads differently"
head -c 1000 first4.bin >short.bin
code=0
"$sharded" --steps 0 --load short.bin 2>error.txt >/dev/null || code=$?
grep -q 'short.bin: shorter than its header says' error.txt && [ $code = 6 ] || fail "a short checkpoint is not refused"

for ranks in 1 2; do
  "$TESSERA" run -n $ranks -- "$BUILD/examples/first/train" >first.txt
  awk '{ loss = $NF } END { print "first: last loss", loss; exit !(NR >= 5 && loss < 0.01) }' first.txt ||
    { cat first.txt; fail "examples/first at W = $ranks does not learn"; }
done
