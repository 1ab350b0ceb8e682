#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The variables of the plugins that come with Tessera: each does what its argument behind the colon does, or what it says.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error
small="train mnist -n 2 --steps 2 --batch 8 --quiet --json"
# run VARIABLE=VALUE… [-- OPTION…]: digest, device, host: of the summary
run() {
  local set=() line
  while [ $# -gt 0 ] && [ "$1" != -- ]; do set+=("$1") && shift; done
  [ $# = 0 ] || shift
  # shellcheck disable=SC2086
  expect 0 env "${set[@]}" "$TESSERA" $small "$@"
  line=$(grep '"event":"summary"' out)
  digest=$(sed 's/.*"params_digest":"\([0-9a-f]*\)".*/\1/' <<<"$line")
  host=$(sed 's/.*"peak_host_bytes":\([0-9]*\).*/\1/' <<<"$line")
  planned=$(sed 's/.*"planned_peak_host_bytes":\([0-9]*\).*/\1/' <<<"$line")
  [ "$host" = "$planned" ] || fail "$* has $host bytes on the host, planned $planned"
}
same() { [ "$digest" = "$1" ] || fail "$2: digest $digest, expected $1"; }

# precision bf16
run X=1 -- --precision bf16
bf16=$digest
run X=1 -- --precision bf16:wire=fp32
by_argument=$digest
[ "$digest" != "$bf16" ] || fail "the wire makes no difference"
run TESSERA_BF16_WIRE=fp32 -- --precision bf16
same "$by_argument" "TESSERA_BF16_WIRE"
# shellcheck disable=SC2086
expect 3 env TESSERA_BF16_GRAD=bf16 "$TESSERA" $small --precision bf16
grep -q 'asks for local gradients in' err || fail "TESSERA_BF16_GRAD=bf16: $(cat err)"
run TESSERA_BF16_WIRE=bf16 TESSERA_BF16_GRAD=fp32 -- --precision bf16
same "$bf16" "the defaults of bf16"
expect 3 env TESSERA_BF16_WIRE=fp8 "$TESSERA" train linear -n 2 --steps 1 --precision bf16
toy() { "$TESSERA" run -n 2 --no-prefix -- "$BUILD/tests/support/toy" hooks-fp32; }
toy_digest() { sed -n 's/^digest=\([0-9a-f]*\) .*/\1/p' out; }
TESSERA_PRECISION=fp32 expect 0 toy
want=$(toy_digest)
TESSERA_PRECISION=bf16 TESSERA_BF16_UNREADABLE=keep expect 0 toy
[ "$(toy_digest)" = "$want" ] || fail "what no kernel reads in bf16 is not left in fp32"
TESSERA_PRECISION=bf16 TESSERA_BF16_UNREADABLE=refuse expect 3 toy

# offload cpu: no bit changes; half of the units take less of the host
run X=1
plain=$digest
run X=1 -- --offload cpu
same "$plain" "offload cpu"
all=$host
run TESSERA_OFFLOAD_FRACTION=0.5 -- --offload cpu
same "$plain" "half of the units on the host"
[ "$host" -gt 0 ] && [ "$host" -lt "$all" ] || fail "a fraction of 0.5 takes $host bytes of the host, all take $all"
run TESSERA_OFFLOAD_WHAT=optimizer -- --offload cpu
same "$plain" "the optimizer on the host"
[ "$host" -gt 0 ] && [ "$host" -lt "$all" ] || fail "the optimizer alone takes $host bytes of the host, all take $all"
run TESSERA_OFFLOAD_PINNED=0 -- --offload cpu
same "$plain" "nothing locked"
expect 3 env TESSERA_OFFLOAD_FRACTION=2 "$TESSERA" train linear -n 2 --steps 1 --offload cpu

# comm gloo
run X=1 -- --comm gloo
same "$plain" "gloo"
run TESSERA_GLOO_HOSTNAME=127.0.0.1 -- --comm gloo
same "$plain" "gloo on 127.0.0.1"
run TESSERA_GLOO_INTERFACE=lo -- --comm gloo
same "$plain" "gloo on lo"
expect 3 env TESSERA_GLOO_HOSTNAME=no.such.host.invalid "$TESSERA" train linear -n 2 --steps 1 --comm gloo
nothing_left
