#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# Several hosts (network namespaces) as docs/two-hosts.md says: the digests are those of one host, whoever starts the ranks.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS TESSERA_SECRET MASTER_ADDR MASTER_PORT
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_HEARTBEAT=20
hosts 3
secret=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')


# all_hosts N PREFIX COMMAND…: runs it on N hosts with $node set, outputs in PREFIX.R.out and .err; all must succeed.
all_hosts() {
  local n=$1 prefix=$2 r pids=()
  shift 2
  for ((r = 0; r < n; r++)); do
    node=$r on "$r" env node="$r" "$@" >"$prefix.$r.out" 2>"$prefix.$r.err" &
    pids+=($!)
  done
  for ((r = 0; r < n; r++)); do
    wait "${pids[r]}" || fail "host $r of $n: exit code $?: $(head -c 2000 "$prefix".*.err)"
  done
}

# compare HOSTS RANKS MODEL OPTIONS…: over that many hosts with so many ranks each, against one host.
compare() {
  local hosts=$1 each=$2 model=$3 name="$1x$2-$3"
  shift 3
  on 0 "$TESSERA" train "$model" -n $((hosts * each)) --json "$@" >"$name.one" 2>err || fail "$name alone: $(cat err)"
  all_hosts "$hosts" "$name" TESSERA_SECRET="$secret" sh -c '
    exec "$0" run --nnodes '"$hosts"' --node-rank $node --rendezvous '"${address[0]}"':29400 -n '"$each"' -- \
      "$0" train '"$model"' --json "$@"' "$TESSERA" "$@"
  [ -n "$(digest "$name.one")" ] || fail "$name: no digest: $(cat "$name.one")"
  [ "$(digest "$name.one")" = "$(digest "$name".*.out)" ] ||
    fail "$name: $(digest "$name".*.out), one host has $(digest "$name.one")"
}
digits=$(brief_digits)
compare 2 1 mnist $digits --steps 3
compare 2 2 mnist $digits --steps 3
compare 3 1 gpt $(brief_text) --steps 2 --layers 1 --width 32 --heads 2 --context 16
nothing_left

# torchrun's variables (torchrun itself is not installed): its store holds MASTER_PORT, and the port behind is taken too.
holds_ports() { exec ip netns exec "$hosts_mark-0" "$BUILD/tests/e2e/hold_port" "${address[0]}" 29600 "${address[0]}" 29601; }
holds_ports >held &
holder=$!
within 30 grep -q held held || fail "no ports held"
all_hosts 2 torchrun TESSERA_SECRET="$secret" sh -c '
  export RANK=$node WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 GROUP_RANK=$node MASTER_ADDR='"${address[0]}"' \
    MASTER_PORT=29600 TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True
  exec "$0" train mnist '"$digits"' --json --steps 3' "$TESSERA"
kill "$holder"
wait "$holder" 2>/dev/null
[ "$(digest torchrun.*.out)" = "$(digest 2x1-mnist.one)" ] || fail "torchrun: another digest: $(digest torchrun.*.out)"

# MPICH's and Slurm's variables, one GPU or none per task.
all_hosts 2 mpich TESSERA_SECRET="$secret" sh -c '
  export PMI_RANK=$node PMI_SIZE=2 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 MASTER_ADDR='"${address[0]}"'
  exec "$0" train mnist '"$digits"' --json --steps 3' "$TESSERA"
all_hosts 2 slurm TESSERA_SECRET="$secret" sh -c '
  export SLURM_JOB_ID=7 SLURM_STEP_ID=0 SLURM_PROCID=$node SLURM_STEP_NUM_TASKS=2 SLURM_LOCALID=0 \
    SLURM_STEP_NUM_NODES=2 SLURM_STEP_NODELIST='"${address[0]},${address[1]}"'
  exec "$0" train mnist '"$digits"' --json --steps 3' "$TESSERA"
for name in mpich slurm; do
  [ "$(digest $name.*.out)" = "$(digest 2x1-mnist.one)" ] || fail "$name: another digest: $(digest $name.*.out)"
done
nothing_left

# Without a secret nothing listens beyond the host, and the message says what to do.
expect 3 on 0 "$TESSERA" run --nnodes 2 --node-rank 0 --rendezvous "${address[0]}:29400" -n 1 -- true
has_line err 'tessera: error: several hosts need a secret: set TESSERA_SECRET or TESSERA_SECRET_FILE to the same text on all of them \(openssl rand -hex 32\)'
TESSERA_SECRET=short expect 3 on 0 "$TESSERA" run --nnodes 2 --node-rank 0 --rendezvous "${address[0]}:29400" -n 1 -- true
RANK=0 WORLD_SIZE=2 LOCAL_WORLD_SIZE=1 MASTER_ADDR=${address[0]} expect 3 on 0 "$TESSERA" train mnist --steps 1
grep -q 'beyond this host: set TESSERA_SECRET or TESSERA_SECRET_FILE' err || fail "no word of the secret: $(cat err)"
nothing_left
