# SPDX-License-Identifier: BSD-3-Clause
# Hosts of a test: network namespaces on a bridge in a namespace of its own. . "$SOURCE/tests/support/hosts.sh"; hosts 3;
# on 0 COMMAND… runs on the first; its address is ${address[0]} (IPv6: ${address6[0]}). Skips where that is not allowed.
hosts_mark=tess$$
address=()
address6=()

hosts_remove() {
  local name
  for name in $(ip netns list 2>/dev/null | awk '{print $1}' | grep "^$hosts_mark-"); do ip netns del "$name"; done
}

hosts_skip() { echo "skipped: no network namespaces here: $*"; exit 77; }

# hosts N
hosts() {
  local i n=$1
  command -v ip >/dev/null || hosts_skip "ip (iproute2) is missing"
  trap hosts_remove EXIT
  ip netns add "$hosts_mark-switch" 2>err || hosts_skip "$(head -1 err)"
  ip -n "$hosts_mark-switch" link add bridge type bridge 2>err || hosts_skip "$(head -1 err)"
  ip -n "$hosts_mark-switch" link set bridge up
  for ((i = 0; i < n; i++)); do
    ip netns add "$hosts_mark-$i"
    ip -n "$hosts_mark-$i" link set lo up
    ip -n "$hosts_mark-$i" link add eth0 type veth peer name "port$i" netns "$hosts_mark-switch" 2>err ||
      hosts_skip "$(head -1 err)"
    ip -n "$hosts_mark-switch" link set "port$i" master bridge up
    address[i]=10.77.0.$((i + 1))
    address6[i]=fd77::$((i + 1))
    ip -n "$hosts_mark-$i" addr add "${address[i]}/24" dev eth0
    ip -n "$hosts_mark-$i" addr add "${address6[i]}/64" dev eth0 nodad 2>/dev/null
    ip -n "$hosts_mark-$i" link set eth0 up
  done
}

# on I COMMAND…
on() {
  local i=$1
  shift
  ip netns exec "$hosts_mark-$i" "$@"
}

# cut I, join I: host I's cable
cut_host() { ip -n "$hosts_mark-switch" link set "port$1" down; }
join_host() { ip -n "$hosts_mark-switch" link set "port$1" up; }

# deafen I J: what host I sends to host J is lost, the other way is not; mend I J.
deafen() { ip -n "$hosts_mark-$1" neigh replace "${address[$2]}" lladdr 02:00:00:00:00:99 nud permanent dev eth0; }
mend() { ip -n "$hosts_mark-$1" neigh del "${address[$2]}" dev eth0; }
