#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# Eight bits on the wire: deterministic, one digest whatever the ranks, strategy, units, offload, activations and threads.
# Planned bytes are the measured ones and no step allocates. On the network at most 0.27 of fp32's bytes travel. A run
# goes on from its checkpoint, also on other ranks. What does not go together is one line.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
[ -f "$BUILD/plugins/libtessera-precision-wire8.so" ] || { echo "skip: precision-wire8 is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
head -c 3000 "$SOURCE/README.md" >text # the evaluation at the end is short
# Width 72: parameters end within a block of 256.
gpt="gpt --data text --layers 2 --width 72 --heads 2 --context 16 --batch 2 --steps 3 --clip 0.5"
model=$gpt
. "$SOURCE/tests/e2e/trains.sh"
same() {
  trains --precision $precision "$@"
  [ "$digest" = "$first" ] || fail "$precision: $* gives $digest, not $first"
}
trains --accum 8
fp32=$digest
others=$fp32
for precision in wire8 wire8:fp8 wire8:rounding=stochastic wire8:fp8,rounding=stochastic wire8:int8,compute=bf16 wire8:sends=parameters wire8:fp8,sends=gradients; do
  trains --precision $precision --accum 8
  first=$digest
  case "$others" in *"$first"*) fail "$precision has the digest of another: $first of $others" ;; esac
  others="$others $first"
  same -n 2 --accum 4
  same -n 2 --accum 4 --strategy none --sync end
  same -n 4 --accum 2 --wrap none --strategy hybrid:2
  case $precision in wire8 | wire8:fp8 | wire8:rounding=stochastic) ;; *) continue ;; esac
  same -n 2 --accum 4 --strategy grad_op --activations recompute
  same -n 2 --accum 4 --strategy none --threads 3
  same -n 8 --accum 1 --wrap 'module:h.*'
  same -n 8 --accum 1 --strategy hybrid:4
  same -n 8 --accum 1 --strategy none
  same -n 4 --accum 2 --sync end
  same -n 4 --accum 2 --sync end --strategy hybrid_grad_op:2
  same -n 4 --accum 2 --prefetch 2
  if [ -e "$BUILD/plugins/libtessera-offload-cpu.so" ]; then
    same -n 2 --accum 4 --offload cpu
    same --accum 8 --offload cpu:params
  fi
  rm -rf save
  same -n 2 --accum 4 --save save --save-every 2
  same -n 4 --accum 2 --resume save/step-000002
done
# Each leaf has draws of its own. Where every microbatch is the same, so is its gradient: rounded to nearest, eight are one. Draws
# that are the same for all leaves would leave it at that, whether one rank has the leaves or eight.
head -c 20000 /dev/zero | tr '\0' a > alike
alike="gpt --data alike --layers 2 --width 72 --heads 2 --context 16 --batch 1 --steps 3"
of_alike() { # OPTION…
  # shellcheck disable=SC2086
  "$TESSERA" train $alike --quiet --json "$@" > out 2> err || fail "exit code $?: train $*: $(head -c 600 err)"
  line=$(tail -n 1 out)
  field params_digest
}
for format in int8 fp8; do
  one=$(of_alike --precision wire8:$format) eight=$(of_alike --precision wire8:$format --accum 8)
  [ "$one" = "$eight" ] || fail "$format: eight microbatches that are the same are not one: $eight, $one"
  drawn=wire8:$format,sends=gradients,rounding=stochastic
  one=$(of_alike --precision $drawn) eight=$(of_alike --precision $drawn --accum 8)
  [ "$one" != "$eight" ] || fail "$drawn: all leaves have the same draws on one rank"
  [ "$(of_alike --precision $drawn -n 8)" = "$eight" ] || fail "$drawn: eight ranks draw otherwise than one"
done

# Not deterministic, one digest of each number of ranks, with and without accumulation, its sum sent or its leaves.
unset TESSERA_DETERMINISTIC
for precision in wire8 wire8:fp8; do for more in "--accum 1" "--accum 2 --sync each" "--accum 2 --sync end"; do
  # shellcheck disable=SC2086
  trains --precision $precision -n 3 $more
  first=$digest
  for strategy in grad_op none; do
    # shellcheck disable=SC2086
    same -n 3 $more --strategy $strategy
  done
  # shellcheck disable=SC2086
  trains --precision $precision -n 4 $more
  first=$digest
  for strategy in none hybrid:2; do
    # shellcheck disable=SC2086
    same -n 4 $more --strategy $strategy
  done
done; done

# What the network counts, of steps alone: longer runs less shorter ones.
counted() { # precision OPTION…: bytes that a loopback of its own carried for 3 steps
  for steps in 2 5; do
    unshare -Urn bash -c 'ip link set lo up && "$@" > out 2> err && awk "/lo:/ { print \$2 }" /proc/net/dev' - \
      "$TESSERA" train gpt --data text --layers 2 --width 128 --heads 2 --context 16 --batch 1 --steps $steps -n 4 --comm gloo --quiet --precision "$@"
  done | awk 'NR == 1 { first = $1 } END { print NR == 2 ? $1 - first : "none" }'
}
if unshare -Urn ip link set lo up 2> /dev/null; then
  for options in "" "--strategy none" "--strategy hybrid:2 --accum 2 --sync end"; do
    # shellcheck disable=SC2086
    wide=$(counted fp32 $options) thin=$(counted wire8:fp8 $options)
    [ "$wide" != none ] && [ "$thin" != none ] && [ $((thin * 100)) -le $((wide * 27)) ] ||
      fail "wire8 sends $thin bytes, fp32 $wide, with $options"
    echo "on the network: $thin bytes, in fp32 $wide, with ${options:-strategy full}"
  done
else
  echo "no network of its own here: bytes are not counted"
fi

# The simulator prices it: over 100 Mbit/s a step takes at most 0.4 of fp32's, whatever the strategy. `tune` keeps it.
echo '{"name":"slow","device":"cpu","memory_bytes_per_second":1e10,"flops_per_second":{"f32":1e11},
  "within":{"latency_seconds":1e-4,"bytes_per_second":1.25e7}}' > slow.json
simulated() { # microseconds
  "$TESSERA" plan gpt --layers 4 --width 256 --heads 4 -n 4 --machine ./slow.json --json --quiet "$@" > out 2> err || fail "plan $*: $(cat err)"
  sed -n 's/.*"event":"plan".*"seconds":\([0-9.]*\).*/\1/p' out | awk '{ printf "%d", $1 * 1e6 }'
}
for options in "--strategy full" "--strategy none" "--strategy hybrid:2" "--accum 2 --sync end"; do
  # shellcheck disable=SC2086
  wide=$(simulated --precision fp32 $options) thin=$(simulated --precision wire8 $options)
  [ $((thin * 10)) -le $((wide * 4)) ] || fail "simulated with $options: ${thin:-nothing} us, fp32 $wide"
done
expect 0 "$TESSERA" tune gpt --layers 2 -n 2 --machine ./slow.json --precision wire8 --json --quiet
! grep '"event":"candidate"' out | grep -v '"precision":"wire8"' || fail "a candidate is not in wire8"

refuses() { # code text OPTION…
  local code=$1 text=$2
  shift 2
  # shellcheck disable=SC2086
  expect "$code" "$TESSERA" train $gpt --quiet "$@"
  [ "$(wc -l < err)" = 1 ] && grep -q -- "$text" err || fail "$*: $(cat err)"
}
refuses 3 'precision wire8: .*"fp16"' --precision wire8:fp16
refuses 3 'precision wire8: both int8 and fp8' --precision wire8:int8,fp8
refuses 3 "expected one of all|parameters|gradients" --precision wire8:sends=none
refuses 3 "precision wire8" --precision wire8:compute=fp16
refuses 3 "expected one of nearest|stochastic" --precision wire8:rounding=up
