#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# Reductions over NCCL have a communicator of their own, on the doubles: one that waits does not hold up the gather behind it,
# in passes that are called and in recorded ones, and in a group of hybrid. The bits are those of one communicator, and
# planned bytes are measured.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
brief=$(brief_text)
gpt="gpt --batch 2 --layers 3 --heads 2 --width 16 --context 128 --steps 5 --device cuda"

# trained WHAT OVERTAKE OPTIONS…: a run on the doubles; sets digest, and how many reductions were overtaken.
trained() {
  local what=$1
  rm -f calls
  TESSERA_DOUBLE_LOG=calls TESSERA_DOUBLE_OVERTAKE=$2 expect 0 on_double "$TESSERA" train $gpt $brief "${@:3}" --json=gpu.json
  overtaken=$(awk '$2 == "reductions-overtaken" { n += $3 } END { print n + 0 }' calls)
  digest=$(summary params_digest gpu.json)
  [ "$(summary peak_device_bytes gpu.json)" = "$(summary planned_peak_device_bytes gpu.json)" ] ||
    fail "$what: peak $(summary peak_device_bytes gpu.json), planned $(summary planned_peak_device_bytes gpu.json)"
}

# A pass has six reductions; behind the second there are gathers. Of five passes the third and the fourth are recorded, and
# the fifth is one of them again.
for reduction in 2 14 26; do
  trained "reduction $reduction" ncclReduceScatter:$reduction:60@1 -n 2
  [ "$overtaken" = 1 ] || fail "reduction $reduction: $overtaken were overtaken, expected 1"
  [ "${apart:=$digest}" = "$digest" ] || fail "reduction $reduction: digest $digest, before $apart"
done
TESSERA_NCCL_APART=off trained "one communicator" ncclReduceScatter:2:1@1 -n 2
[ "$overtaken" = 0 ] || fail "one communicator did two things at once"
[ "$digest" = "$apart" ] || fail "digest $apart with a communicator for reductions, $digest without"

# The channels of both together find room on a GPU, of 40 multiprocessors too; where there is none, one does everything.
TESSERA_DOUBLE_PROCESSORS=40 trained "40 multiprocessors" ncclReduceScatter:2:60@1 -n 2
[ "$overtaken" = 1 ] || fail "40 multiprocessors: $overtaken reductions were overtaken, expected 1"
TESSERA_DOUBLE_PROCESSORS=1 trained "1 multiprocessor" ncclReduceScatter:2:1@1 -n 2
[ "$overtaken" = 0 ] || fail "1 multiprocessor has room for two communicators at once"
[ "$digest" = "$apart" ] || fail "digest $apart on a large GPU, $digest on one of 1 multiprocessor"
[ "$(grep -c "the GPU has no multiprocessor for a second communicator" err)" = 1 ] || fail "1 multiprocessor: $(cat err)"
TESSERA_DOUBLE_PROCESSORS=2 expect 3 on_double "$TESSERA" train $gpt $brief -n 4 --strategy hybrid:2
grep -q "nccl: the GPU has no multiprocessor for one more communicator beside that of group 'world'" err || fail "hybrid on 2 multiprocessors: $(cat err)"

trained "hybrid" ncclReduceScatter:2:60@1 -n 4 --strategy hybrid:2 --steps 2
[ "$overtaken" = 1 ] || fail "hybrid: $overtaken reductions were overtaken, expected 1"
# communicators N OPTIONS…: the plan has so many, and a run makes them. All of them are split off but the first.
communicators() {
  local n=$1
  shift
  rm -f calls plan.json
  expect 0 on_double "$TESSERA" plan $gpt --comm nccl --json=plan.json "$@"
  grep -q "\"communicators\":$n[,}]" plan.json || fail "$*: planned $(grep -o '"communicators":[0-9]*' plan.json), expected $n"
  one=$(sed -n 's/.*"backend_bytes":\([0-9]*\).*/\1/p' plan.json)
  [ "$one" -gt 0 ] && grep -q "\"backend_total_bytes\":$((n * one))[,}]" plan.json || fail "$*: $(cat plan.json)"
  TESSERA_DOUBLE_LOG=calls expect 0 on_double "$TESSERA" train $gpt $brief "$@" --steps 1
  made=$(awk '$1 == 0 && $2 == "ncclCommSplit" { n = $3 } END { print n + 1 }' calls)
  [ "$made" = "$n" ] || fail "$*: $made communicators were made, expected $n"
}
communicators 2 -n 2
TESSERA_NCCL_APART=off communicators 1 -n 2
communicators 1 -n 2 --strategy none
communicators 4 -n 4 --strategy hybrid:2
echo "a reduction that waits holds up no gather, and the bits are the same"
