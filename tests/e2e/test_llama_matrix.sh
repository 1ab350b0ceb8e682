#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# llama over cells of the matrix's covering set: the bytes planned are the bytes obtained, at the peak and at every ledger point
# of every unit, and cells that differ in nothing a digest may depend on (docs/matrix.md) have one digest. A fifth of the
# set, but for local gradients in bf16, which the models do not add up; LLAMA_CELLS=1 takes all of it (test_llama_matrix_slow).
. "$SOURCE/tests/e2e/lib.sh"
matrix=$BUILD/tests/matrix/test_matrix
[ -x "$matrix" ] || { echo "skip: CMocka is not here"; exit 77; }
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1
llama=(llama --layers 3 --heads 2 --width 32 --context 16 --batch 2 --steps 3 --quiet --json)
field() { sed -n '/"event":"summary"/s/.*"'"$1"'":"\{0,1\}\([^",}]*\).*/\1/p' out; }
axes=(comm offload precision wrap strategy activations W accum clip api optimizer groups prefetch deterministic strict end)
# of AXIS: its value in $cell; values have commas and equals signs of their own.
of() {
  local i=0 text
  while [ "${axes[i]}" != "$1" ]; do i=$((i + 1)); done
  text=",$cell,end="
  text=${text#*,"$1"=}
  echo "${text%%,"${axes[i + 1]}"=*}"
}

# What a digest may depend on. Groups of three ranks sum in an order of their own, and so do sums at the end of a step when
# the number of ranks is no power of two.
key() {
  local w k sync groups=
  w=$(of W) k=${1%%[a-z]*} sync=${1##*[0-9]}
  [[ $(of strategy) != hybrid*:3 || $w -le 3 ]] || groups=" by three"
  local one_tree=1
  [ "$(of deterministic)" = 1 ] && [ -z "$groups" ] || one_tree=
  [ "$sync" != end ] || [ $((w & (w - 1))) = 0 ] || one_tree=
  [ -n "$one_tree" ] && echo "$((w * k)) microbatches" || echo "$w ranks $1$groups $(of deterministic)"
}

# The plainest cell of the same key; with groups of three it keeps its strategy.
plain() {
  local comm=gloo strategy=full
  [ "$(of W)" != 1 ] || comm=self
  [[ $(key "$(of accum)") != *"by three"* ]] || strategy=$(of strategy)
  echo "comm=$comm,offload=none,precision=$(of precision),wrap=scopes,strategy=$strategy,activations=keep,W=$(of W),accum=$(of accum),\
clip=$(of clip),api=blocks,optimizer=$(of optimizer),groups=2,prefetch=auto,deterministic=$(of deterministic),strict=0"
}

run_cell() {
  local accum wrap clip=0
  accum=$(of accum) wrap=$(of wrap)
  [ "$(of clip)" = off ] || clip=0.5
  wrap=${wrap//h./layers.}
  expect 0 "$TESSERA" train "${llama[@]}" -n "$(of W)" --comm "$(of comm)" --offload "$(of offload)" --precision "$(of precision)" \
    --wrap "$wrap" --strategy "$(of strategy)" --activations "$(of activations)" --accum "${accum%%[a-z]*}" \
    --sync "$(grep -q end <<<"$accum" && echo end || echo each)" --clip $clip --optimizer "$(of optimizer)" --prefetch "$(of prefetch)" \
    $([ "$(of deterministic)" = 0 ] || echo --deterministic) $([ "$(of strict)" = 0 ] || echo --strict)
  for domain in device host; do
    [ -n "$(field peak_${domain}_bytes)" ] && [ "$(field peak_${domain}_bytes)" = "$(field planned_peak_${domain}_bytes)" ] ||
      fail "$cell: $domain, obtained $(field peak_${domain}_bytes), planned $(field planned_peak_${domain}_bytes)"
  done
  grep '"event":"ledger","source":"planned"' out | sed 's/planned//' >planned
  grep '"event":"ledger","source":"measured"' out | sed 's/measured//' >measured
  [ -s planned ] && cmp -s planned measured || fail "$cell: the ledger differs: $(diff planned measured | head -n 4)"
  echo "$(of precision) $(of optimizer) $clip $(key "$accum")|$(field params_digest)|$cell" >>digests
}

TOY=none "$matrix" --list | grep '^comm=' | grep -Ev 'comm=fault|grad=bf16' | awk -v every="${LLAMA_CELLS:-5}" 'NR % every == 0' >cells
[ "$(wc -l <cells)" -ge 20 ] || fail "too few cells: $(wc -l <cells)"
while read -r cell; do
  run_cell
  cell=$(plain)
  grep -qF "|$cell" digests || run_cell
done <cells
cut -d '|' -f 1,2 digests | sort -u | cut -d '|' -f 1 | uniq -d >differ
[ ! -s differ ] || fail "digests differ: $(grep -F "$(head -n 1 differ)" digests)"
keys=$(cut -d '|' -f 1 digests | sort -u | wc -l)
[ "$keys" -lt "$(wc -l <digests)" ] || fail "no two cells have a digest in common: nothing was compared"
echo "$(wc -l <cells) cells of llama: planned bytes and ledgers exact, $keys digests"
