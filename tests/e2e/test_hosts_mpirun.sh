#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# slow: 7200 EVERY_WAY=1
# Open MPI's own mpirun over hosts (network namespaces), and `tessera run --nnodes` at an address of IPv6: the digests of one
# host, for mnist and gpt, one and two ranks on each of two, three and four hosts. Five of these twelve shapes, each one of the
# two ways, where there is no mpirun the other; EVERY_WAY=1: all, both ways (test_hosts_mpirun_slow).
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: mpirun's time limits are not those of a sanitizer"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=240 TESSERA_HEARTBEAT=60 # eight ranks on a busy machine start late
export TESSERA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
hosts 4
mnist=(mnist $(brief_digits) --steps 3)
gpt=(gpt $(brief_text) --steps 2 --layers 1 --width 32 --heads 2 --context 16)

# one_host RANKS MODEL…: what the others are compared with.
one_host() {
  local n=$1
  shift
  expect 0 "$TESSERA" train "$@" -n "$n" --json
  mv out one
  [ -n "$(digest one)" ] || fail "no digest of $* on $n ranks: $(cat err)"
}
same() { [ "$(digest "${@:2}")" = "$(digest one)" ] || fail "$1: $(digest "${@:2}"), one host has $(digest one): $(cat err ./*.err)"; }

# over_ipv6 HOSTS EACH MODEL…
over_ipv6() {
  local n=$1 each=$2 r pids=()
  shift 2
  rm -f six.*
  for ((r = 0; r < n; r++)); do
    on $r "$TESSERA" run --nnodes "$n" --node-rank $r --rendezvous "[${address6[0]}]:29400" -n "$each" -- \
      "$TESSERA" train "$@" --json >six.$r.out 2>six.$r.err &
    pids+=($!)
  done
  for ((r = 0; r < n; r++)); do wait "${pids[r]}" || fail "IPv6, host $r: $(cat six.*.err)"; done
  same "IPv6 $n x $each $1" six.*.out
}

hosts_agent 4

# over_mpirun HOSTS EACH MODEL…
over_mpirun() {
  local n=$1 each=$2 r list=
  shift 2
  for ((r = 0; r < n; r++)); do list+=${list:+,}${address[r]}:$each; done
  expect 0 on 0 env TMPDIR="/tmp/$hosts_mark.0" MASTER_ADDR="${address[0]}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    timeout 280 mpirun --mca plm rsh --mca plm_rsh_agent "$PWD/agent" --mca plm_rsh_no_tree_spawn 1 \
    --mca routed direct --mca oob_tcp_if_include eth0 --oversubscribe \
    --host "$list" -n $((n * each)) -x TESSERA_SECRET -x MASTER_ADDR -x TESSERA_THREADS -x TESSERA_PLUGIN_PATH \
    -x TESSERA_RENDEZVOUS_TIMEOUT -x TESSERA_HEARTBEAT -x TESSERA_TEST_MARK "$TESSERA" train "$@" --json
  same "mpirun $n x $each $1" out
}

has_mpirun() { command -v mpirun >/dev/null && mpirun --version 2>/dev/null | grep -q 'Open MPI'; }
shapes=("2 1 mnist over_ipv6" "2 2 mnist over_mpirun" "3 1 gpt over_mpirun" "4 1 mnist over_ipv6" "4 2 gpt over_mpirun")
[ -z "${EVERY_WAY:-}" ] || shapes=({2,3,4}" "{1,2}" "{mnist,gpt}" over_ipv6 over_mpirun")
for shape in "${shapes[@]}"; do
  read -r n each name way <<<"$shape"
  declare -n model=$name
  one_host $((n * each)) "${model[@]}"
  has_mpirun || way=over_ipv6
  for run in $way; do $run "$n" "$each" "${model[@]}"; done
done
nothing_left
