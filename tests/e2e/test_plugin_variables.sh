#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The variables of the plugins that come with Tessera: each does what its argument behind the colon does, or what it says.
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=error
small="train mnist $(brief_digits) -n 2 --steps 2 --batch 8 --quiet --json"
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
# precision wire8
run X=1 -- --precision wire8:int8,sends=parameters
by_argument=$digest
run TESSERA_WIRE8_FORMAT=int8 TESSERA_WIRE8_SENDS=parameters -- --precision wire8
same "$by_argument" "TESSERA_WIRE8_SENDS"
run TESSERA_WIRE8_SENDS=parameters TESSERA_WIRE8_COMPUTE=bf16 -- --precision wire8
[ "$digest" != "$by_argument" ] || fail "TESSERA_WIRE8_COMPUTE makes no difference"
run TESSERA_WIRE8_SENDS=parameters TESSERA_WIRE8_FORMAT=fp8 -- --precision wire8
[ "$digest" != "$by_argument" ] || fail "TESSERA_WIRE8_FORMAT makes no difference"
run TESSERA_WIRE8_SENDS=parameters TESSERA_WIRE8_ROUNDING=stochastic -- --precision wire8
[ "$digest" != "$by_argument" ] || fail "TESSERA_WIRE8_ROUNDING makes no difference"
expect 3 env TESSERA_BF16_WIRE=fp8 "$TESSERA" train linear -n 2 --steps 1 --precision bf16
toy() { "$TESSERA" run -n 2 --no-prefix -- "$BUILD/tests/support/toy" hooks-fp32; }
toy_digest() { sed -n 's/^digest=\([0-9a-f]*\) .*/\1/p' out; }
TESSERA_PRECISION=fp32 expect 0 toy
want=$(toy_digest)
TESSERA_PRECISION=bf16 TESSERA_BF16_UNREADABLE=keep expect 0 toy
[ "$(toy_digest)" = "$want" ] || fail "what no kernel reads in bf16 is not left in fp32"
TESSERA_PRECISION=bf16 TESSERA_BF16_UNREADABLE=refuse expect 3 toy

# offload cpu: no bit changes; half of the units are the second and the fourth, with shards, gradients and states
run X=1
plain=$digest
run X=1 -- --offload cpu
same "$plain" "offload cpu"
all=$host
run TESSERA_OFFLOAD_FRACTION=0.5 -- --offload cpu
same "$plain" "half of the units on the host"
[ "$host" = $((4 * 37120 + 4 * 2816)) ] || fail "a fraction of 0.5 takes $host bytes of the host, all take $all"
run TESSERA_OFFLOAD_WHAT=optimizer -- --offload cpu
same "$plain" "the optimizer on the host"
[ "$host" = $((all / 2)) ] || fail "the optimizer alone takes $host bytes of the host, all take $all"
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

# Bad values: one line that names variable, text and what was expected, before the plugin runs; so are those behind the colon.
bad() { # line, variable=value, option…
  local line=$1 set=$2
  shift 2
  expect 3 env "$set" "$TESSERA" train linear -n 2 --steps 1 "$@"
  [ "$(grep -c . err)" = 1 ] && grep -qF -- "$line" err || fail "$set $*: $(cat err)"
}
bad "TESSERA_BF16_WIRE is 'fp8', expected one of bf16|fp32" TESSERA_BF16_WIRE=fp8 --precision bf16
bad "TESSERA_OFFLOAD_WHAT is 'params,grad', expected words of params|grads|optimizer|all, joined by commas" \
  TESSERA_OFFLOAD_WHAT=params,grad --offload cpu
bad "TESSERA_OFFLOAD_FRACTION is '2', expected a finite number from 0 to 1" TESSERA_OFFLOAD_FRACTION=2 --offload cpu
bad "TESSERA_OFFLOAD_PINNED is '1KB', expected bytes such as 512, 64KiB or 1.5GiB" TESSERA_OFFLOAD_PINNED=1KB --offload cpu
bad "TESSERA_GLOO_HOSTNAM is set, but comm plugin gloo has no such option; did you mean TESSERA_GLOO_HOSTNAME?" \
  TESSERA_GLOO_HOSTNAM=x --comm gloo
[ ! -e "$BUILD/plugins/libtessera-comm-nccl.so" ] ||
  bad "TESSERA_NCCL_COMPARE is 'maybe', expected 0, 1, no, yes, off, on, false or true" TESSERA_NCCL_COMPARE=maybe --comm nccl
[ ! -e "$BUILD/plugins/libtessera-comm-nccl.so" ] ||
  bad "TESSERA_NCCL_APART is '2', expected 0, 1, no, yes, off, on, false or true" TESSERA_NCCL_APART=2 --comm nccl
  bad "TESSERA_NCCL_WINDOWS is 'all', expected 0, 1, no, yes, off, on, false or true" TESSERA_NCCL_WINDOWS=all --comm nccl
[ ! -e "$BUILD/plugins/libtessera-comm-nccl.so" ] ||
  bad "TESSERA_NCCL_SUMS is 'half', expected one of fp32|native|tree" TESSERA_NCCL_SUMS=half --comm nccl
[ ! -e "$BUILD/plugins/libtessera-comm-nccl.so" ] ||
  bad "TESSERA_NCCL_SHARED_GPU is 'two', expected 0, 1, no, yes, off, on, false or true" TESSERA_NCCL_SHARED_GPU=two --comm nccl
bad 'offload cpu: fraction is "1.5", expected a finite number from 0 to 1' X=1 --offload cpu:fraction=1.5
bad 'offload cpu: "param" is no setting, expected params|grads|optimizer|all, fraction=…, pinned=…' X=1 --offload cpu:param
bad 'precision bf16: wire is "fp8", expected one of bf16|fp32' X=1 --precision bf16:wire=fp8
bad 'gloo: "port=1" is no setting, expected interface=…, hostname=…' X=1 --comm gloo:port=1
run X=1 -- --offload cpu:optimizer,fraction=1,pinned=0
same "$plain" "settings behind the colon"
run TESSERA_OFFLOAD_WHAT=all -- --offload cpu:optimizer
[ "$host" -lt "$all" ] || fail "what stands behind the colon does not win over the variable"
nothing_left
