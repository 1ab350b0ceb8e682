#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# examples/plugins, each built from a copy of its folder against an install. wrap-transformer changes no number. optimizer-shampoo
# has one digest on any ranks. What
# comm-fault does to a run ends as it should: delays change no bit, all else is an error that names what and who. comm-mpi
# under mpirun has the digests of gloo at W = 2, 3, 4, passes check, and cells of the matrix.
set -eu
[ -z "$SANITIZE" ] || { echo "skipped: programs outside the tree are not built with the sanitizer"; exit 77; }
. "$SOURCE/tests/e2e/lib.sh"
prefix=$PWD/prefix
cmake --install "$BUILD" --prefix "$prefix" >install.log
tessera=$prefix/bin/tessera
unset TESSERA_PLUGIN_PATH
launcher=$(command -v ccache || true)
build() {
  cp -r "$SOURCE/examples/plugins/$1" .
  cmake -S "$1" -B "$1/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DCMAKE_C_FLAGS="-Wall -Wextra -Werror" >"$1.log" 2>&1 &&
    cmake --build "$1/build" --target install >>"$1.log" 2>&1 || { cat "$1.log"; fail "examples/plugins/$1 does not build"; }
}
digest() { sed -n 's/.*"params_digest":"\([0-9a-f]*\)".*/\1/p' "$1"; }

# wrap-transformer
build wrap-transformer
expect 0 "$tessera" plugins check transformer
head -c 6000 "$SOURCE/README.md" >text
small="--data $PWD/text --layers 3 --heads 2 --width 16 --context 16 --steps 2 --seed 1 --quiet --json"
expect 0 "$tessera" train gpt $small
want=$(digest out)
for wrap in transformer transformer:h; do
  expect 0 "$tessera" train gpt $small --wrap $wrap
  [ -n "$want" ] && [ "$(digest out)" = "$want" ] || fail "wrap $wrap changes the digest"
done
expect 3 "$tessera" train gpt $small --wrap transformer:nowhere
grep -q 'no module is named nowhere.0' err || fail "transformer:nowhere: $(cat err)"

# optimizer-shampoo, in less than 300 lines, with roots of two steps
[ "$(cat "$SOURCE"/examples/plugins/optimizer-shampoo/*.[ch] | wc -l)" -lt 300 ] || fail "optimizer-shampoo is longer than an example"
build optimizer-shampoo
expect 0 "$tessera" plugins check shampoo
export TESSERA_DETERMINISTIC=1
shampoo="$small --steps 12 --optimizer shampoo:every=11"
expect 0 "$tessera" train gpt $small --steps 12
adamw=$(digest out | tail -n 1) # a line for each rank, and one for all
expect 0 "$tessera" train gpt $shampoo --accum 2
want=$(digest out | tail -n 1)
[ -n "$want" ] && [ "$want" != "$adamw" ] || fail "shampoo is AdamW"
if [ -e "$BUILD/plugins/libtessera-comm-shm.so" ]; then
  expect 0 "$tessera" train gpt $shampoo -n 2 --comm shm
  [ "$(digest out | tail -n 1)" = "$want" ] || fail "shampoo has another digest on two ranks"
fi
unset TESSERA_DETERMINISTIC

# comm-fault, over whatever comm plugin is here
build comm-fault
over=
for comm in shm gloo; do
  if [ -z "$over" ] && [ -e "$BUILD/plugins/libtessera-comm-$comm.so" ]; then over=$comm; fi
done
if [ -n "$over" ]; then
  run() { # exit code, fault
    expect "$1" "$tessera" train linear -n 2 --steps 6 --seed 1 --quiet --json --comm "fault:$2,over=$over"
  }
  expect 0 "$tessera" train linear -n 2 --steps 6 --seed 1 --quiet --json --comm $over
  want=$(digest out)
  run 0 rank=1
  [ "$(digest out)" = "$want" ] || fail "no fault, another digest"
  grep -q '"step_allocations":0' out || fail "comm-fault allocates in a step"
  run 0 delay=100,rank=1,op=all_gather,at=2
  [ "$(digest out)" = "$want" ] || fail "a delay changes the digest"
  grep -q 'delay on rank 1: all_gather number 2' err || fail "no delay: $(cat err)"
  TESSERA_PLUGIN_PATH=$BUILD/plugins expect 0 "$tessera" plugins check --only 'static/*' --only 'abi/*' --only 'comm/values_two*' \
    --only 'comm/abort*' --only 'comm/mismatches_two*' --only comm/batch fault
  export TESSERA_TIMEOUT=1
  run 5 drop,rank=1,op=reduce_scatter,at=2
  grep -q 'reduce_scatter of unit .* took more than 1 s' err || fail "drop: $(cat err)"
  unset TESSERA_TIMEOUT
  run 0 corrupt=data,rank=0,op=reduce_scatter,at=2
  [ -n "$(digest out)" ] && [ "$(digest out)" != "$want" ] || fail "a corrupted gradient changes nothing"
  run 5 corrupt=tag,rank=1,at=3
  grep -q 'rank 0' err && grep -q 'rank 1' err || fail "corrupt=tag: $(cat err)"
  run 5 kill,rank=1,op=all_gather,at=3
  grep -q 'rank 1 was lost' err || fail "kill: $(cat err)"
  run 3 drop=maybe
  grep -q 'drop is "maybe", expected 0, 1, no' err || fail "drop=maybe: $(cat err)"
  run 3 dorp
  grep -q '"dorp" is no setting, expected delay=' err || fail "dorp: $(cat err)"
  TESSERA_FAULT_CORRUPT=data TESSERA_FAULT_RANK=0 TESSERA_FAULT_OP=reduce_scatter TESSERA_FAULT_AT=2 run 0 delay=1
  grep -q 'corrupted data on rank 0: reduce_scatter number 2' err || fail "variables of comm-fault: $(cat err)"
  nothing_left
else
  echo "comm-fault: no comm plugin to stack on"
fi

# comm-mpi
command -v mpicc >/dev/null && command -v mpirun >/dev/null || {
  printf 'no MPI (libopenmpi-dev)\n[  SKIPPED ] test_example_plugins__comm_mpi\n' # for tests/closing_table
  exit 0
}
build comm-mpi
mpirun="mpirun --oversubscribe"
[ "$(id -u)" != 0 ] || mpirun="$mpirun --allow-run-as-root"
expect 3 "$tessera" train linear -n 2 --steps 1 --quiet --comm mpi
grep -q 'start the program with mpirun' err || fail "mpi without mpirun: $(cat err)"
expect 0 "$tessera" plugins check --launch "$mpirun -n %d" --only 'static/*' --only 'abi/*' --only 'comm/values_three*' \
  --only 'comm/abort*' --only 'comm/mismatches_two*' mpi
model="gpt --data $PWD/text --layers 2 --heads 2 --width 16 --context 16 --steps 3 --seed 1"
for ranks in 2 3 4; do
  [ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || break
  expect 0 "$tessera" train $model -n $ranks --quiet --json --comm gloo
  want=$(digest out)
  expect 0 $mpirun -n $ranks "$tessera" train $model --quiet --json --comm mpi
  [ -n "$want" ] && [ "$(digest out)" = "$want" ] || fail "W = $ranks: mpi $(digest out), gloo $want"
done
if [ -x "$BUILD/tests/matrix/test_matrix" ]; then
  export TESSERA_MATRIX_COMM=$prefix/$(cd "$prefix" && find . -name 'libtessera-comm-mpi.so') TOY=$BUILD/tests/support/toy
  cell='*comm=libtessera-comm-mpi.so,*W=3*clip=on*'
  TESSERA_PLUGIN_PATH=$BUILD/plugins TESSERA_TEST_LAUNCHER="$mpirun -n %d" "$BUILD/tests/matrix/test_matrix" "$cell" >out 2>err ||
    fail "matrix $cell: $(tail -n 20 out err)"
  tail -n 1 out
fi
echo "wrap-transformer, comm-fault over ${over:-nothing}, comm-mpi"
