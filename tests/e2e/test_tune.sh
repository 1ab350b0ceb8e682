#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# `tessera tune`: what it lists fits, has the peak that plan says, and runs; what cannot be is refused. `tessera plan
# --machine`, files that describe machines, and wrap=auto.
. "$SOURCE/tests/e2e/lib.sh"
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p'; }
unset TESSERA_DEVICE_MEMORY TESSERA_HOST_MEMORY TESSERA_MACHINE RANK WORLD_SIZE
export TESSERA_LOG=error TESSERA_THREADS=1
small="gpt --layers 2 --heads 2 --width 32 --context 16 --batch 2"

# Usage and bad machines.
expect 2 "$TESSERA" tune
expect 2 "$TESSERA" tune gpt mnist
expect 2 "$TESSERA" tune gpt --machine h100-9x-node
grep -q "did you mean 'h100-8x-node'" err || fail "no suggestion: $(cat err)"
expect 2 "$TESSERA" plan gpt --machine nothing-like-it
expect 2 "$TESSERA" plan gpt --from run.json
expect 6 "$TESSERA" plan gpt --machine ./missing.json
for text in '' '{}' '[1]' '{"name":3}' '{"memory_bytes_per_second":-1}' '{"memory_bytes_per_second":1e999}' \
  '{"memory_bytes_per_second":0}' '{"memory_bandwidth":1}' '{"memory_bytes_per_second":1e9,"algorithm":"star"}' \
  '{"memory_bytes_per_second":1e9,"within":{"latency":1}}' '{"memory_bytes_per_second":1e9} x' \
  '{"memory_bytes_per_second":1e9,"flops_share":2}' \
  '{"memory_bytes_per_second":1e9,"collectives":[{"op":"all_gather","ranks":1}]}'; do
  printf '%s' "$text" >bad.json
  expect 6 "$TESSERA" plan linear --machine ./bad.json
  [ "$(wc -l <err)" = 1 ] && grep -q '^tessera: error: ./bad.json: ' err || fail "of $text: $(cat err)"
done
printf '{"name":"x","memory_byte_per_second":3}' >bad.json
expect 6 "$TESSERA" plan linear --machine ./bad.json
grep -q 'expected "memory_bytes_per_second" where there is "memory_byte_per_second"' err || fail "the slip is not named: $(cat err)"
# A machine of GPUs is planned with the plugins that run there, where they are built; what is given stays.
if [ -e "$BUILD/plugins/libtessera-comm-nccl.so" ] && [ -e "$BUILD/plugins/libtessera-device-cuda.so" ]; then
  expect 0 "$TESSERA" plan $small -n 8 --machine h100-8x-node --json --quiet
  tail -n 1 out | grep -q '"comm":"nccl",.*"device":"cuda"' || fail "a GPU machine's plan: $(tail -n 1 out)"
  expect 0 "$TESSERA" plan $small -n 8 --machine h100-8x-node --comm gloo --json --quiet
  tail -n 1 out | grep -q '"comm":"gloo",.*"device":"cpu"' || fail "given options were changed: $(tail -n 1 out)"
fi
TESSERA_PLUGIN_PATH=$PWD TESSERA_LOG=warning expect 0 "$TESSERA" plan linear --machine h100-8x-node --quiet
# Two plans with equal figures are listed once.
expect 0 "$TESSERA" tune $small -n 2 --json --quiet
grep '"event":"candidate"' out | sed 's/.*"seconds":/"seconds":/' | sort | uniq -d >twice
[ ! -s twice ] || fail "listed twice: $(cat twice)"
echo '{"event":"step"}' >run.json
expect 6 "$TESSERA" plan linear --machine cpu-2-cores --from run.json

# A machine by hand: nothing costs but products, 2 x 9 x batch flops forward and the same for the weights in backward.
echo '{"name":"slow","memory_bytes_per_second":1e30,"flops_per_second":{"f32":36}}' >slow.json
expect 0 "$TESSERA" plan linear --batch 2 --machine ./slow.json --json --quiet
awk -v s="$(tail -n 1 out | field seconds)" 'BEGIN { exit !(s > 1.999999 && s < 2.000001) }' || fail "$(tail -n 1 out)"
grep -q '"event":"span","source":"simulated","step":1,"lane":"compute","op":"forward","unit":"linear","start":' out ||
  fail "no span: $(cat out)"
grep -q '"event":"time","machine":"slow","seconds":' out || fail "no time: $(cat out)"
# Measured times win, whatever the machine.
printf '{"event":"block","model":"linear batch=2 threads=1 f32","name":"linear","forward_seconds":3,"backward_seconds":4}\n' >run.json
expect 0 "$TESSERA" plan linear --batch 2 --machine ./slow.json --from run.json --json --quiet
awk -v s="$(tail -n 1 out | field seconds)" 'BEGIN { exit !(s > 6.999999 && s < 7.000001) }' || fail "$(tail -n 1 out)"

# What a decoder's backward makes again costs its forward, by each of two layers; the head never does.
for block in embed h.0 head; do
  echo '{"event":"block","model":"gpt batch=2 width=32 heads=2 context=16 threads=1 f32","name":"'$block'","forward_seconds":3,"backward_seconds":4}'
done >run.json
of_activations() {
  expect 0 "$TESSERA" plan $small --activations "$1" --machine ./slow.json --from run.json --json --quiet
  tail -n 1 out | field seconds
}
kept=$(of_activations keep) again=$(of_activations recompute) part=$(of_activations selective)
awk -v k="$kept" -v a="$again" -v p="$part" 'BEGIN { d = a - k; exit !(d > 5.999999 && d < 6.000001 && p > k + 1 && p < a - 1) }' ||
  fail "keep takes $kept s, recompute $again s, selective $part s"

# Whole matrices: owners share the products of an optimizer, and the tuner plans each of its lines with it.
if [ -e "$BUILD/plugins/libtessera-optimizer-muon.so" ]; then
  of_optimizer() { # OPTIMIZER RANKS
    expect 0 "$TESSERA" plan gpt --layers 4 --heads 2 --width 32 --context 16 --batch 2 --optimizer "$1" -n "$2" --comm gloo \
      --machine ./slow.json --json --quiet
    tail -n 1 out | field seconds
  }
  for n in 1 4; do echo "$n $(of_optimizer adamw $n) $(of_optimizer muon $n)"; done >owners
  awk '{ more[$1] = $3 - $2 } END { exit !(more[1] > 0 && more[4] >= more[1] / 4.000001 && more[4] < more[1] / 2) }' owners ||
    fail "owners' work: $(cat owners)"
  expect 0 "$TESSERA" tune $small --optimizer muon -n 2 --machine cpu-2-cores
  tail -n 1 out | grep -q "^tessera train gpt .*--optimizer muon" || fail "tune: $(tail -n 1 out)"
fi

# The tuner under a budget: what it lists fits, fastest first, and plan says the same of each.
expect 0 "$TESSERA" plan $small --machine cpu-2-cores --json --quiet
most=$(tail -n 1 out | field planned_peak_device_bytes)
budget=$((most * 3 / 4))
expect 0 "$TESSERA" tune $small --device-memory $budget --json --quiet
cp out listed
[ "$(grep -c '"event":"candidate".*"fits":true' listed)" -ge 5 ] || fail "too few fit: $(tail -n 1 listed)"
# Whole picoseconds, as the tuner compares: sums of the same times in another order differ by rounding.
grep '"fits":true' listed | field seconds | xargs printf '%.12f\n' | sort -gc || fail "not in order of time"
grep '"fits":true' listed | head -n 5 | while read -r line; do
  of() { echo "$line" | field "$1"; }
  "$TESSERA" plan $small --device-memory $budget --wrap "$(of wrap)" --strategy "$(of strategy)" \
    --activations "$(of activations)" --offload "$(of offload)" --precision "$(of precision)" \
    --prefetch "$(of prefetch)" --machine cpu-2-cores --json --quiet >planned 2>err || fail "does not fit: $line $(cat err)"
  for key in planned_peak_device_bytes planned_peak_host_bytes seconds; do
    [ "$(tail -n 1 planned | field $key)" = "$(of $key)" ] || fail "$key of $line, planned $(tail -n 1 planned)"
  done
  [ "$(of planned_peak_device_bytes)" -le $budget ] || fail "over the budget: $line"
done || exit 1
# The command of the first runs, in the memory it says.
command=$(tail -n 1 listed | field command)
expect 0 "$TESSERA" ${command#tessera } --steps 1 --json --quiet
[ "$(tail -n 1 out | field peak_device_bytes)" = "$(head -n 1 listed | field planned_peak_device_bytes)" ] ||
  fail "the first choice takes $(tail -n 1 out | field peak_device_bytes): $(head -n 1 listed)"
# Pasted, the command trains the model that was asked about: every option goes along, and a shell reads each as one word.
tessera() { "$TESSERA" "$@"; }
mkdir "a folder" && yes 'text of ours' | head -n 300 >"a folder/it's text.txt"
expect 0 tessera train gpt2 --layers 2 --heads 2 --width 16 --context 16 --steps 1 --quiet --export "a folder/gpt2"
given=(gpt2 --model "a folder/gpt2" --data "a folder/it's text.txt" --freeze 'embed.*,h.0.*' --seed 5 --batch 2 --steps 3
  --lr 0.01 --weight-decay 0.2 --clip 0.5 --precision fp32 --activations keep --offload none --deterministic)
expect 0 tessera train "${given[@]}" --quiet --json
want=$(tail -n 1 out | field params_digest)
expect 0 tessera tune "${given[@]}"
expect 0 eval "$(tail -n 1 out) --quiet --json"
[ -n "$want" ] && [ "$(tail -n 1 out | field params_digest)" = "$want" ] || fail "pasted it trains another model: $(tail -n 1 out)"
expect 0 tessera tune --precision fp32 --strategy full --activations keep -- "$BUILD/examples/first/train" "two words" --three
grep -q "^tessera plan -n 1.* -- [^ ]*/first/train 'two words' --three$" out || fail "a program's command: $(tail -n 1 out)"
expect 0 eval "$(tail -n 1 out)"
expect 3 tessera tune --wrap "module:$(printf 'x%.0s' {1..300})" linear
one_line err "tessera: error: --wrap: 307 characters, expected fewer than 256"
# What is given stays.
expect 0 "$TESSERA" tune $small --precision fp32 --offload none --json --quiet
! grep -q 'bf16\|"offload":"cpu"' out || fail "given options were changed: $(cat out)"
expect 0 "$TESSERA" tune $small -n 2 --precision fp16 --json --quiet
! grep '"event":"candidate"' out | grep -v '"precision":"fp16"' || fail "a candidate is not in fp16"
tail -n 1 out | field command | grep -q -- '--precision fp16' || fail "the command is not in fp16: $(tail -n 1 out)"
expect 4 "$TESSERA" tune $small --precision fp32 --offload none --device-memory 10KiB
grep -q 'fits: the least takes [0-9]* bytes of device memory' err || fail "$(cat err)"

# wrap=auto: the fewest units that fit; one byte less than the least does not.
expect 0 "$TESSERA" plan $small -n 1 --wrap auto:1GiB --json --quiet
[ "$(tail -n 1 out | field units)" -le 2 ] || fail "more units than needed: $(tail -n 1 out)"
expect 4 "$TESSERA" plan $small --wrap auto:1KiB --json --quiet
least=$(sed -n 's/.*the least takes \([0-9]*\)$/\1/p' err)
expect 0 "$TESSERA" plan $small --wrap auto:"$least" --json --quiet
[ "$(tail -n 1 out | field planned_peak_device_bytes)" = "$least" ] || fail "$(tail -n 1 out)"
expect 4 "$TESSERA" plan $small --wrap auto:$((least - 1)) --json --quiet
expect 0 "$TESSERA" train $small --wrap auto:"$least" --steps 1 --quiet
expect 3 "$TESSERA" plan linear --wrap auto:much
# Blocks measured in ranks; their times are taken.
expect 2 "$TESSERA" bench blocks mnistt
expect 2 "$TESSERA" bench --machine comm
expect 0 "$TESSERA" bench blocks linear --batch 2 --threads 1 --precision fp32 --json
grep -q '^{"event":"block","model":"linear batch=2 threads=1 f32","name":"linear","forward_seconds":[0-9.e-]*,"backward' out ||
  fail "no time of a block: $(cat out)"
cp out blocks.json
expect 0 "$TESSERA" plan linear --batch 2 --machine ./slow.json --from blocks.json --json --quiet
awk -v s="$(tail -n 1 out | field seconds)" 'BEGIN { exit !(s > 0 && s < 1) }' || fail "$(tail -n 1 out)"
echo "tuned plans fit, plan alike and run"
