#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The switch of the network tests, with real connections through it: how long they take, what is cut, what it captures.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
hosts_on_switch 3

# knock FROM TO: connects to a port where nobody listens; how long the refusal took is in $took, and how much of that processors
# were scarce in $waited. The way into the host does not count: it mounts, and waits for whoever else mounts. Fails after 3 s.
export -f milliseconds scarce start_clock stop_clock
knock() {
  local said code=0
  said=$(on "$1" timeout 3 bash -c 'start_clock; : 3<>"/dev/tcp/$0/9"; code=$?; stop_clock; echo $took $waited; exit $code' "${address[$2]}" 2>/dev/null) || code=$?
  read -r took waited <<<"$said"
  [ $code = 1 ]
}
for pair in "0 1" "1 2" "2 0"; do knock $pair || fail "no way: $pair"; done
quick() { knock 0 1 || fail "no way"; }
soon 100 quick

wire_rules 0 1 delay_us=150000
wire_rules 1 0 delay_us=50000
quick
[ "$took" -ge 200 ] || fail "there and back took $took ms, expected 200 or more"
soon 400 quick
knock 1 2 || fail "no way: 1 2"
wire_plain

# One direction of a pair; the way back alone is no use either.
wire_rules 0 1 cut=1
! knock 0 1 || fail "0 reached 1 over a cut link"
! knock 1 0 || fail "1 heard from 0 over a cut link"
knock 0 2 || fail "0 cannot reach 2"
wire_plain
knock 0 1 || fail "no way after the cut"

# What is sent is in the capture file.
wire capture "$PWD/capture" >/dev/null
on 0 bash -c "echo -n seen-by-the-switch >/dev/udp/${address[1]}/9"
captured() { grep -q seen-by-the-switch capture; }
within 30 captured || fail "it is not in the capture file"
wire capture off >/dev/null
on 0 bash -c "echo -n after-the-capture >/dev/udp/${address[1]}/9"
knock 0 1
! grep -q after-the-capture capture || fail "the capture went on"
[ "$(od -An -tx4 -N4 capture)" = " a1b23c4d" ] || fail "no capture file"

expect 1 "$BUILD/tests/support/net_switch" tell "$hosts_socket" link 0 5 cut=1
one_line err "net_switch: link FROM TO: each a port from 0 to 2, or all"
expect 2 "$BUILD/tests/support/net_switch" serve
read -r frames bytes lost <<<"$(wire count all all)"
[ "$frames" -gt 10 ] && [ "$bytes" -gt 500 ] && [ "$lost" -ge 2 ] || fail "counted $frames $bytes $lost"
