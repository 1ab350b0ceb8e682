#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A layer's operators on a GPU are those of the whole layer, so halves of it as units are refused: one line, nothing begun.
. "$SOURCE/tests/e2e/lib.sh"
needs_doubles tests/doubles/libcublas.so.13
for model in gpt gpt2 llama; do
  for command in "train $model --steps 1 --save saved-on-gpu" "plan $model"; do
    # shellcheck disable=SC2086
    expect 3 on_double "$TESSERA" $command --layers 1 --heads 2 --width 32 --context 16 --batch 1 --device cuda --units half
    one_line err "tessera: error: $model on cuda: its units are whole layers; --units half is for the CPU"
    [ ! -e saved-on-gpu ] || fail "$model: a run that is refused begins"
  done
done
echo "halves of a layer are refused on a GPU"
