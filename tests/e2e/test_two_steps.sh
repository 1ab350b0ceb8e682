#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# comm=auto between two hosts of two ranks: shared memory within them, gloo between them, with the bits of one host; what
# crosses the link crosses it once. Layouts that the tree of sums cannot hold go over gloo alone, and it is said.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
for plugin in hosts gloo shm; do
  [ -e "$BUILD/plugins/libtessera-comm-$plugin.so" ] || { echo "skipped: comm-$plugin is not built"; exit 77; }
done
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT TESSERA_COMM
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_HEARTBEAT=20 TESSERA_LOG=info
hosts 2
digits=$(brief_digits)
export TESSERA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')

# train COUNTS OPTIONS…: on both hosts; what host 0 sent is in $link and $loopback, and what it received over the link in $received.
received_so_far() { on 0 cat /proc/net/dev | awk -F'[: ]+' '$2 == "eth0" {print $3}'; }
train() {
  local r counts=$1 link0 loop0 received0
  shift
  received0=$(received_so_far)
  link0=$(on 0 cat /proc/net/dev | awk -F'[: ]+' '$2 == "eth0" {print $11}')
  loop0=$(on 0 cat /proc/net/dev | awk -F'[: ]+' '$2 == "lo" {print $11}')
  for r in 0 1; do
    on $r "$TESSERA" run --nnodes 2 --node-rank $r --rendezvous "${address[0]}:29400" -n "$counts" -- \
      "$TESSERA" train mnist $digits --json --steps 4 "$@" >run.$r.out 2>run.$r.err &
    pids[r]=$!
  done
  for r in 0 1; do wait "${pids[r]}" || fail "host $r: $(head -c 2000 run.*.err)"; done
  link=$(($(on 0 cat /proc/net/dev | awk -F'[: ]+' '$2 == "eth0" {print $11}') - link0))
  received=$(($(received_so_far) - received0))
  loopback=$(($(on 0 cat /proc/net/dev | awk -F'[: ]+' '$2 == "lo" {print $11}') - loop0))
}
same() { [ "$(digest run.0.out)" = "$(digest one)" ] && [ -n "$(digest one)" ] || fail "$1: $(digest run.0.out), one host has $(digest one)"; }

for options in "" "--strategy hybrid:2"; do
  expect 0 "$TESSERA" train mnist $digits -n 4 --json --steps 4 --comm shm $options
  mv out one
  train 2 --comm gloo $options
  same "gloo $options"
  gloo_link=$link gloo_loopback=$loopback
  train 2 $options
  same "auto $options"
  grep -q 'comm=auto picked hosts for 4 ranks, 2 of them on one host' run.0.err || fail "picked: $(cat run.0.err)"
  grep -q 'comm hosts: 2 hosts of 2 ranks: shm within, gloo between them' run.0.err || fail "no word: $(cat run.0.err)"
  echo "mnist $options: over the link $link bytes, gloo alone $gloo_link; within the host $loopback, $gloo_loopback"
  # Nothing of size goes over the host's own network; full sharding sends half as much over the link.
  [ $((loopback * 10)) -lt "$gloo_loopback" ] || fail "$loopback bytes over loopback, gloo alone sends $gloo_loopback"
  limit=$([ -z "$options" ] && echo 56 || echo 105)
  [ $((link * 100)) -lt $((gloo_link * limit)) ] || fail "$link bytes over the link, gloo alone sends $gloo_link"
done

# Hosts of one machine, by option; the last one may have fewer: 2 and 2, 4 and 2, 4 and 3.
for shape in "4 2 2 hosts of 2 ranks:" "6 4 2 hosts of 4 ranks, the last of 2:" "7 4 2 hosts of 4 ranks, the last of 3:"; do
  read -r n each words <<<"$shape"
  expect 0 "$TESSERA" train mnist $digits -n "$n" --json --steps 2 --comm shm
  mv out one
  TESSERA_HOSTS_RANKS=$each expect 0 "$TESSERA" train mnist $digits -n "$n" --json --steps 2 --comm hosts
  grep -q "comm hosts: $words shm within" err || fail "no word of $shape: $(cat err)"
  mv out run.0.out
  same "$shape"
done
# And over the link: 2 and 1.
expect 0 "$TESSERA" train mnist $digits -n 3 --json --steps 4 --comm shm
mv out one
train 2,1 --comm gloo
same "gloo, 2 and 1"
gloo_both=$((link + received))
train 2,1
same "2 and 1"
both=$((link + received))
echo "mnist, 2 and 1: over the link both ways $both bytes, gloo alone $gloo_both"
# Two blocks and one of a gather, one and two of a reduction; gloo two and two of each. Nothing goes to a rank that has no block.
[ $((both * 100)) -lt $((gloo_both * 79)) ] || fail "2 and 1: $both bytes over the link, gloo alone sends $gloo_both"
grep -q 'comm hosts: 2 hosts of 2 ranks, the last of 1: shm within, gloo between them' run.0.err || fail "no word: $(cat run.0.err)"

expect 0 "$TESSERA" train mnist $digits -n 4 --json --steps 4 --comm shm
mv out one
train 1,3
same "1 and 3"
grep -q 'gloo alone between all 4 ranks: the hosts have different numbers of ranks' run.0.err || fail "no word: $(cat run.0.err)"
nothing_left
