#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 1800
# processors: 2
# The time of a step on two hosts of two ranks whose link takes 1 Gbit/s each way, and the bytes on that link: collectives in two
# steps (comm=hosts) and gloo alone, turn by turn (docs/benchmarks/network.md). RATE_KBIT, ROUNDS, STEPS change it.
# The times are for the table; the bytes decide: what the other host needs crosses the link once, not once for each of its ranks.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
for plugin in hosts gloo shm; do
  [ -e "$BUILD/plugins/libtessera-comm-$plugin.so" ] || { echo "skipped: comm-$plugin is not built"; exit 77; }
done
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer's times say nothing"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT TESSERA_COMM
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_HEARTBEAT=20
rounds=${ROUNDS:-5} steps=${STEPS:-30} rate=${RATE_KBIT:-1000000}
hosts_mtu=9000
hosts_on_switch 2
export TESSERA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
bytes_out() { wire count 0 1 | cut -d' ' -f2; }

# train COMM STRATEGY: its step's median time is in $step (s), the link's bytes each way and step in $link.
train() {
  local r begin
  begin=$(bytes_out)
  for r in 0 1; do
    on $r "$TESSERA" run --nnodes 2 --node-rank $r --rendezvous "${address[0]}:29400" -n 2 -- "$TESSERA" train mnist --json \
      --steps "$steps" --batch 8 --comm "$1" --strategy "$2" >run.$r.out 2>run.$r.err &
    pids[r]=$!
  done
  for r in 0 1; do wait "${pids[r]}" || fail "$1, $2: host $r: $(head -c 2000 run.*.err)"; done
  step=$(grep '"event":"summary"' run.0.out | grep -o '"step_seconds":[0-9.e-]*' | cut -d: -f2)
  link=$((($(bytes_out) - begin) / steps))
  digest run.0.out >>"digests.$2"
}

wire_rules all all rate_kbit="$rate"
for strategy in full hybrid:2; do
  for ((turn = 0; turn < rounds; turn++)); do
    train hosts $strategy
    echo "$strategy hosts $step $link" >>times
    train gloo $strategy
    echo "$strategy gloo $step $link" >>times
  done
  [ "$(sort -u "digests.$strategy" | wc -l)" = 1 ] || fail "$strategy: other bits: $(cat "digests.$strategy")"
done
sort -k1,2 -k3n times | awk -v rounds="$rounds" '{ key = $1 " " $2; n[key]++; if (n[key] == int((rounds + 1) / 2)) { ms[key] = 1000 * $3; link[key] = $4 } }
  END { print "| strategy | hosts, ms | gloo, ms | ratio | link, bytes a step: hosts | gloo |\n| --- | ---: | ---: | ---: | ---: | ---: |"
    for (s in ms) if (sub(/ hosts$/, "", s)) { h = s " hosts"; g = s " gloo"
      printf "| %s | %.1f | %.1f | %.2f | %d | %d |\n", s, ms[h], ms[g], ms[h] / ms[g], link[h], link[g]; more += link[h] > (s == "full" ? 0.6 : 1.01) * link[g] } exit more > 0 }' >table
code=$?
cat table
[ $code = 0 ] || fail "two steps send more over the link than they should"
nothing_left
