#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Hosts that lose each other: a short cut heals and the bits stay; after a long one every host ends with code 5, and who
# cannot talk to whom is named, also where the control plane still reaches both.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_GRACE=2
hosts 3
export TESSERA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
model=(gpt --layers 1 --width 32 --heads 2 --context 16 --json)

digest() { grep -ho '"params_digest":"[^"]*"' "$@"; }
training() { grep -q '"event":"step","step":3,' run.0.out; }

# launch HEARTBEAT OPTIONS…: one rank on each of three hosts; waits until they train.
launch() {
  local r heartbeat=$1
  shift
  rm -f run.*
  pids=()
  for r in 0 1 2; do
    TESSERA_HEARTBEAT=$heartbeat ip netns exec "$hosts_mark-$r" "$TESSERA" run --nnodes 3 --node-rank "$r" \
      --rendezvous "${address[0]}:29400" -n 1 -- "$TESSERA" train "${model[@]}" "$@" >run.$r.out 2>run.$r.err &
    pids[r]=$!
  done
  within 60 training || fail "no training: $(head -c 2000 run.*.err)"
}

# all_end CODE SECONDS
all_end() {
  local r
  for r in 0 1 2; do
    ends "${pids[r]}" "$2"
    [ "$code" = "$1" ] || fail "host $r ended with $code, expected $1: $(head -c 2000 run.*.err)"
  done
}

# names HOST PATTERN
names() { grep -Eq "tessera\[$1\]: error: .*$2" run.$1.err || fail "host $1 does not name '$2': $(cat run.$1.err)"; }

# A cut that heals within the limit.
on 0 "$TESSERA" train "${model[@]}" -n 3 --steps 400 >one.out 2>err || fail "alone: $(cat err)"
launch 20 --steps 400
cut_host 2
sleep 1
gone "${pids[0]}" && fail "it ended before the cut"
join_host 2
all_end 0 120
[ "$(digest run.0.out)" = "$(digest one.out)" ] || fail "other bits after a cut: $(digest run.0.out), $(digest one.out)"

# One that does not.
launch 2 --steps 1000000
cut_host 2
all_end 5 30
for r in 0 1; do names $r 'rank 2 .*cannot be reached'; done
names 2 '(rank [01]|tessera run).*cannot be reached'
join_host 2

# Ranks 1 and 2 cannot talk, while rank 0 reaches both; then one direction only.
for way in both one; do
  launch 2 --steps 1000000
  deafen 1 2
  [ $way = one ] || deafen 2 1
  all_end 5 30
  for r in 0 1 2; do names $r 'rank (1 .*rank 2|2 .*rank 1) .*cannot be reached'; done
  mend 1 2
  [ $way = one ] || mend 2 1
done
nothing_left
