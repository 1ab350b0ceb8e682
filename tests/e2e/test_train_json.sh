#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# What --json writes: the order of events, the fields of the summary, nothing but JSON on standard output, and saved
# parameters that load again to the same digest.
set -eu
export TESSERA_LOG=warning
fail() { echo "FAILED: $*"; exit 1; }
names() { sed 's/"\(library_allocations\)":{\("[^"]*":{[^}]*},\{0,1\}\)*}/"\1":0/' | grep -o '"[a-z_]*":' | tr -d '":' | tr '\n' ' '; }
field() { sed -n '/"event": *"summary"/s/.*"'"$1"'": *"\{0,1\}\([^",}]*\).*/\1/p' "$2"; }
common="event model ranks comm offload precision wrap strategy device optimizer activations accum threads steps restarts recoveries steps_repeated seconds_lost steps_skipped loss accuracy seconds step_seconds tokens_per_second flop_utilisation peak_flops_per_second peak_flops_source "
common+="peak_device_bytes planned_peak_device_bytes peak_host_bytes planned_peak_host_bytes peak_disk_bytes planned_peak_disk_bytes step_allocations "
common+="library_allocations peak_resident_bytes params_digest "
head -c 4000 "$SOURCE/core/layout/layout.c" >text.txt
gpt=(gpt --data text.txt --layers 1 --heads 2 --width 32 --context 16 --batch 2 --steps 3)

"$TESSERA" train mnist --batch 16 --steps 2 --json >mnist.json 2>mnist.err
"$TESSERA" train "${gpt[@]}" --json=gpt.json --export saved >gpt.out
"$TESSERA" train linear --json=linear.json --quiet >linear.out
[ ! -s linear.out ] || fail "--quiet prints: $(cat linear.out)"
for model in mnist gpt linear; do
  extra=""
  [ $model != gpt ] || extra="validation_loss "
  [ $model = linear ] || extra+="best_loss best_step ended_by_patience "
  [ "$(tail -n 1 $model.json | names)" = "$common$extra" ] || fail "$model: fields $(tail -n 1 $model.json | names)"
  grep -vq '^{"event":.*}$' $model.json && fail "$model: not an object on each line: $(grep -v '^{.*}$' $model.json)"
  [ "$(field peak_device_bytes $model.json)" = "$(field planned_peak_device_bytes $model.json)" ] || fail "$model: peaks"
  case $(field step_allocations $model.json) in
    0) ;;
    null) [ -n "$SANITIZE" ] || fail "$model: allocations are not counted" ;;
    *) fail "$model: $(field step_allocations $model.json) allocations in steps" ;;
  esac
done
events() { sed 's/^{"event":"\([a-z]*\)".*/\1/' "$1" | grep -Evx 'unit|ledger|span|block|timing' | tr '\n' ' '; }
[ "$(events mnist.json)" = "start step step epoch rank summary " ] || fail "events of mnist: $(events mnist.json)"
[ "$(events gpt.json)" = "start step step step validation sample rank summary " ] || fail "events of gpt: $(events gpt.json)"
[ "$(events linear.json)" = "start step rank summary " ] || fail "events of linear: $(events linear.json)"

# The ledger of one step: every point twice, planned and measured, and equal; a unit for each unit.
for model in mnist gpt linear; do
  grep '"source":"planned"' $model.json | sed 's/planned//' >planned
  grep '"event":"ledger".*"source":"measured"' $model.json | sed 's/measured//' >measured
  [ -s planned ] || fail "$model: no ledger"
  cmp planned measured || fail "$model: the ledger differs: $(diff planned measured | head -4)"
  tail -n 1 planned | grep -q '"point":"peak","unit":null,"device":{"sharded_parameter":[1-9]' || fail "$model: $(tail -n 1 planned)"
  [ "$(grep -c '"event":"unit"' $model.json)" = "$(sed -n 's/.*"event":"start".*"units":\([0-9]*\).*/\1/p' $model.json)" ] ||
    fail "$model: units"
done
grep -q '"point":"before_pre_forward","unit":"conv1"' mnist.json || fail "mnist: $(grep -m 1 ledger mnist.json)"

# Spans of the second step (of the first, when there is no other), a time for each block, medians of the run.
for model in mnist gpt linear; do
  grep '"event":"span"' $model.json >spans
  grep -q '"lane":"compute","op":"backward","unit":"'"$([ $model = gpt ] && echo h.0 || sed -n 's/.*"event":"block".*"name":"\([^"]*\)".*/\1/p' $model.json | head -n 1)"'"' spans ||
    fail "$model: no span of a backward"
  grep -v '"source":"measured","step":'$([ $model = linear ] && echo 1 || echo 2) spans && fail "$model: spans of another step"
  grep -q '"start":0,' spans || fail "$model: the spans begin late"
  grep -q '"event":"timing","steps":[12],"run_seconds":[0-9]' $model.json || fail "$model: $(grep timing $model.json)"
done
[ "$(grep -c '"event":"block"' mnist.json)" = 4 ] || fail "mnist: $(grep -c '"event":"block"' mnist.json) times of blocks"

# Two runs are the same run; a rate of 0 keeps what was loaded.
"$TESSERA" train "${gpt[@]}" --json=again.json --quiet
[ "$(field params_digest again.json)" = "$(field params_digest gpt.json)" ] || fail "two equal runs differ"
"$TESSERA" train "${gpt[@]}" --lr 0 --resume saved --json=resumed.json --quiet
[ "$(field params_digest resumed.json)" = "$(field params_digest gpt.json)" ] || fail "what was saved is not what loads"
"$TESSERA" train "${gpt[@]}" --seed 2 --json=other.json --quiet
digest=$(field params_digest gpt.json)
[ "$digest" = null ] || [ "$(field params_digest other.json)" != "$digest" ] || fail "another seed gives the same parameters"
# One line a step for spreadsheets, behind one with the names.
"$TESSERA" train linear --steps 5 --csv run.csv --quiet >/dev/null
[ "$(head -n 1 run.csv | cut -d, -f 1-3)" = step,loss,lr ] && [ "$(cut -d, -f 1 run.csv | tail -n +2 | tr '\n' ' ')" = "1 2 3 4 5 " ] ||
  fail "--csv: $(cat run.csv)"

grep -q '^step,loss,lr,seconds,[a-z]*_per_second,validation_loss,grad_norm,flop_utilisation,loss_scale,overflows$' run.csv || fail "--csv: $(head -n 1 run.csv)"
# While it trains: a line is there when its step is.
"$TESSERA" train linear --steps 1000000000 --csv live.csv --quiet >/dev/null 2>&1 & pid=$!
has_lines() { [ -e live.csv ] && [ "$(wc -l <live.csv)" -ge 3 ]; }
for ((tries = 0; tries < 1500; tries++)); do has_lines && break; sleep 0.02; done
kill -KILL $pid
wait $pid 2>/dev/null || true
has_lines && [ -z "$(tail -c 1 live.csv)" ] || fail "--csv is not written by line: $(wc -c <live.csv) bytes, $(tail -n 1 live.csv)"
awk -F, 'NF != 10 { exit 1 }' run.csv || fail "--csv: lines of another length: $(cat run.csv)"

# Utilisation: linear's 36 operations a sample (a product forward, one for the weights) over time and the given peak.
"$TESSERA" train linear --batch 2 --threads 1 --peak-flops 1e6 --json=flops.json --quiet
step() { sed -n '/"event":"step"/s/.*"'"$1"'":\([^,}]*\).*/\1/p' "$2" | head -n 1; }
awk -v u="$(step flop_utilisation flops.json)" -v s="$(step seconds flops.json)" 'BEGIN { d = u * s * 1e6 - 72; exit !(d < 1e-6 && d > -1e-6) }' ||
  fail "utilisation: $(grep '"step"' flops.json)"
[ "$(field peak_flops_source flops.json)" = given ] && [ "$(field peak_flops_per_second flops.json)" = 1000000 ] ||
  fail "the given peak: $(tail -n 1 flops.json)"
[ "$(field peak_flops_source gpt.json)" = measured ] || [ "$(field peak_flops_source gpt.json)" = null ] || fail "$(tail -n 1 gpt.json)"
# The norm is of the gradient before clipping: however much is clipped, the first step's is the same.
for clip in 0 1e-3 1e30; do
  "$TESSERA" train "${gpt[@]}" --clip $clip --json=clip.json --quiet
  eval "norm_${clip/-/_}=\$(step grad_norm clip.json)"
done
# shellcheck disable=SC2154
[ "$norm_0" = null ] && [ "$norm_1e_3" = "$norm_1e30" ] && awk -v n="$norm_1e30" 'BEGIN { exit !(n + 0 > 0.01) }' ||
  fail "norms: $norm_0 without clipping, $norm_1e_3 and $norm_1e30 with"
# Lines of progress say the norm, the share of the peak and the time that is left; the last step has none left.
"$TESSERA" train "${gpt[@]}" --peak-flops 1e12 >progress.out 2>&1
grep -Eq '^step 1/3  loss [0-9.]+  norm [0-9.]+  [0-9]+ tokens/s  [0-9]+ % of peak  [0-9:]+( s)? left  device ' progress.out ||
  fail "progress: $(cat progress.out)"
grep -Eq '^step 3/3 .* left' progress.out && fail "the last step has time left: $(cat progress.out)"
echo "events, fields and digests are as documented"
