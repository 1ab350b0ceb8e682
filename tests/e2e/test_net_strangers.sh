#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# slow: 1800 RUNS=3 STRANGERS=2000 PAIRS=5
# A run over two hosts among strangers, who connect to the control port and to gloo's ports with garbage, silence, another
# secret, and replayed and reflected handshakes: it has the bits of an undisturbed one. What crosses the network holds neither
# the secret nor plain control frames.
# All strangers connect while the run lasts: from its half on, it waits for the rest of them.
# RUNS: how many are among strangers; STRANGERS: how many each has (600 here). PAIRS: of runs in which nothing waits, one among
# strangers and one undisturbed, whose times are compared; LASTING: the seconds that each of them shall take here.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: a sanitizer's ranks take another time"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT TESSERA_COMM
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_HEARTBEAT=400
runs=${RUNS:-1} count=${STRANGERS:-600} every_us=${EVERY_US:-2000} steps=100 visits=0
hosts_on_switch 2
export TESSERA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
seconds() { grep -o '"event":"summary".*' run.0.out | grep -o '"seconds":[0-9.e-]*' | cut -d: -f2; }

launch() {
  local r
  rm -f run.*
  wire_rules all all delay_us=10000 # so that connecting takes a while, in which gloo listens
  for r in 0 1; do
    ip netns exec "$hosts_mark-$r" "$TESSERA" run --nnodes 2 --node-rank $r --rendezvous "${address[0]}:29400" -n 2 -- \
      "$TESSERA" train gpt --layers 1 --width 32 --heads 2 --context 64 --batch 32 --json --steps "$steps" >run.$r.out 2>run.$r.err &
    pids[r]=$!
  done
}
training() { grep -qs '"event":"step"' run.0.out; }
# await NAME [COMMAND]: the run's end, and the command while it trains
await() {
  within 60 training || fail "$1: no training: $(head -c 2000 run.*.err)"
  wire_plain
  [ -z "${2:-}" ] || "$2"
  for r in 0 1; do wait "${pids[r]}" || fail "$1: host $r: exit code $?: $(head -c 2000 run.*.err)"; done
}
listening() { on 0 ss -tln | grep -q ":29400 "; }
half() { [ "$(grep -c '"event":"step"' run.0.out)" -gt $((steps / 2)) ] || gone "$crowd"; }
# hold: a rank of host 1 stands still until all strangers were there, so that no run ends before.
hold() {
  local rank
  within 120 half || fail "among strangers: half of the steps took more than 120 s"
  ! gone "$crowd" || return 0
  read -r rank _ <"/proc/${pids[1]}/task/${pids[1]}/children"
  kill -STOP "$rank"
  within 250 gone "$crowd" || fail "250 s were too short for $count strangers"
  kill -CONT "$rank"
}
# invite [hold]: the strangers, on host 0 itself and therefore nearer than any rank of host 1. Elsewhere they would not take this
# machine's time: of a timed run they get what it leaves. One that waits for them has none to lose.
invite() {
  local nice=19
  [ -z "${1:-}" ] || nice=0
  within 20 listening || fail "nobody listens at port 29400: $(cat run.0.err)"
  on 0 nice -n $nice "$BUILD/tests/support/strangers" "${address[0]}" 29400 "$count" "$every_us" capture >strangers.out 2>strangers.err &
  crowd=$!
}

wire capture "$PWD/capture" >/dev/null
launch
await alone
wire capture off >/dev/null
digest run.0.out >alone
[ -s alone ] || fail "no digest: $(cat run.0.out)"
alone_took=$(seconds)

# The capture has what is public: the proofs' first word; so the search would find the rest.
grep -qa TGA2 capture || fail "the capture has no proof of gloo's"
for text in "$TESSERA_SECRET" TSSK tessera-comm; do
  ! grep -qaF "$text" capture || fail "'$text' has crossed the network"
done
echo "captured $(stat -c %s capture) bytes"

same_digest() {
  [ -e alone ] || digest run.0.out >alone
  digest run.0.out | cmp -s - alone || fail "other bits $1: $(digest run.0.out), the first run had $(cat alone)"
}
undisturbed() {
  launch
  await undisturbed
  same_digest undisturbed
  before=$(seconds)
}
among() { # among [hold]
  local code=0
  launch
  invite "${1:-}"
  await "among strangers" "${1:-}"
  same_digest "among strangers"
  after=$(seconds)
  wait "$crowd" || code=$?
  [ $code = 0 ] || fail "the strangers: $(cat strangers.out strangers.err)"
  cat strangers.out
  [ -z "${1:-}" ] || ! grep -q "to gloo's ports 0," strangers.out || fail "no stranger has met gloo"
  visits=$((visits + $(grep -o 'visits [0-9]*' strangers.out | cut -d' ' -f2)))
}

for ((run = 0; run < runs; run++)); do among hold; done
[ "$visits" -ge $((runs * count)) ] || fail "$visits strangers connected while runs lasted, expected $((runs * count))"

if [ -n "${PAIRS:-}" ]; then # each has 30 of 2,000 strangers on a busy machine, 770 to 860 on an idle one
  steps=$(awk -v s="$alone_took" -v n="$steps" -v want="${LASTING:-25}" 'BEGIN { print int(n * want / s) + 1 }')
  rm alone
  for ((pair = 0; pair < PAIRS; pair++)); do # in turn, so that a slow drift cancels
    if ((pair % 2)); then among; undisturbed; else undisturbed; among; fi
    echo "$before $after" >>times
  done
  awk '{ r[NR] = $2 / $1; print "seconds alone, among strangers:", $1, $2, "ratio", r[NR] }
    END { for (i = 1; i <= NR; i++) for (k = i + 1; k <= NR; k++) if (r[k] < r[i]) { t = r[i]; r[i] = r[k]; r[k] = t }
      m = int((NR + 1) / 2); print "median ratio", NR % 2 ? r[m] : (r[m] + r[m + 1]) / 2, "of", NR, "pairs" }' times
fi
echo "$visits strangers"
nothing_left
