#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# What PyTorch's FSDP tutorial shows on mnist: the peak falls from data parallel to sharded to sharded with wrapping; units
# of 100 elements and CPU offload end with the same parameters; StepLR takes 0.7 of the rate each epoch. And gpt's schedule,
# a linear rise and a cosine to a tenth.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-shm.so" ] || { echo "skip: comm-shm is not built here"; exit 77; }
"$TESSERA" train --help 2>/dev/null | grep -q mnist || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1 TESSERA_COMM=shm
digits=$(brief_digits)

# Eight black digits to train on and to test with: IDX files.
mkdir idx
for set in train t10k; do
  { printf '\0\0\10\3\0\0\0\10\0\0\0\34\0\0\0\34' && head -c $((8 * 28 * 28)) /dev/zero; } >idx/$set-images-idx3-ubyte
  printf '\0\0\10\1\0\0\0\10\0\1\2\3\4\5\6\7' >idx/$set-labels-idx1-ubyte
done

value() { sed -n 's/.*"event":"summary".*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' out; }
mnist() { # OPTION…: sets peak, host and digest
  expect 0 "$TESSERA" train mnist $digits -n 2 --steps 2 --batch 4 --quiet --json "$@"
  peak=$(value peak_device_bytes) host=$(value peak_host_bytes) digest=$(value params_digest)
  [ "$peak" -gt 0 ] && [ "$peak" = "$(value planned_peak_device_bytes)" ] || fail "$*: peak $peak, planned $(value planned_peak_device_bytes)"
  [ "$digest" = "${first:=$digest}" ] || fail "$*: digest $digest, expected $first"
  echo "mnist $*: $peak bytes, host $host"
}
mnist --strategy none
replicated=$peak
mnist --wrap none
whole=$peak
[ "$whole" -lt "$replicated" ] || fail "sharded needs $whole, data parallel $replicated"
mnist --wrap scopes
wrapped=$peak
[ "$wrapped" -lt "$whole" ] || fail "with wrapping $wrapped, without $whole"
mnist --wrap size:100 # each of the four layers has more
[ "$peak" = "$wrapped" ] || fail "size:100 needs $peak, scopes $wrapped"
# 1,199,882 parameters: two of four fp32 numbers of each, and of a gradient, leave the device.
mnist --offload cpu
[ "$peak" -lt $((wrapped - 1199882 * 4)) ] && [ "$host" -gt $((1199882 * 4 * 3 / 2)) ] || fail "offload: device $peak of $wrapped, host $host"

# rates FORMULA-OF-STEP, in awk, s from 0: every step's rate, to the last digit that double precision has.
rates() {
  sed -n 's/.*"event":"step","step":\([0-9]*\),.*"lr":\([^,}]*\).*/\1 \2/p' out | awk "
    { s = \$1 - 1; want = $1; if (want != \$2 && (want - \$2) ^ 2 > (1e-15 * want) ^ 2) { print \"step\", \$1, \$2, \"expected\", want; bad = 1 } }
    END { exit bad || NR != $2 }" || fail "rates: $(grep '"step"' out | head -20)"
}
for ranks in 1 2; do
  expect 0 "$TESSERA" train mnist -n $ranks --data idx --batch $((4 / ranks)) --epochs 3 --lr 0.5 --quiet --json
  rates '0.5 * 0.7 ^ int(s / 2)' 6
done
expect 0 "$TESSERA" train gpt $(brief_text) --layers 1 --heads 1 --width 16 --context 8 --batch 1 --steps 40 --lr 0.002 --quiet --json
rates 's < 4 ? 0.002 * (s + 1) / 5 : 0.002 * (0.1 + 0.45 * (1 + cos(3.14159265358979 * (s - 4) / 36)))' 40
# Other schedules by option; a run that goes on from a checkpoint has the rates of one that was never interrupted.
tiny=(train gpt $(brief_text) --layers 1 --heads 1 --width 16 --context 8 --batch 1 --sample 0 --quiet --json --lr 0.002)
expect 0 "$TESSERA" "${tiny[@]}" --steps 20 --schedule wsd --warmup 3 --min-lr 0.001
rates 's < 3 ? 0.002 * (s + 1) / 4 : s < 18 ? 0.002 : 0.002 * (0.5 + 0.5 * (1 - (s - 18) / 2))' 20
expect 0 "$TESSERA" "${tiny[@]}" --steps 5 --schedule constant --warmup 0
rates 0.002 5
expect 0 "$TESSERA" "${tiny[@]}" --steps 20 --schedule linear --warmup 4 --min-lr 0 --save run --save-every 10
rates 's < 4 ? 0.002 * (s + 1) / 5 : 0.002 * (1 - (s - 4) / 16)' 20
grep '"event":"step"' out | tail -n 10 | sed 's/.*"step":\([0-9]*\),.*"lr":\([^,}]*\).*/\1 \2/' >whole
whole=$(value params_digest)
expect 0 "$TESSERA" "${tiny[@]}" --steps 20 --schedule linear --warmup 4 --min-lr 0 --resume run/step-000010
grep '"event":"step"' out | sed 's/.*"step":\([0-9]*\),.*"lr":\([^,}]*\).*/\1 \2/' | cmp - whole && [ "$(value params_digest)" = "$whole" ] ||
  fail "resumed: $(grep '"step"' out)"
TESSERA_LOG=warning expect 0 "$TESSERA" "${tiny[@]}" --steps 20 --schedule linear --warmup 2 --resume run/step-000010
grep -q 'this run has warmup=2 min-lr=auto, the one that saved had warmup=4 min-lr=0: other bits' err || fail "another schedule: $(cat err)"
# Groups with a rate and schedule of their own. One of all parameters is the same as the options of the run.
of_step() { sed -n 's/.*"event":"step","step":\([0-9]*\),.*"group_lr":\[\([^]]*\)\].*/\1 \2/p' out; }
for ranks in 1 2; do
  expect 0 "$TESSERA" "${tiny[@]}" -n $ranks --steps 8 --schedule wsd --warmup 3 --min-lr 0.001 --weight-decay 0
  whole=$(value params_digest)
  expect 0 "$TESSERA" "${tiny[@]}" -n $ranks --steps 8 --lr 1 --schedule linear --warmup 0 --weight-decay 0.5 \
    --groups '*:lr=0.002,schedule=wsd,warmup=3,min-lr=0.001,weight-decay=0'
  [ "$(value params_digest)" = "$whole" ] || fail "$ranks ranks: a group of all parameters is not the run"
done
# Biases and normalisations decay only in a group that says so.
expect 0 "$TESSERA" "${tiny[@]}" --steps 4 --weight-decay 0.5
whole=$(value params_digest)
expect 0 "$TESSERA" "${tiny[@]}" --steps 4 --weight-decay 0.5 --groups '*:lr=0.002'
[ "$(value params_digest)" = "$whole" ] || fail "a group decays what the run does not"
expect 0 "$TESSERA" "${tiny[@]}" --steps 4 --groups '*:weight-decay=0.5'
[ "$(value params_digest)" != "$whole" ] || fail "a group's decay leaves vectors out"
# A rate of 0 leaves parameters as they are, as frozen ones.
expect 0 "$TESSERA" "${tiny[@]}" --steps 4 --clip 0 --freeze 'h.0.*,embed.wpe.*'
whole=$(value params_digest)
expect 0 "$TESSERA" "${tiny[@]}" --steps 4 --clip 0 --groups 'h.0.*,embed.wpe.*:lr=0'
[ "$(value params_digest)" = "$whole" ] || fail "a rate of 0 is not that of frozen parameters"
# Each step's rates, a resumed run's too; the first pattern that fits wins; another text of groups is told.
grouped=("${tiny[@]}" --steps 20 --schedule linear --warmup 4 --min-lr 0)
groups='embed.*:lr=0.001,schedule=constant,warmup=0; h.0.ln*:weight-decay=0.25,min-lr=0.001;*:lr=0.004'
expect 0 "$TESSERA" "${grouped[@]}" --groups "$groups" --save groups --save-every 10
grep -q '"groups":\[{"names":"embed.\*","schedule":"constant","lr":0.001,"warmup":0,"min_lr":0,"weight_decay":0.1\(0*[0-9]*\)},{"names":"h.0.ln\*","schedule":"linear","lr":0.002,"warmup":4,"min_lr":0.001,"weight_decay":0.25},{"names":"\*",' out ||
  fail "groups: $(grep '"start"' out)"
of_step | awk -F'[ ,]' '
  function line(p, s) { return s < 4 ? (s + 1) / 5 : p + (1 - p) * (1 - (s - 4) / 16) }
  function differ(a, b) { return (a - b) ^ 2 > (1e-15 * b) ^ 2 }
  { s = $1 - 1; if (NF != 4 || $2 != 0.001 || differ($3, 0.002 * line(0.5, s)) || differ($4, 0.004 * line(0, s))) { print; bad = 1 } }
  END { exit bad || NR != 20 }' || fail "rates of groups: $(of_step)"
of_step | tail -n 10 >whole_rates
whole=$(value params_digest)
expect 0 "$TESSERA" "${grouped[@]}" --groups "$groups" --resume groups/step-000010
of_step | cmp - whole_rates && [ "$(value params_digest)" = "$whole" ] || fail "resumed with groups: $(of_step)"
TESSERA_LOG=warning expect 0 "$TESSERA" "${grouped[@]}" --groups '*:lr=0.004' --resume groups/step-000010
grep -qF "this run has groups=*:lr=0.004, the one that saved had groups=embed.*:lr=0.001,schedule=constant,warmup=0;h.0.ln*:weight-decay=0.25" err ||
  fail "other groups: $(cat err)"
TESSERA_LOG=warning expect 0 "$TESSERA" "${grouped[@]}" --resume groups/step-000010
grep -q 'this run has groups=none, the one that saved had groups=embed' err || fail "no groups: $(cat err)"
# Adam's other numbers: PyTorch's defaults, said, are the same bits; others are not, and each is refused where there is none.
expect 0 "$TESSERA" "${tiny[@]}" --steps 3 --optimizer adam
usual=$(value params_digest)
for option in "--beta1 0.9" "--beta2 0.999" "--eps 1e-8" "--beta1 0.8" "--beta2 0.9" "--eps 1e-3"; do
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" "${tiny[@]}" --steps 3 --optimizer adam $option
  same=0
  [ "$(value params_digest)" != "$usual" ] || same=1
  case "$option" in *0.9|*0.999|*1e-8) want=1 ;; *) want=0 ;; esac
  [ "$option" != "--beta2 0.9" ] || want=0
  [ $same = $want ] || fail "$option: same as the usual: $same, expected $want"
done
refused() { # LINE OPTION…
  expect 3 "$TESSERA" "${tiny[@]}" --steps 1 "${@:2}"
  one_line err "tessera: error: $1"
}
refused "beta1 is set, but only adam, adamw and plugins have one and the optimizer is sgd" --optimizer sgd --beta1 0.5
refused "beta2 is 1, expected a number above 0 and below 1" --beta2 1
refused "min-lr is set, but only linear, cosine and wsd end with it and schedule is constant" --schedule constant --min-lr 0
refused "min-lr is 1, expected a rate from 0 to lr, 0.002" --min-lr 1
refused "schedule is step, which falls with each epoch, but gpt counts steps" --schedule step
refused "groups 'h.*': min-lr is 1, expected a rate from 0 to lr, 0.002" --groups 'h.*:min-lr=1'
refused "groups 'h.*': min-lr is set, but only linear, cosine and wsd end with it and schedule is constant" --groups 'h.*:schedule=constant,min-lr=0'
refused "groups 'h.*': schedule is step, which falls with each epoch, but gpt counts steps" --groups 'h.*:schedule=step'
refused "groups: gpt trains no parameter of the name \"x.*\" that is in no group yet" --groups 'h.*,x.*:lr=1'
refused "groups: gpt trains no parameter of the name \"h.0.*\" that is in no group yet" --groups 'h.*:lr=1;h.0.*:lr=1'
many='embed.wte.*:lr=1'
for i in 1 2 3 4 5 6 7 8; do many="$many;h.0.*:lr=$i"; done
refused "groups: more than 8" --groups "$many"
for text in 'h.*' ':lr=1' 'h.*:' 'h.*:rate=1' 'h.*:lr' 'h.*:lr=fast' 'h.*:lr=-1' 'h.*:warmup=-1' 'h.*:warmup=0.5' 'h.*:schedule=wds'; do
  expect 3 "$TESSERA" "${tiny[@]}" --steps 1 --groups "$text"
  [ "$(wc -l <err)" = 1 ] && grep -q "^tessera: error: groups '.*expected NAMES:KEY=VALUE,… with lr, schedule, warmup, min-lr or weight-decay, and ';' between groups" err || fail "$text: $(cat err)"
done
nothing_left
