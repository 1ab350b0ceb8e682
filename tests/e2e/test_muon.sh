#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 200
# processors: 2
# Whole matrices. Deterministic, muon has one digest on 1, 2, 3, 4, 6 and 8 ranks, with a clipped step and with the step in
# its pass, and per W one over strategies, units, offload and prefetch. A rank killed is in test_recover. The bytes are as planned; the peak is at
# most AdamW's, less a state, with the scratch of the largest matrix. What cannot be is one line. What every plugin shows is
# in test_optimizers.
. "$SOURCE/tests/e2e/lib.sh"
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_DETERMINISTIC=1
head -c 3000 "$SOURCE/README.md" >text # the evaluation at the end is short
gpt="gpt --data text --layers 2 --width 72 --heads 2 --context 16 --batch 1 --steps 3"
field() { sed -n 's/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' <<< "$line"; }
# trains OPTION…: digest in $digest; planned equals measured.
trains() {
  # shellcheck disable=SC2086
  "$TESSERA" train $gpt --quiet --json --optimizer muon "$@" > out 2> err || fail "exit code $?: train $*: $(head -c 600 err)"
  line=$(tail -n 1 out)
  digest=$(field params_digest)
  [ "$(field peak_device_bytes)" = "$(field planned_peak_device_bytes)" ] || fail "planned differs: $*: $line"
  [ "$(field peak_host_bytes)" = "$(field planned_peak_host_bytes)" ] || fail "planned differs on the host: $*: $line"
  case "$(field step_allocations)" in 0 | null) ;; *) fail "allocations in a step: $*: $line" ;; esac
}
same() {
  trains "$@"
  [ "$digest" = "$first" ] || fail "$* gives $digest, not $first"
}
for clip in 0 0.5; do
  trains --clip $clip --accum 24
  first=$digest
  same --clip $clip -n 2 --accum 12 --sync each
  same --clip $clip -n 3 --accum 8 --sync end
  same --clip $clip -n 4 --accum 6 --sync each
  same --clip $clip -n 6 --accum 4 --sync end
  same --clip $clip -n 8 --accum 3 --sync each
done
trains --clip 0 -n 3
first=$digest
for how in "--wrap none" "--strategy none" "--strategy grad_op" "--prefetch 0" "--threads 2" "--activations recompute"; do
  # shellcheck disable=SC2086
  same --clip 0 -n 3 $how
done
[ ! -e "$BUILD/plugins/libtessera-offload-cpu.so" ] || same --clip 0 -n 3 --offload cpu
# Replicas' sums delay a unit once more: the last units of a pass, which end together, are still stepped within it.
# Of gpt the last is the embeddings', which must have matrices too.
trains --clip 0 --accum 4 --optimizer muon:adamw=none
first=$digest
for how in "hybrid:2 --prefetch 1" "hybrid:2 --prefetch 0" "hybrid_grad_op:2 --wrap size:20000"; do
  # shellcheck disable=SC2086
  same --clip 0 -n 4 --optimizer muon:adamw=none --strategy $how
done

# Updates travel to their owners and results to the shards alone: each element of the matrices once there and once back, its
# own rank's included (2 layers of 216 + 72 + 288 + 288 rows of 72, of 4 bytes). Over a plugin without all_to_all_v they go to
# all ranks, with the same bits, and are more bytes.
if [ -e "$BUILD/plugins/libtessera-comm-shm.so" ]; then
  counted=$BUILD/tests/planted/libtessera-comm-counted.so
  sums() { sed -n 's/.*counted rank=[0-9]* .*'"$1"'=\([0-9]*\).*/\1/p' err | paste -sd+ | bc; }
  for w in 2 3 4 6; do
    for clip in 0 0.5; do
      trains --clip $clip -n $w --comm "$counted"
      first=$digest gathered=$(sums gathered) scattered=$(sums scattered) sent=$(sums sent) kept=$(sums kept)
      [ $((sent + kept)) = $((3 * 2 * 2 * 4 * 72 * (216 + 72 + 288 + 288))) ] || fail "$w ranks: sent $sent, kept $kept: $(cat err)"
      same --clip $clip -n $w --comm "$counted:whole"
      [ "$(sums sent)" = 0 ] || fail "$w ranks: parts that are not offered: $(cat err)"
      there=$(($(sums gathered) - gathered)) back=$(($(sums scattered) - scattered))
      # The matrices of gpt fill their units but for padding and owners' own parts.
      [ $there = $back ] && [ $((there + back)) -gt $sent ] || fail "$w ranks: $there and $back bytes whole, $sent in parts"
      echo "$w ranks, clip $clip: $sent bytes in parts, $((there + back)) to all, of all ranks"
    done
  done
fi

# bytes OPTIMIZER OPTION…: planned peak and bytes of states, in $peak and $states.
bytes() {
  "$TESSERA" plan "${@:2}" --optimizer "$1" --json > out 2> err || fail "plan $*: $(cat err)"
  states=$(sed -n 's/.*"event":"unit".*"state_bytes":\([0-9]*\).*/\1/p' out | paste -sd+ | bc)
  peak=$(tail -n 1 out | sed -n 's/.*"planned_peak_device_bytes":\([0-9]*\).*/\1/p')
}
# scratch: of a matrix of so many rows and columns, as newton_schulz_bytes has it.
for case in "gpt 512 128" "llama 384 128" "mnist 128 9216"; do
  read -r model rows cols <<< "$case"
  for w in 1 2 4; do
    for clip in 0 1; do
      bytes adamw $model --ranks $w --clip $clip
      adamw=$peak all=$states
      bytes muon $model --ranks $w --clip $clip
      least=$((rows < cols ? rows : cols))
      [ "$peak" -le $((adamw - (all - states) + 4 * (rows * cols + 2 * least * least))) ] ||
        fail "$model on $w, clip $clip: muon $peak, adamw $adamw, states $states of $all"
    done
  done
done
# A rank has the even share of the states, but for padding: of 256 bytes in a unit, and of as much for each parameter among
# all ranks. With owners some rank would have that share at least (docs/plugins.md), so no plan has to choose.
for model in gpt llama mnist; do
  for w in 1 2 3 4 6 8 16 64; do
    bytes muon $model --ranks $w --strategy full
    [ "$w" != 1 ] || all=$states
    padding=$(sed -n 's/.*"event":"unit".*"parameters":\([0-9]*\).*/\1/p' out | awk -v w="$w" '{ n += 2 * (256 + 256 * $1 / w) } END { print int(n) }')
    [ $((states * w)) -le $((all + padding * w)) ] || fail "$model on $w: $states bytes of $all, padding $padding"
  done
done
# Where matrices are the peak, their category says so.
"$TESSERA" plan mnist --optimizer muon --ranks 1 > out
grep -q '^  optimizer scratch  *[0-9.]* [KM]iB' out || fail "no line of the scratch: $(head -20 out)"
# The plan says who owns which: unit by unit, the most work first, to the rank that has the least so far, the lowest of such.
for w in 1 3 8; do
  "$TESSERA" plan gpt --optimizer muon --ranks $w --json > out 2> err || fail "plan: $(cat err)"
  tail -n 1 out | grep -o '{"parameter":"[^}]*}' | sed 's/[^a-z0-9_.,:]//g; s/[a-z]*://g; s/,/ /g' > owned
  # NAME UNIT WORK OWNER, of which all but the last are given
  awk -v w=$w '{ n = NR; name[n] = $1; unit[n] = substr($1, 1, 3); work[n] = $3 * $4 * ($3 < $4 ? $3 : $4); given[n] = $5 }
    END { for (first = 1; first <= n; first = last + 1) {
        for (last = first; last < n && unit[last + 1] == unit[first]; last++) ;
        for (k = first; k <= last; k++) {
          for (i = best = first; i <= last; i++) if (!done[i] && (done[best] || work[i] > work[best])) best = i
          for (r = least = 0; r < w; r++) if (load[r] + 0 < load[least] + 0) least = r
          done[best] = 1; load[least] += work[best]; all += work[best]
          if (given[best] != least) { print name[best], "is of", given[best], "not", least; bad = 1 } } }
      for (r = 0; r < w; r++) if (load[r] > most) most = load[r]
      printf "%.4f\n", most * w / all; exit bad || n != 16 }' owned > ruled || fail "owners on $w ranks: $(cat ruled owned)"
  share=$(tail -n 1 out | sed -n 's/.*"most_work":\([0-9.]*\).*/\1/p')
  [ "$(printf %.4f "$share")" = "$(cat ruled)" ] || fail "$w ranks: most work $share, by the rule $(cat ruled)"
  "$TESSERA" plan gpt --optimizer muon --ranks $w > out
  grep -q "^whole matrices: 16, each on one of $w ranks\{0,1\}; the one with the most work has $(cat ruled) of an even share$" out ||
    fail "no line of the owners: $(cat out)"
done
# So does the report, unit by unit.
"$TESSERA" plan gpt --optimizer muon --ranks 3 --json=run.json >/dev/null
"$TESSERA" report run.json -o page.html
grep -q '<th scope="col" class="n">owners of its matrices</th>' page.html || fail "no owners in the report"
for unit in 0 1 2 3; do
  owners=$(tail -n 1 run.json | grep -o "{\"parameter\":\"h\.$unit\.[^}]*}" | sed 's/.*"owner":\([0-9]*\).*/\1/' | tr '\n' ' ')
  [ -n "$owners" ] && grep -q "<th scope=\"row\">h\.$unit</th>.*<td class=\"n\">${owners% }</td>" page.html || fail "h.$unit: the report has not $owners"
done
# Padding is what the buffers have beyond the elements; blocks add to it, and without matrices nothing is said of them.
pads=
for optimizer in adamw adamw8bit; do
  [ -e "$BUILD/plugins/libtessera-optimizer-adamw8bit.so" ] || break
  "$TESSERA" plan gpt --optimizer $optimizer --ranks 3 --json > out 2> err
  whole=$(sed -n 's/.*"event":"unit".*"elements":\([0-9]*\).*"unsharded_bytes":\([0-9]*\).*/\1 \2/p' out | awk '{ n += $2 / 4 - $1 } END { print n }')
  [ "$(tail -n 1 out | sed -n 's/.*"padding_elements":\([0-9]*\).*/\1/p')" = "$whole" ] && ! grep -q '"matrices"' out ||
    fail "$optimizer: padding is not $whole: $(tail -n 1 out)"
  pads=${pads:+$pads,}$whole
done
[ -z "$pads" ] || [ "${pads#*,}" -gt "${pads%,*}" ] || fail "blocks add no padding: $pads"
# A device whose collectives do not reach the host's memory.
# shellcheck disable=SC2086
expect 0 "$TESSERA" plan $gpt --optimizer muon:scale=original,momentum=0.9,nesterov=no
# shellcheck disable=SC2086
expect 3 "$TESSERA" train $gpt --quiet --optimizer muon:steps=0
grep -q "muon" err || fail "steps=0: $(cat err)"
# Each variable is the setting of its name, and changes something.
trains --clip 0 --accum 2
usual=$digest
for setting in momentum=0.5 nesterov=0 scale=original steps=3 adamw=attn; do
  trains --clip 0 --accum 2 --optimizer muon:$setting
  first=$digest
  [ "$first" != "$usual" ] || fail "$setting changes nothing"
  case $setting in
  momentum=*) TESSERA_MUON_MOMENTUM=0.5 same --clip 0 --accum 2 ;;
  nesterov=*) TESSERA_MUON_NESTEROV=0 same --clip 0 --accum 2 ;;
  scale=*) TESSERA_MUON_SCALE=original same --clip 0 --accum 2 ;;
  steps=*) TESSERA_MUON_STEPS=3 same --clip 0 --accum 2 ;;
  adamw=*) TESSERA_MUON_ADAMW=attn same --clip 0 --accum 2 ;;
  esac
done

# Gradients that are not finite go through Newton and Schulz's iteration: the step that made them says so in one line, and
# names a matrix of muon's. Nothing that was saved is lost; another optimizer's checkpoint is refused.
diverges="--optimizer muon:adamw=none --clip 0 --lr 900000 --weight-decay 1e6 --steps 12"
for how in "-n 1" "-n 2" "-n 2 --accum 2"; do
  rm -rf kept
  # shellcheck disable=SC2086
  expect 1 "$TESSERA" train $gpt --quiet $diverges $how --save kept --save-every 1
  grep -Eq 'step [0-9]+ leaves values that are not finite: rank [01], unit [a-z0-9.]+: element [0-9]+ of parameter "[a-z0-9.]+\.(wte|wpe|qkv|proj|fc|out)[a-z.]*weight" is -?nan;.*TESSERA_ON_NAN' err &&
    [ "$(grep -c 'not finite' err)" = 1 ] && [ "$(wc -l < err)" -le 2 ] || fail "NaN, $how: $(cat err)"
  expect 0 "$TESSERA" ckpt verify kept
done
# shellcheck disable=SC2086
TESSERA_LOG=warn expect 0 "$TESSERA" train $gpt --quiet $diverges -n 2 --on-nan warn
grep -q 'leaves values that are not finite' err || fail "nothing was not finite: $(cat err)"
# shellcheck disable=SC2086
expect 0 "$TESSERA" train $gpt --quiet --optimizer adamw --save other
# shellcheck disable=SC2086
expect 6 "$TESSERA" train $gpt --quiet --optimizer muon --steps 5 --resume other
[ "$(wc -l < err)" = 1 ] && grep -q "saved with optimizer adamw, this run has muon" err || fail "another optimizer: $(cat err)"
expect 0 "$TESSERA" ckpt verify other/step-000003
