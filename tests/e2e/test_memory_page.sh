#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The tables of docs/memory.md say what `tessera plan` says today: of each row the arguments in it, or in its column's head.
# TESSERA_TEST_UPDATE=1 writes them anew.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: a build with a sanitizer places buffers otherwise"; exit 77; }
page=$SOURCE/docs/memory.md
base=$(sed -n 's/^    tessera plan \(gpt --layers 12 .* --isa avx2\) -n 4$/\1/p' "$page")
[ -n "$base" ] || fail "docs/memory.md has no command of its tables"

# planned ARGUMENT…: device MiB, host MiB and what rests on the device, each with one digit behind the point.
planned() {
  # shellcheck disable=SC2086
  expect 0 "$TESSERA" plan $base "$@" --json --quiet
  sed -n 's/.*"planned_peak_device_bytes":\([0-9]*\),"planned_peak_host_bytes":\([0-9]*\),.*"resting":{"device":{\([^}]*\)}.*/\1 \2 \3/p' out |
    awk '{ n = split($3, rests, /[^0-9]+/); for (i = 1; i <= n; i++) rest += rests[i]
      printf "%.1f %.1f %.1f\n", $1 / 1048576, $2 / 1048576, rest / 1048576 }'
}
both=' (+ '
cell() { echo "$1$both$2)"; }
first_table() { # the row of W ranks
  local w=$1 plain cpu all
  read -r -a plain < <(planned -n "$w")
  read -r -a cpu < <(planned -n "$w" --offload cpu)
  read -r -a all < <(planned -n "$w" --offload cpu --activations recompute --precision bf16)
  echo "| $w | ${plain[2]} | ${plain[0]} | $(cell "${cpu[0]}" "${cpu[1]}") | $(planned -n "$w" --activations recompute | cut -d ' ' -f 1) |" \
    "$(planned -n "$w" --precision bf16 | cut -d ' ' -f 1) | $(cell "${all[0]}" "${all[1]}") |"
}
second_table() { # ROW: with its two numbers as they are planned
  local options got host=
  options=$(sed -n 's/^| [^`|]*`\([^`]*\)`.*/\1/p' <<<"$1")
  case $1 in
    '| the default'*) options= ;;
    '| 1, 4 and 6'*) options="--precision bf16 --activations recompute --offload cpu" ;;
  esac
  case $options in *-n\ *) ;; *) options="-n 4 $options" ;; esac
  # shellcheck disable=SC2086
  read -r -a got < <(planned $options)
  [ "${got[1]}" != 0.0 ] && host=" ${got[1]}"
  sed -E "s/^([|][^|]*[|]) [0-9.]+ [|]( [0-9.]+)? [|]/\\1 ${got[0]} |$host |/" <<<"$1"
}
wrong="" rows=0
compare() { # ROW NEW
  rows=$((rows + 1))
  [ "$1" = "$2" ] && return
  wrong="$wrong
$1
  is today
$2"
  [ -n "${TESSERA_TEST_UPDATE:-}" ] || return
  OLD=$1 NEW=$2 awk '$0 == ENVIRON["OLD"] { $0 = ENVIRON["NEW"] } { print }' "$page" >page && cat page >"$page"
}
while IFS= read -r row; do compare "$row" "$(first_table "$(cut -d ' ' -f 2 <<<"$row")")"; done < <(grep -E '^\| [0-9]+ \| [0-9.]+ \|' "$page")
while IFS= read -r row; do compare "$row" "$(second_table "$row")"; done < <(sed -n '/^| | device, MiB | host/,/^$/p' "$page" | tail -n +3 | grep .)
[ $rows -ge 18 ] || fail "only $rows rows found"
[ -z "$wrong" ] || fail "docs/memory.md:$wrong"
echo "$rows rows"
