#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# What each reference model takes, to the byte: one thread, AVX2, on one rank and on eight. A change of one byte shows
# here. Where it is meant, store what this prints.
. "$SOURCE/tests/e2e/lib.sh"
unset TESSERA_DEVICE_MEMORY TESSERA_HOST_MEMORY RANK WORLD_SIZE
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
"$TESSERA" train linear --isa avx2 --steps 1 --json 2> /dev/null | grep -q '"operators":"oneDNN 2.6' ||
  { echo "skip: the figures are of oneDNN 2.6 with AVX2"; exit 77; }
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
stored='mnist 1 31727616 sharded_parameter=4800000 sharded_gradient=73984 optimizer_state=9600000 activation=16384000 input=201024 temporary=663552 fragmentation=5056
mnist 8 31862784 sharded_parameter=600576 unsharded_parameter=77824 sharded_gradient=590080 unsharded_gradient=4796416 optimizer_state=1201152 activation=16384000 communication=7344128 input=201024 temporary=663552 fragmentation=4032
gpt 1 19738624 sharded_parameter=3337216 sharded_gradient=925184 optimizer_state=6674432 activation=8110080 input=512 temporary=686144 fragmentation=5056
gpt 8 12673024 sharded_parameter=418048 unsharded_parameter=1589248 sharded_gradient=256 unsharded_gradient=927744 optimizer_state=836096 activation=8110080 communication=4096 input=512 temporary=686144 fragmentation=100800
convbn 1 2920448 sharded_parameter=164608 sharded_gradient=155904 optimizer_state=164608 activation=2074752 input=24640 temporary=332800 buffer=896 fragmentation=2240
convbn 8 2818048 sharded_parameter=21760 unsharded_parameter=172032 sharded_gradient=256 unsharded_gradient=163840 optimizer_state=21760 activation=2074752 communication=4096 input=24640 temporary=332800 buffer=896 fragmentation=1216
linear 1 274432 sharded_parameter=256 sharded_gradient=256 activation=64 input=128 temporary=268416 fragmentation=5312
linear 8 282624 sharded_parameter=256 unsharded_parameter=2048 unsharded_gradient=2048 activation=64 communication=4096 input=128 temporary=268416 fragmentation=5568'
for model in mnist gpt convbn linear; do
  for ranks in 1 8; do
    options=""
    [ $model != convbn ] || options="--image-size 32 --hidden 16"
    # shellcheck disable=SC2086
    comm=gloo
    [ $ranks != 1 ] || comm=self
    # shellcheck disable=SC2086
    expect 0 "$TESSERA" plan $model -n $ranks --comm $comm --threads 1 --isa avx2 $options --quiet --json
    tail -n 1 out | sed -n 's/.*"model":"\([a-z]*\)","ranks":\([0-9]*\).*"planned_peak_device_bytes":\([0-9]*\).*"categories":{"device":{\([^}]*\)}.*/\1 \2 \3 \4/p' |
      tr -d '"' | tr ':,' '= ' >>found
  done
done
[ "$(cat found)" = "$stored" ] || fail "bytes have changed; found:
$(cat found)
$(diff <(echo "$stored") found)"
# A run takes them.
expect 0 "$TESSERA" train linear --threads 1 --isa avx2 --quiet --json
tail -n 1 out | grep -q '"peak_device_bytes":274432,' || fail "linear takes something else: $(tail -n 1 out)"
cat found
