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

# Lines that somebody writes: for recovery (a rank is lost), for resume (checkpoints), and all others, for sharding.
diff "$gpt/plain.c" "$gpt/sharded.c" | sed -n 's/^> \(.\)/\1/p' | awk '
  /setjmp|longjmp|lost|LOST|tess_recover|tess_steps_done|!g.step/ { recovery++; next }
  /tess_checkpoint|struct header|[.]common/ { resume++; next }
  { sharding++ }
  END { print "written lines: sharding", sharding + 0 ", resume", resume + 0 ", recovery", recovery + 0
    exit !(sharding <= 60 && resume <= 12 && recovery <= 8 && sharding > 30 && resume > 2 && recovery > 4) }' ||
  fail "more than 60 lines for sharding, 12 for resume, 8 for recovery"

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

# parameters FILE: of a checkpoint of plain.c, in the order that a safetensors file has.
parameters() {
  local name count first
  awk -v L=3 -v C=32 -v T=32 -v V=256 'BEGIN {
    n = split("embed.tokens 0 " V * C ",embed.positions 0 " T * C ",ln1.weight 1 " C ",ln1.bias 1 " C ",qkv.weight 1 " 3 * C * C ",qkv.bias 1 " 3 * C ",out.weight 1 " C * C ",out.bias 1 " C ",ln2.weight 1 " C ",ln2.bias 1 " C ",fc.weight 1 " 4 * C * C ",fc.bias 1 " 4 * C ",proj.weight 1 " 4 * C * C ",proj.bias 1 " C ",head.ln.weight 0 " C ",head.ln.bias 0 " C, tensors, ",")
    at = 8 # the header, in elements
    for (i = 1; i <= n; i++) {
      split(tensors[i], x, " ")
      for (l = 0; l < (x[2] ? L : 1); l++) { print (x[2] ? "h." l "." : "") x[1], x[3], at; at += x[3] }
    }
  }' | LC_ALL=C sort | while read -r name count first; do tail -c +$((4 * first + 1)) "$1" | head -c $((4 * count)); done
}
# exported DIR: the data of what `ckpt export` makes of a checkpoint of sharded.c.
exported() {
  rm -rf folder
  "$TESSERA" ckpt export "$1" folder >/dev/null || fail "ckpt export $1"
  tail -c $((4 * $(sed -n 's/^\([0-9]*\) parameters,.*/\1/p' plain.txt))) folder/model.safetensors
}

# One rank: every line of output and every bit of the parameters.
model="--layers 3 --heads 4 --width 32 --context 32 --steps 20 --eval-every 10 --generate 16"
"$plain" $model --batch 8 --save plain.bin | sed 's/plain\.bin/FILE/' >plain.txt
"$sharded" $model --batch 8 --save one | sed 's/one$/FILE/' >sharded.txt
[ "$(grep -c ' loss ' plain.txt)" = 20 ] || fail "the plain trainer did not print 20 losses"
diff plain.txt sharded.txt || fail "the losses of one rank differ"
parameters plain.bin >left
exported one >right
[ "$(stat -c %s left)" -gt 100000 ] || fail "there are no parameters"
cmp left right || fail "the parameters of one rank differ"
echo "W = 1: $(grep 'step 20 loss' sharded.txt), parameters equal"

# Half of the run, and the rest of it from the checkpoint: parameters, moments and steps done go on to the same bits.
"$plain" $model --batch 8 --stop 10 --save half.bin >/dev/null
"$plain" $model --batch 8 --load half.bin --save whole.bin >rest.txt
[ "$(grep -c ' loss ' rest.txt)" = 10 ] || fail "the resumed run did not print 10 losses"
cmp plain.bin whole.bin || fail "plain, resumed: the parameters or moments differ"
losses() { sed -n 's/.*step \([0-9]*\) loss \(.*\)/\1 \2/p' "$1"; }
# resumes NAME COMMAND…: the same of the sharded one; the whole run's checkpoint is in $1, its output in ranks.txt.
resumes() {
  local whole=$1
  shift
  rm -rf half rest
  "$@" --stop 10 --save half >half.txt || fail "half of a run: $*"
  "$@" --load half --save rest >rest.txt || fail "the rest of a run: $*"
  [ "$(losses rest.txt)" = "$(losses ranks.txt | tail -n 10)" ] && [ "$(losses rest.txt | wc -l)" = 10 ] || fail "resumed, other losses: $*"
  "$TESSERA" ckpt diff "$whole" rest >diff.txt || fail "resumed, other parameters or moments: $* $(cat diff.txt)"
}
cp sharded.txt ranks.txt
resumes one "$sharded" $model --batch 8

# More ranks: the same global batches, so nearly the same losses; among themselves the same bits.
for ranks in 2 4; do
  runs=0
  for setting in "full scopes" "full scopes" "full none" "full size:20000" "full module:h.*" "grad_op scopes" "none scopes"; do
    read -r strategy wrap <<<"$setting"
    rm -rf ranks
    TESSERA_STRATEGY=$strategy TESSERA_WRAP=$wrap "$TESSERA" run -n $ranks -- "$sharded" $model \
      --batch $((8 / ranks)) --save ranks >ranks.txt || fail "W = $ranks, strategy $strategy, wrap $wrap"
    [ "$(losses ranks.txt | wc -l)" = 20 ] || fail "W = $ranks did not print 20 losses"
    if [ $runs = 0 ]; then
      mv ranks "first$ranks"
      losses ranks.txt | paste -d ' ' - <(losses plain.txt) | awk '{ d = ($2 - $4) / $4; if (d < 0) d = -d
        if ($1 != $3 || d > 1e-4) { print "step " $1 ": " $2 " and " $4; bad = 1 } } END { exit bad }' ||
        fail "W = $ranks: losses are not those of one rank"
    else
      "$TESSERA" ckpt diff "first$ranks" ranks >diff.txt || fail "W = $ranks, strategy $strategy, wrap $wrap: $(cat diff.txt)"
    fi
    runs=$((runs + 1))
  done
  echo "W = $ranks: $runs runs ended with the same parameters"
done

# N steps, save, load, N steps are 2N steps, whatever the ranks, strategy, offload and accumulation (its kernels read fp32, and
# activations are its own).
for setting in "2 full none 1" "3 none none 1" "4 hybrid:2 none 1" "4 hybrid_grad_op:2 cpu 1" "2 grad_op cpu 3"; do
  read -r ranks strategy offload accum <<<"$setting"
  export TESSERA_STRATEGY=$strategy TESSERA_OFFLOAD=$offload TESSERA_ACCUM=$accum
  rm -rf ranks
  "$TESSERA" run -n $ranks -- "$sharded" $model --batch 2 --save ranks >ranks.txt || fail "$setting"
  resumes ranks "$TESSERA" run -n $ranks -- "$sharded" $model --batch 2
done
unset TESSERA_STRATEGY TESSERA_OFFLOAD TESSERA_ACCUM
echo "resumed on 1 to 4 ranks: the same losses, parameters and moments"

# A lost rank is replaced, and the run ends with the parameters of one that lost none. It dies after the first lines.
tiny="--layers 1 --heads 2 --width 16 --context 16 --steps 2000 --eval-every 0 --generate 0 --batch 1"
recovers() { TESSERA_MIRROR=10 timeout 120 "$TESSERA" run -n 2 -- sh -c 'echo $$ >pid.$RANK; exec "$0" "$@"' "$sharded" $tiny "$@"; }
recovers --save unbroken >unbroken.txt || fail "a run with images"
recovers --save replaced >replaced.txt 2>replaced.err &
run=$!
until grep -q 'step 20 ' replaced.txt || ! kill -0 $run; do sleep 0.01; done
first=$(cat pid.1)
kill -9 "$first" || fail "the run ended before a rank was killed"
wait $run || fail "a lost rank ended the run: $(cat replaced.err)"
[ "$(cat pid.1)" != "$first" ] || fail "no process took the lost rank's place"
"$TESSERA" ckpt diff unbroken replaced >diff.txt || fail "recovered, other parameters or moments: $(cat diff.txt)"
echo "recovered: the same parameters and moments"

# Rank 0 is lost and nobody takes its place: another is rank 0 of the smaller group, and prints from there on.
rm -f pid.*
TESSERA_MIRROR=10 timeout 120 "$TESSERA" run --ranks 1:4 --replacements 0 -- sh -c 'echo $$ >pid.$RANK; exec "$0" "$@"' "$sharded" $tiny \
  --save smaller >smaller.txt 2>smaller.err &
run=$!
until grep -q 'step 20 ' smaller.txt || ! kill -0 $run; do sleep 0.01; done
kill -9 "$(cat pid.0)" || fail "the run ended before rank 0 was killed"
wait $run || fail "rank 0, lost, ended the run: $(cat smaller.err)"
grep -q '2 of 4 ranks go on' smaller.err || fail "no smaller group: $(cat smaller.err)"
[ "$(losses smaller.txt | cut -d ' ' -f 1 | sort -nu | wc -l)" = 2000 ] && tail -n 1 smaller.txt | grep -q '^\[[1-3]\] saved ' ||
  fail "without rank 0 nobody prints: $(tail -n 2 smaller.txt)"

# In deterministic mode from any number of ranks to any other: a step has 8 microbatches on all of them.
on() { # on RANKS OPTION…
  TESSERA_DETERMINISTIC=1 TESSERA_ACCUM=$((8 / $1)) "$TESSERA" run -n "$1" -- "$sharded" --layers 1 --heads 2 --width 16 \
    --context 16 --steps 4 --eval-every 0 --generate 0 --batch 1 "${@:2}" >on.txt || fail "on $*"
}
on 2 --save whole
pairs=0
for from in 1 2 4 8; do
  on $from --stop 2 --save "part$from"
  for to in 1 2 4 8; do
    [ $from != $to ] || continue
    rm -rf rest
    on $to --load "part$from" --save rest
    "$TESSERA" ckpt diff whole rest >diff.txt || fail "from $from to $to ranks: $(cat diff.txt)"
    pairs=$((pairs + 1))
  done
done
echo "deterministic: $pairs times on another number of ranks, with the same parameters and moments"

# What four ranks wrote, one rank reads; and what is no checkpoint of this model is refused.
"$sharded" $model --load first4 --save again >/dev/null || fail "one rank does not read the checkpoint of four"
"$TESSERA" ckpt diff first4 again >diff.txt || fail "a checkpoint of four ranks reads differently: $(cat diff.txt)"
code=0
"$sharded" $model --load nowhere 2>error.txt >/dev/null || code=$?
grep -q 'nowhere: No such file' error.txt && [ $code = 6 ] || fail "what is not there is not refused: $(cat error.txt)"
code=0
"$sharded" --layers 2 --width 32 --steps 0 --load first4 2>error.txt >/dev/null || code=$?
grep -q 'checkpoint of another model' error.txt && [ $code = 6 ] || fail "another model is not refused: $(cat error.txt)"

for ranks in 1 2; do
  "$TESSERA" run -n $ranks -- "$BUILD/examples/first/train" >first.txt
  awk '{ loss = $NF } END { print "first: last loss", loss; exit !(NR >= 5 && loss < 0.01) }' first.txt ||
    { cat first.txt; fail "examples/first at W = $ranks does not learn"; }
done
