#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# slow: 14400 COUNT=third
# 3 steps, a checkpoint, 3 steps: the losses, bit for bit, and the digest of 6 steps, for combinations of model, ranks,
# strategy, offload, precision, activations and accumulation; and in deterministic mode from 1, 2, 4 or 8 ranks to another
# number of them. COUNT (6) of all are tried, by the seed (SEED); COUNT=all: every one. COUNT=third (test_resume_wide_slow): all
# that begin "elsewhere", and the others whose model, activations and accumulation, counted, sum to the seed's remainder by 3. So each
# setting of all axes but one of these three is there, with one value of that one.
# PART=I/N: the I-th of N equal parts of them. ONLY: those that this pattern matches.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_HEARTBEAT=60 # no rank is lost here: on a busy machine eight of them may wait long for their turn
declare -A model=( [gpt]="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 2"
  [mnist]="mnist $(brief_digits) --batch 4" [convbn]="convbn --image-size 15 --hidden 8 --batch 2" )
summary() { grep -o "\"$2\":[^,}]*" "$1" | tail -n 1 | cut -d: -f2; }
losses() { grep '"event":"step"' "$1" | sed -nE 's/.*"step":([456]),.*"loss":([^,}]*).*/\1 \2/p'; }
equal() { # NAME
  [ "$(summary whole.json params_digest)" = "$(summary again.json params_digest)" ] || fail "digest of $1"
  [ "$(losses whole.json | wc -l)" = 3 ] && [ "$(losses again.json | wc -l)" = 3 ] || fail "losses of $1 are missing"
}
train() { code=0; "$TESSERA" train "$@" --steps 6 --threads 1 --quiet >out 2>&1 || code=$?; }
same() {
  rm -rf run
  train "$@" --save run --save-every 3 --json=whole.json
  if [ $code = 3 ]; then # a combination that there is not, which one line says
    [ "$(wc -l <out)" = 1 ] || fail "$*: $(cat out)"
    refused=$((refused + 1))
    return
  fi
  [ $code = 0 ] || fail "exit code $code of $*: $(tail -n 3 out)"
  train "$@" --resume run/step-000003 --json=again.json
  [ $code = 0 ] || fail "exit code $code of $* --resume: $(tail -n 3 out)"
  equal "$*"
  [ "$(losses whole.json)" = "$(losses again.json)" ] || fail "losses of $*: $(losses whole.json) $(losses again.json)"
  count=$((count + 1))
}
elsewhere() { # MODEL FROM TO
  rm -rf run
  train ${model[$1]} --deterministic -n "$2" --accum $((8 / $2)) --save run --save-every 3 --json=whole.json
  [ $code = 0 ] || fail "exit code $code of $1 on $2 ranks: $(tail -n 3 out)"
  train ${model[$1]} --deterministic -n "$3" --resume run/step-000003 --json=again.json
  [ $code = 0 ] || fail "exit code $code of $1 from $2 to $3 ranks: $(tail -n 3 out)"
  equal "$1 from $2 to $3 ranks"
  count=$((count + 1))
}
declare -A place=( [gpt]=0 [mnist]=1 [convbn]=2 [keep]=0 [recompute]=1 [offload]=2 ["1 --sync each"]=0 ["2 --sync each"]=1 ["2 --sync end"]=2 )
chosen_third() { [ "${COUNT:-6}" != third ] || [ $(((place[$1] + place[$2] + place[$3]) % 3)) = $((seed % 3)) ]; }
all() {
  local name ranks strategy offload precision activations accum from to
  for name in gpt mnist convbn; do
    for from in 1 2 4 8; do for to in 1 2 4 8; do [ $from = $to ] || echo "elsewhere $name $from $to"; done; done
    for ranks in 1 2 3 4; do for strategy in full grad_op none hybrid:2 hybrid_grad_op:2; do
      case $strategy in hybrid*) [ $ranks = 4 ] || continue ;; esac
      for offload in none cpu; do for precision in fp32 bf16; do for activations in keep recompute offload; do
        for accum in "1 --sync each" "2 --sync each" "2 --sync end"; do
          chosen_third "$name" $activations "$accum" || continue
          echo "same ${model[$name]} -n $ranks --strategy $strategy --offload $offload --precision $precision --activations $activations --accum $accum"
        done
      done; done; done
    done; done
  done
}
count=0 refused=0 part=${PART:-1/1} seed=${SEED:-$("$SOURCE/tests/chance" resume_wide)}
case ${COUNT:-6} in all | third)
  all | grep -E -- "${ONLY:-.}" | awk -v i="${part%/*}" -v n="${part#*/}" 'NR % n == i - 1' >chosen ;;
*)
  all | grep -E -- "${ONLY:-.}" | awk -v seed="$seed" 'BEGIN { srand(seed) } { print rand() " " $0 }' | sort -g | cut -d' ' -f2- | head -n "${COUNT:-6}" >chosen ;;
esac
while read -r line; do $line; done <chosen
[ $count -ge $(($(wc -l <chosen) / 2)) ] || fail "only $count of $(wc -l <chosen)"
echo "$count of $(all | wc -l) combinations went on to the same bits; $refused there are not"
