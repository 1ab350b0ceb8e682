#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 600
# processors: 2
# tessera/torch.hpp on several ranks: one digest over ranks, strategies, units, offload, backends and recomputation; another one
# with a rate for each group; losses of one rank; a model made without memory; checkpoints; an exception that all ranks hear of. examples/torch: at most 25 changed lines, the lines of LibTorch
# alone on one rank, a plan.
. "$SOURCE/tests/e2e/lib.sh"
probe=$BUILD/tests/torch/test_torch
[ -x "$probe" ] || { echo "skipped: LibTorch not found (libtorch-dev)"; exit 77; }
export TESSERA_THREADS=1 OMP_NUM_THREADS=1 TESSERA_LOG=error XDG_CACHE_HOME=$PWD/cache

# on RANKS ARGUMENT…: four microbatches a step on any number of ranks; their sums in one tree.
on() {
  TESSERA_DETERMINISTIC=1 TESSERA_ACCUM=$((4 / $1)) expect 0 "$TESSERA" run -n "$1" -- "$probe" train "${@:2}"
  sed -i 's/^\[0\] //' out
}
on 1
[ "$(grep -c loss out)" = 50 ] || fail "not 50 losses: $(cat out err)"
cp out one.txt
digest=$(sed -n 's/^digest //p' one.txt)
[ ${#digest} = 16 ] || fail "no digest"
same() { [ "$(sed -n 's/^digest //p' out)" = "$digest" ] || fail "$*: another digest: $(tail -n 1 out)"; }
on 1 recompute && same recompute
on 2 meta && same 'made on the meta device'
there() { [ "$1" = auto ] || [ "$1" = none ] || [ -e "$BUILD/plugins/libtessera-$2-$1.so" ]; }
export TESSERA_HOSTS_RANKS=2
while read -r ranks strategy wrap offload comm sync more; do
  there "${offload%%:*}" offload && there "$comm" comm || { echo "not built here: $offload or $comm"; continue; }
  export TESSERA_STRATEGY=$strategy TESSERA_WRAP=$wrap TESSERA_OFFLOAD=$offload TESSERA_COMM=$comm TESSERA_SYNC=$sync
  # shellcheck disable=SC2086
  on "$ranks" $more && same "$ranks $strategy $wrap $offload $comm $sync $more"
  paste -d ' ' <(grep loss one.txt) <(grep loss out) | awk '{ d = $4 - $8; if (d < 0) d = -d; if ($2 != $6 || d > 1e-5 * $4) { print; bad = 1 } }
    END { exit bad || NR != 50 }' || fail "$ranks ranks: other losses than one rank's"
done <<'END'
2 full scopes none auto each
2 grad_op none cpu auto end recompute
4 full size:1000 none auto each recompute
4 hybrid:2 scopes cpu auto each
4 none scopes none auto each
4 hybrid_grad_op:2 scopes none hosts end
2 full none disk:. shm each
2 full scopes none gloo each
END
unset TESSERA_STRATEGY TESSERA_WRAP TESSERA_OFFLOAD TESSERA_COMM TESSERA_SYNC TESSERA_HOSTS_RANKS

# In fp16 with scaled losses: the same norms, scales and parameters on any number of ranks. The first steps overflow.
TESSERA_DETERMINISTIC=1 TESSERA_ACCUM=4 expect 0 "$TESSERA" run -n 1 -- "$probe" rough
sed 's/^\[0\] //' out >rough.txt
grep -q '^step 0 norm \(inf\|nan\) scale 524288$' rough.txt && [ "$(grep -c '^step' rough.txt)" = 40 ] || fail "fp16: $(cat rough.txt err)"
while read -r ranks strategy comm; do
  TESSERA_STRATEGY=$strategy TESSERA_COMM=$comm TESSERA_DETERMINISTIC=1 TESSERA_ACCUM=$((4 / ranks)) expect 0 "$TESSERA" run -n "$ranks" -- "$probe" rough
  sed 's/^\[0\] //' out | diff rough.txt - || fail "fp16 on $ranks ranks, strategy $strategy"
done <<'END'
2 full auto
4 hybrid:2 auto
4 none auto
END

# Half of a run on two ranks, the rest on four. The export has LibTorch's names.
on 2 save=half
on 4 save=half && same "resumed on another number of ranks"
on 2 bare save=half && same 'resumed with a model that has no values of its own'
"$TESSERA" ckpt export half folder >/dev/null || fail "ckpt export"
for name in embed.weight layers.1.norm.bias bn.running_var bn.num_batches_tracked head.scale; do
  head -c 20000 folder/model.safetensors | grep -aq "\"$name\"" || fail "the export has no $name"
done

# Values from a file of tensors, as Python writes it, into a model that has none. A file that is not there is one line.
expect 0 "$BUILD/tests/torch/test_modules" write model.safetensors
on 2 bare import=model.safetensors && same 'values of a file'
code=0
"$TESSERA" run -n 2 -- "$probe" train bare import=none.safetensors >out 2>err || code=$?
[ $code = 6 ] && grep -q 'none.safetensors: No such file or directory$' err || fail "no file: $code $(cat err)"

# A rate for each group, another in each step, by the engine and by LibTorch: one digest over ranks and a resumed half, which is
# not that of one rate for all.
plain=$digest
for how in rates rates=own; do
  on 1 $how
  digest=$(sed -n 's/^digest //p' out)
  [ ${#digest} = 16 ] && [ "$digest" != "$plain" ] || fail "$how changes nothing: $digest"
  on 2 $how && same "$how on two ranks"
  TESSERA_STRATEGY=hybrid:2 TESSERA_OFFLOAD=cpu on 4 $how recompute && same "$how on four ranks, offloaded"
  rm -rf half
  on 2 $how save=half
  on 4 $how save=half && same "$how, resumed on another number of ranks"
done

# BatchNorm's statistics become the mean of all ranks when that is asked for.
for ranks in 1 2 4; do
  expect 0 "$TESSERA" run -n $ranks -- "$BUILD/tests/torch/test_modules" buffers
  [ "$(grep -c 'buffers ok' out)" = $ranks ] || fail "buffers of $ranks ranks: $(cat out err)"
done

# An exception on one rank: the other names it, in a file of its own, because the launcher may leave out an echo.
code=0
"$TESSERA" run -n 2 -- sh -c 'exec "$0" train fault=throw 2>told.$RANK' "$probe" >out 2>err || code=$?
[ $code != 0 ] && grep -q 'rank 1 failed in .*forward of block "layers.1" ended by an exception: dropout probability' told.0 ||
  fail "fault=throw: $code $(cat err told.0)"
nothing_left
# So it does of a rank that is lost, and of one that runs its blocks in another order.
code=0
"$TESSERA" run -n 2 -- sh -c 'exec "$0" train fault=kill 2>told.$RANK' "$probe" >out 2>err || code=$?
[ $code != 0 ] && grep -q 'rank 1 was lost' told.0 || fail "fault=kill: $code $(cat err told.0)"
nothing_left
code=0
"$TESSERA" run -n 2 -- sh -c 'exec "$0" train fault=order 2>told.$RANK' "$probe" >out 2>err || code=$?
[ $code != 0 ] && [ "$(grep -c 'the ranks call different things: rank [01] is in .*, rank [01] in ' told.0 told.1)" = "$(printf 'told.%d:1\n' 0 1)" ] || fail "fault=order: $code $(cat err told.0 told.1)"
nothing_left

# The examples.
for example in mnist decoder; do
  changed=$(diff "$SOURCE/examples/torch/$example/plain.cpp" "$SOURCE/examples/torch/$example/sharded.cpp" | awk '
    function lines(range, ends) { return split(range, ends, ",") == 2 ? ends[2] - ends[1] + 1 : 1 }
    /^[0-9]/ { kind = $0; gsub(/[0-9,]/, "", kind); split($0, side, /[acd]/)
      before = kind == "a" ? 0 : lines(side[1]); after = kind == "d" ? 0 : lines(side[2]); total += before > after ? before : after }
    END { print total + 0 }')
  [ "$changed" -le 25 ] && [ "$changed" -gt 5 ] || fail "examples/torch/$example: $changed changed lines"
  echo "examples/torch/$example: $changed changed lines"
  has_line "$SOURCE/docs/from-libtorch.md" "\| $example \| .* \| $changed \|"
done
expect 0 "$BUILD/tests/torch/test_programs" "$SOURCE/tests/torch/test_programs.cpp"
while read -r name lines; do
  has_line "$SOURCE/docs/from-libtorch.md" "\| $name \| .* \| $lines \|"
done < <(sed -n 's/^\([a-z]*\): \([0-9]*\) lines for sharding.*/\1 \2/p' out)
[ "$(grep -c 'lines for sharding' out)" = 3 ] || fail "not three programs: $(cat out)"
bin=$BUILD/examples/torch
idx() { # FILE, HEADER as octal bytes, BYTES: what MNIST's files look like; the pixels are digits of numbers
  { printf "$2" && seq 100000 | head -c "$3"; } >"$1"
}
mkdir -p digits
idx digits/train-images-idx3-ubyte '\0\0\010\003\0\0\001\0\0\0\0\034\0\0\0\034' $((256 * 784))
idx digits/t10k-images-idx3-ubyte '\0\0\010\003\0\0\0\100\0\0\0\034\0\0\0\034' $((64 * 784))
{ printf '\0\0\010\001\0\0\001\0'; for ((i = 0; i < 256; i++)); do printf "\\00$((i % 8))"; done; } >digits/train-labels-idx1-ubyte
{ printf '\0\0\010\001\0\0\0\100'; for ((i = 0; i < 64; i++)); do printf "\\00$((i % 8))"; done; } >digits/t10k-labels-idx1-ubyte
expect 0 "$bin/mnist_plain" digits 2
cp out plain.txt
expect 0 "$bin/mnist_sharded" digits 2
diff plain.txt out && [ "$(grep -c loss out)" = 2 ] || fail "mnist: other losses than LibTorch's"
seq 5000 >text
expect 0 "$bin/decoder_plain" text 50 2 32
cp out plain.txt
expect 0 "$bin/decoder_sharded" text 50 2 32
grep loss out | paste -d ' ' <(grep loss plain.txt) - | awk '{ d = $4 - $10; if (d < 0) d = -d; if ($2 != $8 || d > 1e-5 * $4) { print; bad = 1 } }
  END { exit bad || NR != 50 }' || fail "decoder: other losses than LibTorch's"
# With LibTorch's arithmetic they are its, to the bit, and so are norms and the evaluation.
rm -rf decoder
TESSERA_OPTIMIZER=own expect 0 "$bin/decoder_sharded" text 50 2 32
diff plain.txt out || fail "decoder, TESSERA_OPTIMIZER=own: other bits than LibTorch's"
# In bf16 the losses are near.
rm -rf decoder
TESSERA_PRECISION=bf16 expect 0 "$TESSERA" run -n 2 -- "$bin/decoder_sharded" text 50 2 32
sed 's/^\[0\] //' out | grep loss | paste -d ' ' <(grep loss plain.txt) - | awk '{ d = $4 - $10; if (d < 0) d = -d; if ($2 != $8 || d > 0.03 * $4) { print; bad = 1 } }
  END { exit bad || NR != 50 }' || fail "decoder, bf16: other losses"
rm -rf mnist decoder
expect 0 "$TESSERA" run -n 2 -- "$bin/mnist_sharded" digits 1
expect 0 "$TESSERA" run -n 2 -- "$bin/decoder_sharded" text 5 2 32
expect 0 "$TESSERA" plan -n 8 -- "$bin/decoder_sharded" text
grep -q 'prefetch 0$' out || fail "a unit is gathered ahead: $(cat out)"
grep -q 'optimizer state' out || fail "no plan: $(cat out err)"
unplanned="not planned: activations and other memory that the program's library allocates;"
has_line out "$unplanned no run is known that says how much" # another size than those above
expect 0 "$TESSERA" plan -n 8 -- "$bin/decoder_sharded" text 5 2 32
has_line out "$unplanned rank 0 of the last run, of 2, held at most [0-9.]+ MiB"
expect 0 "$TESSERA" plan -n 8 --json -- "$bin/decoder_sharded" text 5 2 32
held=$(sed -n 's/.*"unplanned":true,"last_run_held_bytes":\([0-9]*\),"last_run_ranks":2.*/\1/p' out)
[ -n "$held" ] && [ "$held" -gt 1000000 ] || fail "no figure of the last run: $(cat out)"
echo "one digest: $digest"
