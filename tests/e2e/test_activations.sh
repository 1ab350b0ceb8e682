#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Activations per block: whatever is kept, made again, kept in part or sent away, the bits are the same and the peak is the
# planned one, to the byte; auto keeps within ten budgets; a bad text is one line.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error TESSERA_THREADS=1
shape="$(brief_text) --layers 4 --heads 2 --width 64 --context 64 --batch 4"
number() { sed -n "/\"event\":\"summary\"/s/.*\"$1\":\([0-9]*\).*/\1/p" out; }
text() { sed -n "/\"event\":\"summary\"/s/.*\"$1\":\"\([^\"]*\)\".*/\1/p" out; }

# run OPTION…: trains; the peak is the planned one, the digest that of $digest, if it is set.
run() {
  expect 0 "$TESSERA" train "$@" --quiet --json
  peak=$(number peak_device_bytes)
  [ -n "$peak" ] && [ "$peak" = "$(number planned_peak_device_bytes)" ] || fail "peak $peak, planned $(number planned_peak_device_bytes): $*"
  [ "$(number peak_host_bytes)" = "$(number planned_peak_host_bytes)" ] || fail "host bytes: $*"
  [ -z "$digest" ] || [ "$(text params_digest)" = "$digest" ] || fail "digest $(text params_digest), expected $digest: $*"
}

for model in gpt llama; do
  layer=h.
  [ $model = gpt ] || layer=layers.
  digest=
  common="$model $shape --steps 3"
  run $common
  digest=$(text params_digest)
  most=$peak
  run $common --activations selective
  some=$peak
  run $common --activations recompute
  least=$peak
  [ "$least" -lt "$some" ] && [ "$some" -lt "$most" ] || fail "$model: keep $most, selective $some, recompute $least bytes"
  for activations in "recompute:${layer}1" "selective:${layer}[0-1],offload:${layer}2" "offload,recompute:${layer}1" \
    "recompute:every=2" "offload:every=2,recompute:${layer}3" "selective,keep:${layer}3,recompute:${layer}0" offload; do
    run $common --activations "$activations"
    [ "$(text activations)" = "$activations" ] || fail "the summary says $(text activations), expected $activations"
  done
  digest=
  run $common --precision bf16
  digest=$(text params_digest)
  run $common --precision bf16 --activations "recompute:${layer}0,selective:${layer}[1-3]"
done

# Ten budgets between the least and the most: what auto chooses fits, runs to the byte, and is a value of the option.
digest=
run gpt $shape --steps 3
digest=$(text params_digest)
most=$peak
run gpt $shape --steps 3 --activations recompute
least=$peak
for i in 0 1 2 3 4 5 6 7 8 9; do
  budget=$((least + (most - least) * i / 9))
  run gpt $shape --steps 3 --activations "auto:$budget"
  [ "$peak" -le "$budget" ] || fail "auto:$budget takes $peak"
  chosen=$(text activations)
  found=$peak
  expect 0 "$TESSERA" plan gpt -n 1 $shape --activations "auto:$budget" --json
  grep -qF "\"activations\":\"$chosen\"" out || fail "plan does not say $chosen: $(cat out)"
  if [ $i = 4 ]; then
    run gpt $shape --steps 3 --activations "$chosen"
    [ "$peak" = "$found" ] || fail "$chosen takes $peak, auto $found"
  fi
done
[ "$chosen" = keep ] || fail "with room for all, auto chooses $chosen"
run gpt $shape --steps 3 --activations auto --device-memory $(((least + most) / 2))
expect 4 "$TESSERA" train gpt $shape --steps 1 --activations "auto:$((least - 65536))" --quiet
grep -qE 'auto:[0-9]+: no choice of [0-9]+ fits' err || fail "$(cat err)"
if [ -e "$BUILD/plugins/libtessera-comm-shm.so" ]; then
  digest=
  run gpt $shape --steps 3 -n 2
  digest=$(text params_digest)
  run gpt $shape --steps 3 -n 2 --activations "selective:h.[0-2],recompute:h.3"
fi

# refuse PATTERN TEXT: exit code 3 and one line.
refuse() {
  expect 3 "$TESSERA" train gpt --steps 1 --activations "$2" --quiet
  [ "$(wc -l <err)" = 1 ] && grep -qE -- "$1" err || fail "expected one line with '$1': $(cat err)"
}
refuse "'recmpute' is none of them; expected keep, recompute, offload or selective" recmpute
refuse "no block is named 'h.9\*'; there are embed to head" 'recompute:h.9*'
refuse "says no blocks after its colon" 'offload:'
refuse "does not count from 1" 'selective:every=0'
refuse "names no bytes of device memory" auto:some
refuse "expected auto:BYTES, or TESSERA_DEVICE_MEMORY beside it" auto
echo "activations per block: same bits, planned bytes exact, auto within ten budgets, bad texts refused"
