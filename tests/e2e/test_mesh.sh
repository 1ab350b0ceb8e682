#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 240
# processors: 2
# twin: 120
# Groups of ranks, whose collectives unit/group/test_group has: a tensor-parallel example with the bits of data parallelism
# alone; a lost rank is named in every group; ranks that wait for each other in a circle of groups are told, each in one line
# that names the waits; what a mesh cannot be, and what does not go with one, is refused. With DOUBLES=1 groups of GPUs over
# NCCL, on the doubles, whose collectives work on the device's memory.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_THREADS=1 TESSERA_LOG=warning
unset TESSERA_MESH TESSERA_STRATEGY TESSERA_WRAP TESSERA_MIRROR
on=
if [ -n "${DOUBLES:-}" ]; then
  needs_doubles tests/doubles/libnccl.so.2 tests/doubles/libcublas.so.13 plugins/libtessera-comm-nccl.so
  export TESSERA_DEVICE=cuda TESSERA_DOUBLE_DEVICES=8
  on=on_double
fi
groups=$BUILD/tests/support/groups
train=$BUILD/examples/mesh/train

# groups CODE N MODE…: what each rank says is in out.RANK and err.RANK.
groups() {
  rm -f out.* err.*
  expect "$1" $on "$TESSERA" run -n "$2" -- bash -c 'exec "$0" "$@" >out.$RANK 2>err.$RANK' "$groups" "${@:3}"
}
# says N PATTERN: every rank's one line is this, its own or as another's failure.
says() {
  local r own="groups: (rank [0-9] failed in [^:]*: )?$2(; this rank was in [^;]*)?"
  for ((r = 0; r < $1; r++)); do
    has_line "err.$r" "$own"
    [ "$(wc -l <"err.$r")" = 1 ] || fail "rank $r says more than one line: $(cat "err.$r")"
  done
}
# lost N VICTIM: all other ranks name it.
lost() {
  local r
  for ((r = 0; r < $1; r++)); do
    [ "$r" = "$2" ] || grep -q "^groups: rank $2 was lost\( (last seen in .*)\)\?: killed by signal 9" "err.$r" ||
      fail "rank $r of $1 does not name rank $2: $(cat "err.$r")"
  done
}
# with_and_without_a_loss: in all of dp the bits of dp alone; planned bytes are measured.
with_and_without_a_loss() {
  local alone
  TESSERA_MESH=dp=2 groups 0 2 kill -1
  alone=$(head -n 1 out.0)
  [ ${#alone} = 16 ] || fail "no digest: $(cat out.* err.*)"
  TESSERA_MESH=dp=2,tp=2 groups 0 4 kill -1
  [ "$(cat out.* | grep -v ok | sort -u)" = "$alone" ] || fail "dp=2 has digest $alone, dp=2,tp=2: $(cat out.*)"
  TESSERA_MESH=dp=2,tp=2 groups 5 4 kill 2 && lost 4 2
}
[ -z "$on" ] || { with_and_without_a_loss; exit 0; }
sum='tess_group_all_reduce \(sum\) of 1 f64'
orders='the ranks use their engines and groups in different orders: '

for comm in shm gloo hosts; do
  export TESSERA_COMM=$comm
  [ -e "$BUILD/plugins/libtessera-comm-$comm.so" ] || { echo "comm-$comm is not built"; continue; }
  [ $comm != hosts ] || export TESSERA_HOSTS_RANKS=2
  # The bits of dp alone, which are those of every backend.
  for dp in 2 4; do
    [ $comm != shm ] || { expect 0 "$TESSERA" run -n $dp --no-prefix -- "$train" && cp out "alone$dp"; }
    [ $comm$dp != gloo4 ] || continue
    expect 0 "$TESSERA" run --mesh dp=$dp,tp=2 --no-prefix -- "$train"
    grep -q '^digest [0-9a-f]*$' out && cmp -s out "alone$dp" || fail "$comm, dp=$dp,tp=2: $(cat out), alone: $(cat "alone$dp")"
  done

  with_and_without_a_loss
  [ $comm != shm ] || { TESSERA_MESH=dp=4,tp=2 groups 5 8 kill 5 && lost 8 5; }
done

export TESSERA_COMM=auto TESSERA_TIMEOUT=60 # without word of a circle this test fails early
groups 5 2 crossed
says 2 "${orders}rank 0 is in $sum of group left \(ranks 0, 1\), rank 1 is in $sum of group right \(ranks 0, 1\)"
groups 5 3 circle
a="rank 0 is in $sum of group zero-one \(ranks 0, 1\)" b="rank 1 is in $sum of group one-two \(ranks 1, 2\)"
says 3 "$orders$a, $b, rank 2 is in $sum of group two-zero \(ranks 0, 2\)"
groups 5 2 half
says 2 "${orders}rank 0 is in tess_close of group left \(ranks 0, 1\), rank 1 is in $sum of group right \(ranks 0, 1\)"
TESSERA_MESH=dp=2,tp=2 groups 5 4 engines # rank 3 is in the group of all, and another in an engine over dp, or for it
says 4 "${orders}rank [0-3] is in .* of group (all|dp) \(ranks .*\), rank [0-3] is in .* of group (all|dp) \(ranks .*\)"
groups 5 3 opened
says 3 'the ranks open their groups in different orders: rank 0 opens group left, rank 1 group right'
groups 3 2 sizes
says 2 'tess_group_options.ranks is 3 on rank [01], but 2 ranks gave the color 0 of group three'

# What does not go together.
TESSERA_MIRROR=1 groups 3 2 recover
says 2 'TESSERA_MIRROR=1: an engine over a group of ranks \(tess_options.group\) cannot go on without a lost one; .*'
for refused in "-n 3 --mesh dp=2,tp=2|--mesh dp=2,tp=2 is a mesh of 4 ranks, but 3 are started" \
  "--mesh dp=2,tp|--mesh is 'dp=2,tp', expected up to 8 dimensions as in dp=4,tp=2, the innermost last" \
  "--mesh dp=2,dp=2|--mesh is 'dp=2,dp=2', expected up to 8 dimensions as in dp=4,tp=2, the innermost last" \
  "-n 2:4 --mesh dp=4|--mesh dp=4 is of 4 ranks: MIN:MAX ranks have no mesh" \
  "--hosts a:2,b:3 --mesh dp=2,tp=2|--mesh dp=2,tp=2: 2 ranks of tp lie on one host, which the 3 of b are not made of" \
  "--nnodes 2 --node-rank 0 --rendezvous a:29400 -n 2,3 --mesh dp=5|--mesh dp=5: 5 ranks of dp lie on one host, which the 2 of node 0 are not made of"; do
  expect 2 "$TESSERA" run ${refused%%|*} -- true
  has_line err "tessera run: $(sed 's/[][().*+?]/\\&/g' <<<"${refused#*|}")"
done

# On two hosts, each with whole groups of tp: two launchers, of which an agent starts each here.
printf '#!/bin/bash\nexec bash -c "$2"\n' >agent && chmod +x agent
pick_port
if "$TESSERA" run --rendezvous 127.0.0.1:$MASTER_PORT --agent ./agent --hosts 127.0.0.1:1 -- true >none 2>&1; then
  expect 0 "$TESSERA" run --mesh dp=2,tp=2 --rendezvous 127.0.0.1:$MASTER_PORT --agent ./agent --no-prefix \
    --hosts 127.0.0.1:2,localhost:2 -- "$train"
  cmp -s out alone2 || fail "on two hosts: $(cat out), alone: $(cat alone2)"
else
  echo "no launchers on several hosts here: $(cat none)"
fi

# A plan of the program, and of a model along the first dimension; the simulator sees where its ranks lie.
expect 0 "$TESSERA" plan --mesh dp=4,tp=2 -- "$train"
has_line out "$train: 4776 parameters in 3 units, per rank of 4"
expect 0 "$TESSERA" plan -n 4 -- "$train"
has_line out "$train: 9480 parameters in 3 units, per rank of 4"
expect 3 "$TESSERA" plan -n 4 --mesh dp=4,tp=2 gpt
one_line err "tessera: error: --mesh dp=4,tp=2 is a mesh of 8 ranks, but --ranks is 4"
seconds() { expect 0 "$TESSERA" plan gpt "$@" --machine h100-8x-node && sed -n 's/^time on .*: \(.*\) s per step/\1/p' out; }
[ "$(seconds -n 4)" = "$(seconds --mesh dp=4,tp=2)" ] || fail "dp=4 of tp=2 lies on one node of 8"
awk -v a="$(seconds -n 8)" -v b="$(seconds --mesh dp=8,tp=2)" 'BEGIN { exit !(b > a) }' ||
  fail "dp=8 of tp=2 crosses nodes of 8, and takes no longer: $(seconds -n 8) $(seconds --mesh dp=8,tp=2)"
