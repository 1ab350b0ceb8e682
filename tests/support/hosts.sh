# SPDX-License-Identifier: BSD-3-Clause
# Hosts of a test: network namespaces on a bridge, or on a switch of our own. . "$SOURCE/tests/support/hosts.sh"; hosts 3;
# on 0 COMMAND… runs on the first; its address is ${address[0]} (IPv6: ${address6[0]}). Skips where that is not allowed.
# Behind tests/e2e/lib.sh.
hosts_mark=tess$$
address=()
address6=()
# digest FILE…: of the parameters that the files of all hosts have, one line where they agree.
digest() { grep -aho '"params_digest":"[^"]*"' "$@" | sort -u; }

hosts_remove() {
  local name
  [ -z "${hosts_switch:-}" ] || kill "$hosts_switch" 2>/dev/null
  rm -rf "/tmp/$hosts_mark".*
  for name in $(ip netns list 2>/dev/null | awk '{print $1}' | grep "^$hosts_mark-"); do ip netns del "$name"; done
}

hosts_skip() { echo "skipped: no network namespaces here: $*"; exit 77; }

# host_new I: a namespace without a network, and a folder for what a host alone keeps in /tmp
host_new() {
  mkdir -p "/tmp/$hosts_mark.$1"
  ip netns add "$hosts_mark-$1" 2>err || hosts_skip "$(head -1 err)"
  ip -n "$hosts_mark-$1" link set lo up
  address[$1]=10.77.0.$(($1 + 1))
  address6[$1]=fd77::$(($1 + 1))
}

# host_up I: its eth0 is there
host_up() {
  ip -n "$hosts_mark-$1" addr add "${address[$1]}/24" dev eth0
  ip -n "$hosts_mark-$1" addr add "${address6[$1]}/64" dev eth0 nodad 2>/dev/null
  ip -n "$hosts_mark-$1" link set eth0 mtu "${hosts_mtu:-1500}" up
}

# hosts N: on a bridge of the kernel
hosts() {
  local i n=$1
  command -v ip >/dev/null || hosts_skip "ip (iproute2) is missing"
  trap hosts_remove EXIT
  ip netns add "$hosts_mark-switch" 2>err || hosts_skip "$(head -1 err)"
  ip -n "$hosts_mark-switch" link add bridge type bridge 2>err || hosts_skip "$(head -1 err)"
  ip -n "$hosts_mark-switch" link set bridge up
  for ((i = 0; i < n; i++)); do
    host_new "$i"
    ip -n "$hosts_mark-$i" link add eth0 type veth peer name "port$i" netns "$hosts_mark-switch" 2>err ||
      hosts_skip "$(head -1 err)"
    ip -n "$hosts_mark-switch" link set "port$i" master bridge up
    host_up "$i"
  done
}

# hosts_on_switch N: on our own switch, which makes faults (wire). hosts_mtu: of the interfaces, 1500 unless set.
hosts_on_switch() {
  local i n=$1 names=()
  command -v ip >/dev/null || hosts_skip "ip (iproute2) is missing"
  [ -w /dev/net/tun ] || hosts_skip "/dev/net/tun is missing"
  trap hosts_remove EXIT
  for ((i = 0; i < n; i++)); do
    host_new "$i"
    names+=("$hosts_mark-$i")
  done
  hosts_socket=/tmp/$hosts_mark.switch
  rm -f "$hosts_socket"
  env -u TESSERA_TEST_MARK "$BUILD/tests/support/net_switch" serve "$hosts_socket" "${names[@]}" >switch.out 2>switch.err &
  hosts_switch=$!
  hosts_ready() { grep -qs ready switch.out || gone "$hosts_switch"; }
  within 10 hosts_ready || hosts_skip "no switch"
  grep -q ready switch.out || hosts_skip "$(cat switch.err)"
  for ((i = 0; i < n; i++)); do host_up "$i"; done
}

# wire ORDER…: tells the switch, as "link 0 1 delay_us=5000" (tests/support/switch/fabric.h).
wire() { "$BUILD/tests/support/net_switch" tell "$hosts_socket" "$@" || fail "the switch: $*"; }
# wire_rules FROM TO RULE…: between hosts, either may be all; wire_plain: no faults any more
wire_rules() { wire link "$@" >/dev/null; }
wire_plain() { wire_rules all all cut=0 delay_us=0 loss_ppm=0 reorder_ppm=0 rate_kbit=0; }

# on I COMMAND…
on() {
  local i=$1
  shift
  ip netns exec "$hosts_mark-$i" "$@"
}

# hosts_agent N: ./agent HOST COMMAND runs it on the host of that address, as ssh does, but for its options. TMPDIR is the host's
# own: daemons of Open MPI that share a name and a folder remove what another has just made there, which then ends unheard.
hosts_agent() {
  local i
  {
    printf '#!/bin/bash\nwhile [[ $1 == -* ]]; do shift; done\nhost=$1\nshift\n'
    for ((i = 0; i < $1; i++)); do
      echo "[ \$host != ${address[i]} ] || exec ip netns exec $hosts_mark-$i env TMPDIR=/tmp/$hosts_mark.$i sh -c \"\$*\""
    done
  } >agent
  chmod +x agent
}
