#!/usr/bin/env bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 300
# processors: 2
# The peak per rank falls as ranks are added and as units get smaller, and is what was planned. Prints the table.
set -u
[ -f "$BUILD/plugins/libtessera-comm-gloo.so" ] || { echo "skip: comm-gloo is not built here"; exit 77; }
"$TESSERA" train --help 2> /dev/null | grep -q gpt || { echo "skip: the reference models are not built here"; exit 77; }
export TESSERA_LOG=error TESSERA_THREADS=1
failed=0
field() { sed -n 's/.*"'"$1"'":\([0-9]*\).*/\1/p' <<< "$line"; }
seq 1 1500 >text.txt # validation by a longer one takes longer than these steps
declare -A peak
printf '%-10s %12s %12s %12s %12s\n' "gpt" "W = 1" "W = 2" "W = 3" "W = 4"
for wrap in none size:50000 scopes; do
  row=$wrap
  for w in 1 2 3 4; do
    line=$("$TESSERA" train gpt --data text.txt --sample 0 -n $w --steps 2 --wrap $wrap --layers 8 --width 128 --batch 1 --context 32 --quiet --json \
      2> err | tail -n 1)
    p=$(field peak_device_bytes)
    [ -n "$p" ] || { echo "FAILED: W=$w wrap=$wrap: $(head -c 600 err)"; exit 1; }
    [ "$p" = "$(field planned_peak_device_bytes)" ] || { echo "FAILED: W=$w wrap=$wrap: planned differs"; failed=1; }
    peak[$wrap,$w]=$p
    row="$row $p"
  done
  # shellcheck disable=SC2086
  printf '%-10s %12s %12s %12s %12s\n' $row
done
for wrap in size:50000 scopes; do
  for w in 1 2 3; do
    [ "${peak[$wrap,$w]}" -gt "${peak[$wrap,$((w + 1))]}" ] || { echo "FAILED: $wrap: W=$((w + 1)) needs no less than W=$w"; failed=1; }
  done
done
for w in 2 3 4; do
  [ "${peak[none,$w]}" -gt "${peak[scopes,$w]}" ] || { echo "FAILED: W=$w: smaller units need no less"; failed=1; }
done
exit $failed
