#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# tessera ckpt: list, show, verify, diff, reshard, export, import and prune, their exit codes and JSON; damage of every file
# of a checkpoint is found; and a run goes on from what reshard and import made.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
gpt="gpt $(brief_text) --layers 2 --heads 2 --width 32 --context 16 --batch 2 --threads 1 --quiet"
ckpt() { "$TESSERA" ckpt "$@"; }
expect 0 "$TESSERA" train $gpt -n 3 --steps 6 --save run --save-every 2 --json=whole.json --export exported
[ "$(ls run)" = "$(printf 'step-000002\nstep-000004\nstep-000006')" ] || fail "saved: $(ls run)"
expect 0 ckpt list run
ckpt list run >list.txt && [ "$(wc -l <list.txt)" = 3 ] || fail "list: $(cat list.txt)"
ckpt list run --json | grep -q '"event":"checkpoint","path":"run/step-000006","step":6,"ranks":3,' || fail "list --json"
ckpt show run | grep -Eq '  h\.0\.attn\.c_attn\.weight +F32 \[96, 32\]' || fail "show: $(ckpt show run)"
ckpt show run | grep -A 2 '  h\.0\.attn\.c_attn\.weight ' | tail -n 2 >states
[ "$(cat states)" = "$(printf '    state %d: F32, 3072 values\n' 0 1)" ] || fail "show: states $(cat states)"
ckpt show run --json | grep -q '"event":"state","parameter":"h.0.attn.c_attn.weight","index":1,"name":null,"dtype":"F32","values":3072' || fail "show --json: states"
expect 0 ckpt verify run
expect 1 ckpt diff run/step-000002 run/step-000004
grep -Eq 'embed\.wte\.weight: parameter: element [0-9]+ differs: ' out || fail "diff: $(cat out)"
expect 0 ckpt diff run/step-000006 run
expect 2 ckpt diff run
expect 2 ckpt frobnicate run
expect 2 ckpt prune run
expect 6 ckpt verify nowhere
expect 6 ckpt show list.txt

# Other files, the same values, the same end.
expect 0 ckpt reshard run/step-000004 five --to 5
expect 0 ckpt verify five
expect 0 ckpt diff run/step-000004 five
expect 0 "$TESSERA" train $gpt -n 3 --steps 6 --resume five --json=again.json
[ "$(digest whole.json)" = "$(digest again.json)" ] || fail "digest after reshard"
mkdir -p folders
expect 0 ckpt export run folders/one
expect 0 ckpt export run folders/many --max-file 20KiB
[ -f folders/many/model.safetensors.index.json ] && [ "$(ls folders/many | wc -l)" -gt 3 ] || fail "export: $(ls folders/many)"
expect 0 ckpt export run folders/half --dtype bf16
[ "$(stat -c %s folders/half/model.safetensors)" -lt $(($(stat -c %s folders/one/model.safetensors) * 6 / 10)) ] || fail "bf16 is not half"
for folder in one many; do
  expect 0 ckpt import folders/$folder back-$folder
  expect 0 ckpt verify back-$folder
done
expect 0 ckpt diff back-one back-many
expect 0 "$TESSERA" train $gpt -n 2 --steps 1 --lr 0 --resume back-many --json=back.json
[ "$(digest whole.json)" = "$(digest back.json)" ] || fail "digest after export and import"

# Damage: a flipped bit anywhere, or a file that is shorter or gone.
for file in run/step-000006/*; do
  cp "$file" kept
  size=$(stat -c %s "$file")
  for at in 0 9 $((size / 3)) $((size - 2)); do
    old=$(dd if="$file" bs=1 skip=$at count=1 status=none | od -An -tu1)
    printf "\\x$(printf %02x $((old ^ 16)))" | dd of="$file" bs=1 seek=$at conv=notrunc status=none
    expect 1 ckpt verify run/step-000006
    cp kept "$file"
  done
  truncate -s $((size - 1)) "$file"
  expect 1 ckpt verify run
  mv "$file" gone
  [ "${file##*/}" = manifest.json ] || expect 1 ckpt verify run/step-000006
  cp kept "$file"
done
expect 0 ckpt verify run
expect 0 ckpt prune run --keep 1
[ "$(ls run)" = step-000006 ] || fail "pruned: $(ls run)"
echo "listed, verified, compared, resharded, exported, imported, pruned"
