#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# Reductions have a communicator beside that of gathers, on the doubles, and a rank is killed or stopped in the middle: of a
# reduction behind which gathers go on, of a gather while nothing is reduced, of the replicas' sum. From images in memory
# the run comes to the digest of a whole one, and every process that is left gives back what all communicators had. A
# reduction or a gather that never ends is told after TESSERA_TIMEOUT.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libcublas.so.13 tests/doubles/libnccl.so.2 plugins/libtessera-comm-nccl.so
gpt="gpt --batch 1 --layers 3 --heads 2 --width 16 --context 32 --device cuda $(brief_text) --quiet --steps 12"
export TESSERA_HEARTBEAT=2

# survives PATTERN END OVERTAKE OPTIONS…: rank 1 gets the signal of END, once, while PATTERN is under way on it.
survives() {
  rm -f run.json
  : >once
  TESSERA_DOUBLE_END=$2@1 TESSERA_DOUBLE_OVERTAKE=$3 TESSERA_DOUBLE_END_FILE=once \
    expect 0 on_double "$TESSERA" train $gpt "${@:4}" --mirror 2 --json=run.json
  grep -Eq "doubles: signal .*$1" err || fail "$2: no '$1': $(cat err)"
  [ "$(summary recoveries run.json)" = 1 ] || fail "$2: $(summary recoveries run.json) recoveries: $(cat err)"
  [ "$(summary params_digest run.json)" = "$want" ] || fail "$2: digest $(summary params_digest run.json), expected $want"
  [ "$(summary peak_device_bytes run.json)" = "$(summary planned_peak_device_bytes run.json)" ] ||
    fail "$2: peak $(summary peak_device_bytes run.json), planned $(summary planned_peak_device_bytes run.json)"
  echo "$2: $(grep -o 'under way: .*' err)"
}
whole() { # OPTIONS…
  expect 0 on_double "$TESSERA" train $gpt "$@" --json=whole.json
  want=$(summary params_digest whole.json)
}

# A pass has six reductions and twelve gathers. The first four are called; the third is where an image has just been taken.
whole -n 3
export TESSERA_DOUBLE_NCCL_DEATH=hang
survives "[0-9], overtaken; under way: 0 gathers, 1 red" ncclReduceScatter:14:9 ncclReduceScatter:14:100@1 -n 3
survives "recorded, overtaken; under way: 0 gathers, 1 red" ncclReduceScatter:68:9 ncclReduceScatter:68:100@1 -n 3
survives "recorded, overtaken" ncclReduceScatter:68:19 ncclReduceScatter:68:100@1 -n 3
TESSERA_DOUBLE_NCCL_DEATH=error survives "recorded; under way: 1 gathers, 0 reductions" ncclAllGather:100:9 "" -n 3

# Groups of two: gathers and reductions in one, the sum over replicas in the other. Rank 1 has a peer in each.
whole -n 4 --strategy hybrid:2
survives "recorded; under way: 0 gathers, 0 reductions, 1 of replicas" ncclAllReduce:42:9 "" -n 4 --strategy hybrid:2
nothing_left

# stuck WHAT OVERTAKE: rank 1 waits there on its GPU, and nothing overtakes that.
stuck() {
  TESSERA_DOUBLE_OVERTAKE=$2@1 TESSERA_TIMEOUT=5 expect 5 on_double "$TESSERA" train $gpt -n 2
  grep -Eq "$1 took more than 5 s \(TESSERA_TIMEOUT\)" err || fail "$2: $(cat err)"
}
stuck "reduce_scatter of unit embed.wte.weight \([0-9]+ elements\) in a training pass" ncclReduceScatter:6:1000
stuck "all_gather of unit h.1 \([0-9]+ elements\) in a training pass" ncclAllGather:4:1000
nothing_left
echo "a lost rank is replaced whatever its two communicators were at, and each has its time"
