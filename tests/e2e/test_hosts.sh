#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# `tessera run --hosts`: ranks on hosts (network namespaces) from one of them, by an agent that runs a command there as ssh
# does; output, exit codes, the secret, signals, lost agents, and mistakes.
. "$SOURCE/tests/e2e/lib.sh"
. "$SOURCE/tests/support/hosts.sh"
unset RANK WORLD_SIZE LOCAL_RANK TESSERA_RANKS TESSERA_SECRET TESSERA_SECRET_FILE MASTER_ADDR MASTER_PORT
export TESSERA_THREADS=1 TESSERA_RENDEZVOUS_TIMEOUT=60 TESSERA_HEARTBEAT=20

# Mistakes need no hosts.
expect 2 "$TESSERA" run --hosts a:2,b -- true
one_line err "tessera run: how many ranks on host b? b:N, or -n N for all that say nothing"
expect 2 "$TESSERA" run --hosts a:0 -- true
one_line err "tessera run: --hosts: 'a:0' is no host, expected NAME:RANKS with 1 to 4096 ranks"
for bad in '' ',a:1' '-oProxyCommand=x:1' 'a:1,,b:1' 'a b:1' 'a:1;b:1' '[::1:2' 'a:4097' 'a:1:2' 'a:1x'; do
  expect 2 "$TESSERA" run --hosts="$bad" -- true
  [ "$(wc -l <err)" = 1 ] && grep -q 'is no host, expected NAME:RANKS' err || fail "--hosts='$bad': $(cat err)"
done
expect 2 "$TESSERA" run --hosts=$'a:1,b\n\033[2Jc:1' -- true
one_line err "tessera run: --hosts: 'b??[2Jc:1' is no host, expected NAME:RANKS with 1 to 4096 ranks"
printf '# hosts\na slots=2\n\nb:3 # more\nc sluts=1\n' >hostfile
expect 2 "$TESSERA" run --hostfile hostfile -- true
one_line err "tessera run: --hostfile: hostfile line 5: 'sluts=1' behind host c, expected slots=RANKS"
: >empty
expect 2 "$TESSERA" run --hostfile empty -- true
one_line err "tessera run: --hostfile: empty line 0: no host in it"
expect 2 "$TESSERA" run --hostfile missing -- true
one_line err "tessera run: --hostfile: 'missing' cannot be opened: No such file or directory"
expect 2 "$TESSERA" run --hosts a:1 --hostfile hostfile -- true
expect 2 "$TESSERA" run --hosts a:1 --nnodes 2 -- true
expect 2 "$TESSERA" run --hosts a:1 --restarts 2 -- true
expect 2 "$TESSERA" run -n 2 --agent ssh -- true
expect 2 "$TESSERA" run --hosts a:1 --agent ' ' -- true
expect 3 "$TESSERA" run --hosts a:1 --agent ./no-such-agent -- true
one_line err "tessera: error: cannot start './no-such-agent': No such file or directory"
expect 5 "$TESSERA" run --follow -n 1 -- true </dev/null
nothing_left

hosts 3
cat >agent <<END
#!/bin/bash
# agent HOST TEXT: what ssh does. Its own process stays in between, as ssh's does.
echo "\$\$ \$1" >>agents
printf '%s\n' "\$2" >>commands
case \$1 in
${address[0]}|${address6[0]}) i=0 ;; ${address[1]}|${address6[1]}) i=1 ;; ${address[2]}|${address6[2]}) i=2 ;;
*) echo "agent: no host \$1" >&2; exit 255 ;; esac
exec 3<&0
setsid -w ip netns exec $hosts_mark-\$i sh -c "\$2" <&3 3<&- &
exec 3<&-
wait \$!
END
chmod +x agent
run=("$TESSERA" run --agent ./agent)
two=${address[0]}:2,${address[1]}:1

# What ranks are told, and that nothing but the agents' standard input has the secret.
export TESSERA_SECRET=0123456789abcdef0123456789abcdef
expect 0 "${run[@]}" --hosts $two -- sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR ${#TESSERA_SECRET} "$*"' \
  name "a 'quoted' \$word" '&;*'
for r in 0 1; do has_line out "\[$r\] $r/3 $r/2 ${address[0]} 0 a 'quoted' \\\$word &;\*"; done
has_line out "\[2\] 2/3 0/1 ${address[0]} 0 a 'quoted' \\\$word &;\*"
[ "$(wc -l <out)" = 3 ] && [ ! -s err ] || fail "more lines: $(cat out err)"
grep -q 0123456789abcdef commands && fail "the secret is in a command line"
expect 0 "${run[@]}" --hosts ${address[0]}:1,${address[1]}:1 -- sh -c 'cat /proc/$PPID/environ /proc/$PPID/cmdline | tr "\0" "\n"'
grep -q 0123456789abcdef out && fail "the secret is in the launcher's environment or arguments on a host"
[ -s out ] || fail "nothing was read"
unset TESSERA_SECRET
nothing_left

# Exit codes: of the rank that failed first, on whatever host; the others' echo does not replace it.
expect 7 "${run[@]}" --hosts $two -- sh -c '[ $RANK != 2 ] || exit 7; exec sleep 30'
has_line err "${address[1]}: tessera: error: rank 2 exited with code 7"
expect 7 "${run[@]}" --hosts $two -- sh -c '[ $RANK != 1 ] || exit 7; exec sleep 30'
has_line err "${address[0]}: tessera: error: rank 1 exited with code 7"
expect 5 "${run[@]}" --hosts $two -- sh -c '[ $RANK != 2 ] || kill -9 $$; exec sleep 30'
expect 3 "${run[@]}" --hosts $two -- ./no-such-program
nothing_left

# Ctrl-C ends all, and a second one kills.
started() { [ "$(grep -c ready log 2>/dev/null)" = "$1" ]; }
for kind in polite stubborn; do
  : >log
  trap_text=$([ $kind = polite ] || echo "trap '' INT TERM;")
  "${run[@]}" --hosts $two -- bash -c "$trap_text echo ready; while :; do sleep 0.05; done" >log 2>err &
  launcher=$!
  within 10 started 3 || fail "no start: $(cat log err)"
  kill -TERM $launcher
  [ $kind = polite ] || { sleep 0.5; kill -0 $launcher || fail "it left its ranks"; kill -TERM $launcher; }
  ends $launcher 10
  [ "$code" = 143 ] || fail "$kind: exit code $code, expected 143: $(cat err)"
  nothing_left
done

# A lost agent is named; its ranks and all others end.
for victim in 0 1; do
  : >log; : >agents
  TESSERA_GRACE=1 "${run[@]}" --hosts $two -- bash -c 'echo ready; while :; do sleep 0.05; done' >log 2>err &
  launcher=$!
  within 10 started 3 || fail "no start: $(cat log err)"
  kill -9 "$(awk -v host="${address[victim]}" '$2 == host {print $1}' agents)"
  ends $launcher 20
  [ "$code" = 5 ] || fail "exit code $code, expected 5: $(cat err)"
  has_line err "tessera: error: host ${address[victim]} was lost: its agent ./agent was killed by signal 9 \(Killed\)"
  nothing_left
done
expect 5 "${run[@]}" --hosts "${address[0]}:1,nowhere:1" -- sleep 30
has_line err "nowhere: agent: no host nowhere"
has_line err "tessera: error: host nowhere was lost: its agent ./agent ended with code 255"
nothing_left

# The launcher dies: so does all that it started.
: >log
"${run[@]}" --hosts $two -- bash -c 'echo ready; while :; do sleep 0.05; done' >log 2>err &
launcher=$!
within 10 started 3 || fail "no start: $(cat log err)"
kill -9 $launcher
wait $launcher 2>/dev/null
nothing_left

# Training, with a file of hosts, over IPv6: the digest of one host.
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || exit 0
digits=$(brief_digits)
printf '[%s] slots=1\n[%s]:2\n%s\n' "${address6[0]}" "${address6[1]}" "${address[2]}" >hostfile
expect 0 "$TESSERA" train mnist $digits -n 4 --json --steps 3
mv out one
expect 0 "${run[@]}" --hostfile hostfile -n 1 -- "$TESSERA" train mnist $digits --json --steps 3
[ -n "$(digest one)" ] && [ "$(digest one)" = "$(digest out)" ] || fail "digests differ: $(digest one), $(digest out)"
nothing_left
