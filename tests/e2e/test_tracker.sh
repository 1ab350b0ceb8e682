#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The cases of PyTorch's test of its FSDP2 memory tracker, which allows 0.9 to 1.1: here the accuracy is 1, and every
# ledger point equal. Planned at PyTorch's sizes, and in advance of runs on two and four ranks: the transformer's at its
# own size, the others' at a thirty-second (test_tracker_slow.sh: at theirs). Then its memory guide's device: 24 units of memory, wanted are shards 8, gradients 8, optimizer state 6 and a layer of 10.
. "$SOURCE/tests/e2e/lib.sh"
for plugin in comm-gloo offload-cpu precision-bf16; do
  [ -f "$BUILD/plugins/libtessera-$plugin.so" ] || { echo "skip: $plugin is not built here"; exit 77; }
done
tracker=$BUILD/tests/support/tracker
unset RANK WORLD_SIZE TESSERA_OFFLOAD TESSERA_ACTIVATIONS TESSERA_PRECISION TESSERA_STRATEGY
export TESSERA_LOG=error TESSERA_THREADS=1 TESSERA_COMM=gloo

accurate() { # accurate RANKS CASE SCALE VARIABLE…: in a run
  local ranks=$1 case=$2 scale=$3
  shift 3
  expect 0 env "$@" "$TESSERA" run -n "$ranks" -- "$tracker" "$case" run "$scale"
  grep -q "$case: [0-9]* points equal, .* accuracy 1\$" out || fail "$case $*: $(cat out err)"
  echo "W=$ranks $*: $(sed 's/^\[0\] //' out)"
}
planned() { # planned CASE SCALE VARIABLE…
  local case=$1 scale=$2
  shift 2
  expect 0 env "$@" "$tracker" "$case" plan "$scale"
  echo "$*: $(cat out)"
}

for reshard in full grad_op; do
  for offload in none cpu; do
    options="TESSERA_STRATEGY=$reshard TESSERA_OFFLOAD=$offload TESSERA_PRECISION=bf16:wire=fp32"
    # shellcheck disable=SC2086
    for ranks in 2 4; do accurate $ranks mlps 32 $options; done
    # shellcheck disable=SC2086
    planned mlps 1 $options
    # Four MLPs of 8 x 2048^2 + 5 x 2048 parameters: half of them, fp32, with gradient and two states.
    [ $offload = none ] || grep -q ", host 1074069504 bytes alive" out || fail "on the host: $(cat out)"
  done
  for ranks in 2 4; do accurate $ranks transformer 1 TESSERA_STRATEGY=$reshard TESSERA_ACTIVATIONS=recompute; done
  planned transformer 1 TESSERA_STRATEGY=$reshard TESSERA_ACTIVATIONS=recompute
done
for ranks in 2 4; do accurate $ranks part 32; done
planned part 1

unit=65536 device=1073741824
expect 0 "$tracker" device24 plan $device
grep -q "^device24: 32.000 units of 24 alive, .* does not fit by 8.0" out || fail "the plan says $(cat out)"
cat out
accurate 2 device24 $unit TESSERA_OFFLOAD=none
for remedy in TESSERA_OFFLOAD=cpu TESSERA_ACTIVATIONS=recompute TESSERA_PRECISION=bf16 TRACKER_RANKS=4 \
  "TESSERA_OFFLOAD=cpu TESSERA_ACTIVATIONS=recompute TESSERA_PRECISION=bf16 TRACKER_RANKS=4"; do
  ranks=2
  case $remedy in *RANKS=4) ranks=4 ;; esac
  # shellcheck disable=SC2086
  planned device24 $device $remedy
  alive=$(sed 's/^device24: \([0-9.]*\) .*/\1/' out)
  awk "BEGIN { exit !($alive < 32) }" || fail "$remedy saves nothing: $(cat out)"
  case $remedy in # to the byte, in units: shards and momentum go to the host, a layer's activations are made again, halved …
    *cpu*recompute*) exact=5.846 ;;
    *OFFLOAD*) exact=12.000 ;;
    *recompute) exact=28.500 ;;
    *bf16) exact=28.094 ;;
    *) exact=21.752 ;; # a half of 8 + 6, and of the gradients what is sharded
  esac
  [ "$alive" = $exact ] || fail "$remedy: $alive units alive, expected $exact"
  # shellcheck disable=SC2086
  accurate $ranks device24 $unit $remedy
done

# 70 billion parameters, as the guide estimates them: 4 bytes each and 8 of Adam's states rest, a 64th on each rank.
cat >config.json <<'END'
{"model_type":"llama","hidden_size":8192,"num_hidden_layers":80,"intermediate_size":28672,"num_attention_heads":64,
 "num_key_value_heads":8,"vocab_size":32000,"tie_word_embeddings":false,"rms_norm_eps":1e-5,"max_position_embeddings":4096}
END
if "$TESSERA" train --help 2>/dev/null | grep -q llama; then
  parameters=$((2 * 32000 * 8192 + 80 * (2 * 8192 * 8192 + 2 * 1024 * 8192 + 3 * 28672 * 8192 + 2 * 8192) + 8192))
  for ranks in 8 64; do
    expect 0 "$TESSERA" plan llama --config config.json -n $ranks --offload none --activations recompute --json
    line=$(grep '"event":"plan"' out)
    rests=$(sed 's/.*"resting":{"device":{\([^}]*\)}.*/\1/' <<<"$line" | tr ',' '\n' | awk -F: '{ sum += $2 } END { printf "%.0f", sum }')
    [ "$(sed -n 's/.*"parameters":\([0-9]*\).*/\1/p' <<<"$line")" = $parameters ] || fail "not $parameters parameters: $line"
    least=$((parameters * 12 / ranks)) # a group's shard is padded to 64 elements, 82 units of two groups at most
    [ "$rests" -ge $least ] && [ "$rests" -le $((least + 164 * 64 * 12 + 65536)) ] || fail "$ranks ranks: $rests bytes rest, expected $least"
    echo "70 B on $ranks ranks: $rests bytes rest on each"
  done
fi
nothing_left
