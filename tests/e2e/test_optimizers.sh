#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 400
# processors: 2
# Optimizer plugins. Deterministic, one digest of each whatever the ranks, strategy, units, offload, threads and precision of
# the wire's copy; planned bytes are the measured ones and no step allocates but for a save. Checkpoints hold the states by name: a run goes
# on from them on other ranks, also after `ckpt reshard`, and another optimizer refuses them. What a plugin says wrongly is
# one line.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
faulty=$BUILD/tests/conformance/bad/faulty
head -c 3000 "$SOURCE/README.md" >text # the evaluation at the end is short
# Width 72: parameters end within a block of 256, and some are below 4096 elements.
gpt="gpt --data text --layers 2 --width 72 --heads 2 --context 16 --batch 2 --steps 4 --clip 0.5"
model=$gpt
. "$SOURCE/tests/e2e/trains.sh"
same() {
  trains --optimizer $optimizer "$@"
  [ "$digest" = "$first" ] || fail "$optimizer: $* gives $digest, not $first"
}
trains --accum 4
adamw=$digest
# Beside those that come with Tessera one with states of rows.
rows=$BUILD/tests/conformance/rows
[ ! -e "$rows/libtessera-optimizer-rows.so" ] || export TESSERA_PLUGIN_PATH=${TESSERA_PLUGIN_PATH:-$BUILD/plugins}:$rows
for plugin in $(ls "$BUILD/plugins" "$rows" 2> /dev/null | grep '^libtessera-optimizer-.*[.]so$'); do
  optimizer=${plugin#libtessera-optimizer-} optimizer=${optimizer%.so}
  trains --optimizer $optimizer --accum 4
  first=$digest
  [ "$(field optimizer)" = $optimizer ] && [ "$first" != "$adamw" ] || fail "$optimizer: $line"
  same -n 2 --accum 2
  same -n 4 --accum 1 --strategy grad_op
  same -n 4 --accum 1 --wrap none
  same -n 4 --accum 1 --wrap 'module:h.*' --strategy hybrid:2
  same -n 2 --accum 2 --strategy none --threads 3
  same --accum 4 --threads 2 --activations recompute
  if [ -e "$BUILD/plugins/libtessera-offload-cpu.so" ]; then
    same -n 2 --accum 2 --offload cpu
    same --accum 4 --offload cpu:optimizer
  fi
  TESSERA_GRAPHS=0 same --accum 4
  trains --optimizer $optimizer --steps 2 --batch 1 --accum 24
  one=$digest
  while read -r w sync; do # ranks, or the microbatches of each, are a power of two: the same tree of 24 (docs/numbers.md)
    trains --optimizer $optimizer --steps 2 --batch 1 --accum $((24 / w)) -n $w --sync $sync
    [ "$digest" = "$one" ] || fail "$optimizer: $digest on $w ranks, $one on one"
  done < <(printf '%s\n' '2 each' '3 end' '4 each' '6 end' '8 each')
  # Saved on 2 ranks, gone on with on 4, on 1, and after reshard; the whole run in one piece has the same bits.
  rm -rf save two
  same -n 2 --accum 2 --save save --save-every 2
  half=save/step-000002
  same -n 4 --accum 1 --resume $half --strategy hybrid:2
  same --accum 4 --resume $half
  expect 0 "$TESSERA" ckpt verify $half
  expect 0 "$TESSERA" ckpt reshard $half two --to 3
  expect 0 "$TESSERA" ckpt diff $half two
  same -n 2 --accum 2 --resume two
  # shellcheck disable=SC2086
  expect 6 "$TESSERA" train $gpt --quiet --optimizer adamw --accum 4 --resume $half
  [ "$(wc -l < err)" = 1 ] && grep -q "saved with optimizer $optimizer, this run has adamw" err || fail "another optimizer: $(cat err)"
  expect 0 "$TESSERA" ckpt verify $half
done

# A run that goes on compares values of options: by which path or name the plugin was found makes no difference, nor how a value
# was given, and one that differs is named.
lion=$BUILD/plugins/libtessera-optimizer-lion.so
goes_on() { # shellcheck disable=SC2086
  TESSERA_LOG=warning "$TESSERA" train $gpt --quiet --accum 4 --resume save/step-000002 --optimizer "$@" > out 2> err || fail "$*: $(cat err)"
}
if [ -e "$lion" ]; then
  rm -rf save
  expect 0 "$TESSERA" train $gpt --quiet --accum 4 --optimizer "$lion" --save save --save-every 2
  for same in lion "lion:beta1=0.90" "$lion:beta2=.99"; do
    goes_on "$same"
    [ ! -s err ] || fail "--resume with $same: $(cat err)"
  done
  TESSERA_LION_BETA1=0.9 goes_on lion
  [ ! -s err ] || fail "--resume with the value that it had: $(cat err)"
  differs="this run has lion-beta1=0.5, the one that saved had lion-beta1=0.9: other bits from here on"
  TESSERA_LION_BETA1=0.5 goes_on lion
  grep -qF -- "$differs" err || fail "--resume with another beta1: $(cat err)"
  goes_on lion:beta1=0.7,beta1=0.5
  grep -qF -- "$differs" err || fail "--resume with another beta1 behind the colon: $(cat err)"
  "$TESSERA" ckpt show save | grep -A 1 '  h\.0\.attn\.c_attn\.weight ' | grep -qx '    state 0 exp_avg: F32, 15552 values' ||
    fail "ckpt show: $("$TESSERA" ckpt show save | head -4)"
fi

# `plugins info` says the grain of each, for a large matrix, and the names of its states.
says_grain() { # NAME GRAIN STATES
  "$TESSERA" plugins info "$1" --json > out || fail "plugins info $1: $?"
  grep -q "\"grain\":\[\"$2\"\],\"states\":\[$3\]" out || fail "plugins info $1: $(cat out)"
}
says_grain lion element '"exp_avg"'
says_grain adamw8bit block '"[a-z_0-9]*","[a-z_0-9]*","[a-z_0-9]*","[a-z_0-9]*"'
says_grain muon matrix '"[a-z_0-9]*"'
if [ -e "$rows/libtessera-optimizer-rows.so" ]; then
  says_grain rows matrix '"momentum","second"'
  TESSERA_ROWS_MATRICES=0 says_grain rows row '"momentum","second"'
fi

# States of 8 bits take at most 2.1 bytes an element in all, as planned and as measured.
trains --optimizer adamw8bit --layers 1 --width 256 --steps 3
for source in planned measured; do
  state=$(sed -n 's/.*"source":"'$source'","pass":"clip",.*"point":"before_optimizer".*"optimizer_state":\([0-9]*\).*/\1/p' out | sort -n | tail -n 1)
  elements=$(sed -n 's/^{"event":"start".*"parameters":\([0-9]*\).*/\1/p' out)
  [ -n "$state" ] && [ $((state * 10)) -le $((elements * 21)) ] || fail "adamw8bit: $state bytes $source, $elements elements"
done

# The same through bf16 and its low copies: each has its own bits, on any ranks.
for low in 0 1; do
  TESSERA_LOW_COPY=$low trains --optimizer lion --precision bf16 --accum 4
  bf16=$digest
  TESSERA_LOW_COPY=$low trains --optimizer lion --precision bf16 -n 4 --accum 1
  [ "$digest" = "$bf16" ] || fail "bf16, low copies $low: $digest on 4 ranks, not $bf16"
done

# Rows end where blocks of 256 bytes of the wire do.
if [ -e "$rows/libtessera-optimizer-rows.so" ] && [ -e "$BUILD/plugins/libtessera-precision-wire8.so" ]; then
  trains --optimizer rows --precision wire8 --accum 4
  first=$digest
  trains --optimizer rows --precision wire8 -n 4 --strategy hybrid:2
  [ "$digest" = "$first" ] || fail "rows, wire8: $digest on four ranks, not $first"
fi

# What a step leaves is looked through, as after a device's kernel.
# shellcheck disable=SC2086
expect 1 "$TESSERA" train $gpt --clip 0 --quiet --optimizer lion --lr 900000 --weight-decay 1e6
grep -q 'step [0-9]* leaves values that are not finite: rank 0, unit .*TESSERA_ON_NAN' err || fail "NaN: $(cat err)"

# A setting of the user's counts; a bad one, and an unknown optimizer, are one line.
trains --optimizer lion:beta1=0.5,beta2=0.6 --accum 4
[ "$digest" != "$first" ] || fail "lion:beta1 changes nothing"
first=$digest
TESSERA_LION_BETA1=0.5 TESSERA_LION_BETA2=0.6 trains --optimizer lion --accum 4
[ "$digest" = "$first" ] || fail "the variables of lion are not its settings"
trains --optimizer lion --beta1 0.5 --beta2 0.6 --accum 4
[ "$digest" = "$first" ] || fail "lion does not get --beta1 and --beta2"
# A number that a plugin says it does not take is refused, by which name or way it comes; one that does not say takes all.
# shellcheck disable=SC2086
for numbers in "lion --eps 1e-6" "$lion --momentum 0.5" "adamw8bit --momentum 0.5"; do
  expect 3 "$TESSERA" train $gpt --quiet --optimizer $numbers
  set -- $numbers
  one_line err "tessera: error: ${2#--} is set, but the optimizer $1 does not take it"
done
# shellcheck disable=SC2086
TESSERA_EPS=1e-6 expect 3 "$TESSERA" train $gpt --quiet -n 2 --optimizer lion
grep -qx "tessera: error: eps is set, but the optimizer lion does not take it" err || fail "TESSERA_EPS: $(cat err)"
trains --optimizer muon --momentum 0.8 --beta1 0.8 --beta2 0.9 --eps 1e-6 --accum 4
[ ! -e "$rows/libtessera-optimizer-rows.so" ] || trains --optimizer rows --beta1 0.8 --momentum 0.5 --accum 4
# Where all parameters are small to it, adamw8bit is AdamW, bit by bit.
gpt="mnist $(brief_digits) --steps 2 --batch 4" model=$gpt
trains --optimizer adamw
first=$digest
TESSERA_ADAMW8BIT_LEAST=1000000000 trains --optimizer adamw8bit
[ "$digest" = "$first" ] || fail "adamw8bit with fp32 states is not adamw: $digest, $first"
# Rows of 9216 elements, which are more than a piece usually has.
if [ -e "$rows/libtessera-optimizer-rows.so" ]; then
  trains --optimizer rows --accum 2 --seed 3
  first=$digest
  trains --optimizer rows -n 2 --seed 3
  [ "$digest" = "$first" ] || fail "long rows: $digest on two ranks, not $first"
fi
# Each option has a type, bounds and a default, which `plugins info` shows. A value behind the colon or of the variable that does
# not fit is one line with what was expected, and so is an option that is not there.
not_taken() { # PLUGIN SETTING TEXT
  [ -e "$BUILD/plugins/libtessera-optimizer-$1.so" ] || return 0
  # shellcheck disable=SC2086
  expect 3 "$TESSERA" train $gpt --quiet --optimizer "$1:$2"
  [ "$(wc -l < err)" = 1 ] && grep -qF -- "optimizer $1: $3" err || fail "$1:$2: $(cat err)"
  local variable=TESSERA_${1^^}_${2%%=*} code=0
  # shellcheck disable=SC2086
  env "${variable^^}=${2#*=}" "$TESSERA" train $gpt --quiet --optimizer "$1" > out 2> err || code=$?
  [ $code = 3 ] && [ "$(wc -l < err)" = 1 ] && grep -qF -- "${variable^^} is " err || fail "${variable^^}=${2#*=}: $code, $(cat err)"
}
number='expected a finite number from 0 to 0.999999'
not_taken lion beta1=2 "beta1 is \"2\", $number"
not_taken lion beta2=half "beta2 is \"half\", $number"
not_taken lion gamma=1 '"gamma=1" is no setting, expected beta1=…, beta2=…'
not_taken muon momentum=1 "momentum is \"1\", $number"
not_taken muon nesterov=maybe 'nesterov is "maybe", expected 0, 1, no'
not_taken muon scale=big 'scale is "big", expected one of match_rms_adamw|original'
not_taken muon steps=0 'steps is "0", expected an integer from 1 to 20'
not_taken muon steps=21 'steps is "21", expected an integer from 1 to 20'
not_taken adamw8bit least=-1 'least is "-1", expected an integer from 0 to 1e+15'
not_taken adamw8bit least=1.5 'least is "1.5", expected an integer from 0 to 1e+15'
# Ranks with other values would end in other bits: both sides are named, however a value was given.
differs() { # OPTIMIZER VARIABLE=VALUE TEXT: of rank 1
  [ -e "$BUILD/plugins/libtessera-optimizer-$1.so" ] || return 0
  # shellcheck disable=SC2016,SC2086
  expect 3 env OTHER="$2" "$TESSERA" run -n 2 -- sh -c '[ "$RANK" = 0 ] || export "$OTHER"; exec "$@"' sh \
    "$TESSERA" train $gpt --quiet --optimizer "$1"
  grep -q -- "the ranks differ.*$3" err || fail "$1, rank 1 with $2: $(cat err)"
}
differs lion TESSERA_LION_BETA1=0.5 'rank 0 has lion-beta1=0.9, rank 1 has lion-beta1=0.5'
differs muon TESSERA_MUON_STEPS=3 'rank 0 has muon-steps=5, rank 1 has muon-steps=3'
differs adamw8bit TESSERA_ADAMW8BIT_LEAST=64 'rank 0 has adamw8bit-least=4096, rank 1 has adamw8bit-least=64'
for shown in 'lion|LION_BETA1 (number: a finite number from 0 to 0.999999, default 0.9)' \
  'muon|MUON_SCALE (choice: one of match_rms_adamw|original, default match_rms_adamw)' \
  'muon|MUON_STEPS (integer: an integer from 1 to 20, default 5)' 'adamw8bit|ADAMW8BIT_LEAST (integer: an integer from 0 to 1e+15, default 4096)'; do
  [ ! -e "$BUILD/plugins/libtessera-optimizer-${shown%%|*}.so" ] || "$TESSERA" plugins info "${shown%%|*}" | grep -qF "  TESSERA_${shown#*|}" ||
    fail "plugins info: no $shown: $("$TESSERA" plugins info "${shown%%|*}")"
done
expect 3 "$TESSERA" train $gpt --quiet --optimizer rmsprop
grep -q "optimizer.*rmsprop" err || fail "an unknown optimizer: $(cat err)"
[ -e "$faulty/optimizer_none.so" ] || exit 0
says() { # says FAULT CODE TEXT
  expect "$2" "$TESSERA" train $gpt --quiet --optimizer "$faulty/optimizer_$1.so"
  [ "$(wc -l < err)" = 1 ] && grep -q -- "$3" err || fail "$1: $(cat err)"
}
says grain_of_zero 3 'parameter ".*": optimizer faulty states no grain that is known'
says block_of_zero 3 'optimizer faulty states a block that is no power of two'
says state_of_half_a_block 3 'optimizer faulty states a state'
says states_alike 3 'optimizer faulty states two states of one name'
says kernel_with_other_states 3 "optimizer faulty names a kernel, and other states than the kernel's"
says step_fails 3 'optimizer faulty: no steps today'
says matrix_of_no_rows 3 'optimizer faulty states a matrix of which the parameter is no stack'
says matrix_without_work 3 'optimizer faulty states the grain of a matrix without .matrix. for it'
says matrix_fails 3 'optimizer faulty: no matrices today'
# A crash in a plugin's step ends the rank by its signal, and a line names the plugin and the parameter, from any thread.
crashes() { # crashes FAULT TEXT OPTION…: on one rank, which nobody watches; then on two
  local fault=$1 text=$2 parameter='parameter "[a-z0-9._]*"' code=0
  shift 2
  # shellcheck disable=SC2086
  "$TESSERA" train $gpt --quiet --optimizer "$faulty/optimizer_$fault.so" "$@" > out 2> err || code=$?
  [ $code -gt 128 ] && grep -Eqx "tessera(\[0\])?: error: optimizer faulty: its ${text/PARAMETER/$parameter}" err || fail "$fault: $code, $(cat err)"
  # shellcheck disable=SC2086
  expect 5 "$TESSERA" train $gpt --quiet --optimizer "$faulty/optimizer_$fault.so" -n 2 "$@"
  grep -Eqx "tessera\[[01]\]: error: optimizer faulty: its ${text/PARAMETER/$parameter}" err || fail "$fault on two ranks: $(cat err)"
  grep -q 'tessera: error: rank [01] was killed by signal' err || fail "$fault on two ranks: $(cat err)"
}
if [ -z "$SANITIZE" ]; then # a sanitizer tells of a crash itself
  ulimit -c 0
  crashes step_crashes 'step of PARAMETER ended with signal 11 \(Segmentation fault\)'
  crashes step_crashes 'step of PARAMETER ended with signal 11 \(Segmentation fault\)' --threads 4
  [ "$(uname -m)" != x86_64 ] || crashes matrix_divides 'matrix of PARAMETER ended with signal 8 \(Floating point exception\)' --threads 3
fi
