#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: slow
# timeout: 900
# processors: 2
# Launchers as they are, over hosts (network namespaces): `tessera run --hosts` by ssh with a real sshd on each, MPICH's
# mpiexec, torchrun. The digests are those of one host. What is not installed is left out, and said.
# TESSERA_TEST_SSHD, TESSERA_TEST_MPIEXEC, TESSERA_TEST_TORCHRUN: where they are, if not in PATH.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skipped: comm-gloo is not built"; exit 77; }
[ -z "$SANITIZE" ] || { echo "skipped: the launchers' time limits are not those of a sanitizer"; exit 77; }
sshd=${TESSERA_TEST_SSHD:-$(command -v sshd || ls /usr/sbin/sshd 2>/dev/null)}
mpiexec=${TESSERA_TEST_MPIEXEC:-$(command -v mpiexec.hydra)}
torchrun=${TESSERA_TEST_TORCHRUN:-$(command -v torchrun)}
{ command -v ssh && command -v ssh-keygen; } >/dev/null || sshd=
[ -n "$sshd$mpiexec$torchrun" ] || { echo "skipped: neither sshd nor MPICH's mpiexec.hydra nor torchrun is installed"; exit 77; }
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS MASTER_ADDR MASTER_PORT TESSERA_TEST_SSHD TESSERA_TEST_MPIEXEC TESSERA_TEST_TORCHRUN
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_HEARTBEAT=20
hosts 4
mnist=(mnist --steps 3)
gpt=(gpt --steps 2 --layers 1 --width 32 --heads 2 --context 64 --batch 32)
shapes=("2 2 mnist" "4 1 gpt")

one_host() {
  local name="one.$*"
  [ -e "$name" ] || { expect 0 "$TESSERA" train "${@:2}" -n "$1" --json && mv out "$name"; }
  digest "$name" >one
  [ -s one ] || fail "no digest of $*: $(cat err)"
}
same() { [ "$(digest "${@:2}")" = "$(cat one)" ] || fail "$1: $(digest "${@:2}"), one host has $(cat one): $(cat err ./*.err)"; }

# ---- ssh -------------------------------------------------------------------------------------------
# An sshd on each host, with keys of this test's own and no file of the system changed: they are covered where it runs.
start_sshd() {
  local i
  ssh-keygen -q -t ed25519 -N '' -f host_key && ssh-keygen -q -t ed25519 -N '' -f user_key && cp user_key.pub authorized
  { grep -v '^sshd:' /etc/passwd; echo "sshd:x:74:74::/run/sshd:/usr/sbin/nologin"; } >passwd
  echo "root:*:19000:0:99999:7:::" >shadow
  mkdir -p empty
  printf '%s\n' "HostKey $PWD/host_key" "AuthorizedKeysFile $PWD/authorized" "StrictModes no" "UsePAM no" "PidFile none" \
    "PermitRootLogin prohibit-password" >sshd_config
  printf '%s\n' "Host *" " IdentityFile $PWD/user_key" " IdentitiesOnly yes" " StrictHostKeyChecking no" \
    " UserKnownHostsFile /dev/null" " LogLevel ERROR" " BatchMode yes" >ssh_config
  for i in 0 1 2 3; do
    # Not by on(): the process to kill at the end is sshd itself.
    ip netns exec "$hosts_mark-$i" sh -c 'mount -t tmpfs none /run && mkdir -p /run/sshd && mount --bind passwd /etc/passwd && mount --bind shadow /etc/shadow &&
      exec "$0" -D -e -f "$PWD/sshd_config"' "$sshd" >sshd.$i.log 2>&1 &
    sshds+=($!)
  done
  reached() { on 0 ssh -x -F ssh_config "${address[3]}" true 2>ssh.err; }
  within 30 reached
}
sshds=()
[ "$(id -u)" = 0 ] || sshd=
if [ -n "$sshd" ]; then
  start_sshd || fail "no sshd lets us in: $(head -c 2000 sshd.?.log ssh.err)"
  for shape in "${shapes[@]}"; do
    read -r n each name <<<"$shape"
    declare -n model=$name
    one_host $((n * each)) "${model[@]}"
    list=
    for ((i = 0; i < n; i++)); do list+=${list:+,}${address[i]}:$each; done
    expect 0 on 0 "$TESSERA" run --hosts $list --agent "ssh -x -F $PWD/ssh_config" -- "$TESSERA" train "${model[@]}" --json
    same "ssh $shape" out
  done
  # The exit code of a rank behind ssh, and a host without an sshd.
  expect 7 on 0 "$TESSERA" run --hosts "${address[0]}:1,${address[1]}:1" --agent "ssh -x -F $PWD/ssh_config" -- \
    sh -c '[ $RANK != 1 ] || exit 7; exec sleep 30'
  has_line err "${address[1]}: tessera: error: rank 1 exited with code 7"
  expect 5 on 0 "$TESSERA" run --hosts "${address[0]}:1,10.77.0.99:1" --agent "ssh -x -o ConnectTimeout=2 -F $PWD/ssh_config" -- sleep 30
  has_line err "tessera: error: host 10.77.0.99 was lost: its agent ssh ended with code 255"
  echo "ssh: ran"
else
  echo "ssh: left out: no sshd, or not root"
fi
for pid in "${sshds[@]}"; do kill "$pid" 2>/dev/null; done

# ---- MPICH -----------------------------------------------------------------------------------------
export TESSERA_SECRET=$(head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n')
hosts_agent 4
if [ -n "$mpiexec" ]; then
  for shape in "${shapes[@]}"; do
    read -r n each name <<<"$shape"
    declare -n model=$name
    one_host $((n * each)) "${model[@]}"
    list=
    for ((i = 0; i < n; i++)); do list+=${list:+,}${address[i]}; done
    MASTER_ADDR=${address[0]} expect 0 on 0 timeout 100 "$mpiexec" -launcher ssh -launcher-exec "$PWD/agent" -iface eth0 \
      -hosts "$list" -ppn "$each" -n $((n * each)) "$TESSERA" train "${model[@]}" --json
    same "MPICH $shape" out
  done
  echo "MPICH: ran"
else
  echo "MPICH: left out: no mpiexec.hydra"
fi

# ---- torchrun --------------------------------------------------------------------------------------
if [ -n "$torchrun" ]; then
  one_host 4 "${mnist[@]}"
  for r in 0 1; do
    on $r timeout 200 "$torchrun" --nnodes 2 --node-rank $r --master-addr "${address[0]}" --master-port 29700 --nproc-per-node 2 \
      --no-python "$TESSERA" train "${mnist[@]}" --json >torch.$r.out 2>torch.$r.err &
    pids[r]=$!
  done
  for r in 0 1; do wait "${pids[r]}" || fail "torchrun, host $r: $(tail -n 20 torch.*.err)"; done
  same torchrun torch.0.out torch.1.out
  echo "torchrun: ran"
else
  echo "torchrun: left out: not installed"
fi
nothing_left
