#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# slow: 3600 MODEL_CELLS=1
# The reference models in cells of the matrix's covering set: the bytes planned are the bytes obtained, at the peak and at every
# ledger point of every unit, and no step allocates. Cells share a digest where they may differ in nothing that it depends on.
# gpt has a tied embedding, mnist dropout, and layers of decoders are also units by halves. Of the set's cells with 1 to 4 ranks
# a third, and a few with 6; MODEL_CELLS=1 takes all of these (test_model_cells_slow).
. "$SOURCE/tests/e2e/lib.sh"
matrix=$BUILD/tests/matrix/test_matrix
[ -x "$matrix" ] || { echo "skip: CMocka is not here"; exit 77; }
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1
declare -A first=() made_by=() compared=()
runs=0

# trained KEY COMMAND…: it has the digest of all that have KEY; its books are exact.
trained() {
  local key=$1 peak planned host_peak host_planned allocations digest
  shift
  expect 0 "$@"
  runs=$((runs + 1))
  read -r peak planned host_peak host_planned allocations digest < <(awk '
    function field(name) { return match($0, "\"" name "\":\"?[^\",}]*") ? substr($0, RSTART + length(name) + 3, RLENGTH - length(name) - 3) : "none" }
    /"event":"summary"/ {
      d = field("params_digest"); sub(/^"/, "", d)
      print field("peak_device_bytes"), field("planned_peak_device_bytes"), field("peak_host_bytes"), field("planned_peak_host_bytes"), field("step_allocations"), d
    }' out)
  [ "$peak/$host_peak" = "$planned/$host_planned" ] && [ "$peak" -gt 0 ] || fail "bytes $peak/$host_peak, planned $planned/$host_planned: $*"
  [ "$allocations" = 0 ] || [ "$allocations" = null ] || fail "$allocations allocations in steps: $*"
  [ ${#digest} = 32 ] || fail "digest '$digest': $*"
  awk '/"event":"ledger"/ { planned = sub(/"planned"/, ""); sub(/"measured"/, ""); if (planned) p[++n] = $0; else if ($0 != p[++m]) exit 1 }
    END { if (n == 0 || n != m) exit 1 }' out || fail "the ledger differs: $*"
  [ "${first[$key]:=$digest}" = "$digest" ] || fail "$key: digest $digest of: $*; ${first[$key]} of: ${made_by[$key]}"
  [ -n "${made_by[$key]:-}" ] || made_by[$key]=$*
}

brief=$(brief_text)
gpt=(gpt $brief --layers 2 --width 32 --heads 2 --context 16 --batch 2 --optimizer adamw)
llama=(llama $brief --layers 3 --heads 2 --width 32 --context 16 --batch 2 --optimizer adam)
mnist=(mnist $(brief_digits) --batch 4 --optimizer sgd --momentum 0.9)
models=(gpt llama mnist)
precisions=(fp32 bf16 bf16:wire=fp32)

# computed: what a digest depends on, of model m on W ranks. Deterministic, the number of microbatches counts, not their ranks.
computed() {
  local k=1 clip=0 precision=${precisions[(W + m) % 3]}
  if [ "$deterministic" = 1 ]; then
    precision=fp32 k=$((4 / W))
    if [ $((W % 3)) = 0 ]; then
      k=$((6 / W)) sync=end # each by each, ranks that are no power of two sum in another order (docs/numbers.md)
    elif [ $sync = end ]; then
      precision=bf16 clip=0.5
    fi
    key="${models[m]}, $((W * k)) microbatches, $precision"
  else
    [ $W -gt 2 ] || k=2
    sync=each
    [ $((W % 2)) = 1 ] || clip=0.5
    [ $W != 2 ] || sync=end
    key="${models[m]}, $W ranks, $precision"
  fi
  [ ${models[m]} != llama ] || precision=${precision/%bf16/bf16:products=fp8} # gpt has the other
  key=${key/%bf16/$precision}
  options=(--precision "$precision" --clip $clip --steps 3 --quiet --json)
  [ "$deterministic" = 0 ] || options+=(--deterministic)
  ranks=(-n "$W" --accum $k --sync $sync)
}
# plain: the plainest run of the key; where only microbatches count, one rank has them all.
plain() {
  if [ "$deterministic" = 1 ]; then ranks=(-n 1 --accum $((W * ranks[3]))); fi
  compared[$key]=1
  trained "$key" "$TESSERA" train "${model[@]}" "${options[@]}" "${ranks[@]}"
}

TOY=none "$matrix" --list | grep '^comm=' | grep -Ev 'comm=fault|hybrid[a-z_]*:3.*,W=6|,W=[58],' |
  awk -v every="${MODEL_CELLS:-3}" '{ w = /,W=6,/; n[w]++ } n[w] % (every * (w && every > 1 ? 4 : 1)) == 0' |
  sed -E 's/,([a-zA-Z]+)=/|\1=/g; s/[|](compute=)/,\1/' >cells
[ "$(wc -l <cells)" -ge 30 ] || fail "too few cells: $(wc -l <cells)"
m=0 n=0
while IFS='|' read -r comm offload _ wrap strategy activations W accum _ _ _ _ prefetch deterministic copy strict _; do
  m=$((m == 2 ? 0 : m + 1)) W=${W#*=} deterministic=${deterministic#*=} wrap=${wrap#*=} activations=${activations#*=} sync=each
  [[ $accum != *end ]] || sync=end
  computed
  # A rank of gpt and llama computes halves of layers where another cell computes layers.
  units=()
  case ${models[m]} in
    llama) wrap=${wrap//h./layers.} ;;
    mnist) wrap=${wrap/module:*/size:20000} ;;
  esac
  if [ "${copy#*=}" = 1 ] && [ ${models[m]} != mnist ]; then
    units=(--units half)
    case $activations in recompute) activations=selective ;; offload) activations='recompute:*attn,offload:*.mlp' ;; esac
  fi
  declare -n model=${models[m]}
  [ "${strict#*=}" = 0 ] || units+=(--strict)
  trained "$key" env TESSERA_LOW_COPY="${copy#*=}" "$TESSERA" train "${model[@]}" "${options[@]}" "${ranks[@]}" --comm "${comm#*=}" \
    --offload "${offload#*=}" --wrap "$wrap" --strategy "${strategy#*=}" --activations "$activations" --prefetch "${prefetch#*=}" "${units[@]}"
  [ -n "${compared[$key]:-}" ] || plain
  n=$((n + 1))
done <cells
# The same once more; and with clipping other bits.
for clip in 0 0.5; do
  trained "clip $clip" "$TESSERA" train "${gpt[@]}" -n 3 --steps 2 --clip $clip --quiet --json
  trained "clip $clip" "$TESSERA" train "${gpt[@]}" -n 3 --steps 2 --clip $clip --quiet --json
done
[ "${first[clip 0]}" != "${first[clip 0.5]}" ] || fail "clipping changes nothing"
[ $((2 * ${#first[@]})) -lt "$runs" ] || fail "$runs runs have ${#first[@]} digests: too little was compared"
echo "$n cells of ${models[*]}: planned bytes and ledgers exact, ${#first[@]} digests in $runs runs"
