#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A room of the core or of the command includes only what stands below it (docs/architecture.md). Headers private to the
# core are included by the files of tools/ that stand here, and by no other; the runtime or the engine by none. kit/ is a
# room of its own at the top and includes no other. A violation planted in each room must be found. The core's table of
# options has none that the command alone reads.
set -eu
declare -A core=( [base]="" [kit]="" [kernels]="base kit" [builtin]="base kit kernels" [plugin]="base builtin"
  [control]="base" [layout]="base kit" [plan]="base kit layout" [readers]="base kit layout plan plugin"
  [checkpoint]="base" [runtime]="base kit kernels builtin plugin control layout plan readers checkpoint"
  [optimize]="base kit kernels plugin layout plan runtime"
  [engine]="base kit kernels builtin plugin control layout plan readers checkpoint runtime optimize"
  [proof]="base kit kernels builtin plugin control layout plan readers checkpoint runtime optimize engine"
  [recovery]="base kit kernels builtin plugin control layout plan readers checkpoint runtime optimize engine" [saving]="base kit kernels builtin plugin control layout plan readers checkpoint runtime optimize engine proof"
  [group]="base kit kernels builtin plugin control layout plan readers checkpoint runtime optimize engine"
  [inspect]="base kit kernels builtin plugin control layout plan readers checkpoint runtime optimize engine"
  [front]="engine proof recovery saving group" )
declare -A tools=( [support]="" [tokenizer]="support" [models]="support" [machine]="support models" [launch]="support" [report]="support" [plugins]="support"
  [plan]="support models machine launch report plugins" [train]="support tokenizer models machine launch report plugins plan"
  [tune]="support models machine launch report plugins plan" [bench]="support models machine launch report plugins plan train tune" [ckpt]="support" [proof]="support"
  [doctor]="support plugins" )
# What tools need of the core, behind headers of their own; then commands about its insides: checkpoints, plans, kernels
# and plugins.
private="support/say.c support/options.c support/json_in.c support/names.c support/safetensors.c support/safetensors_write.c support/world.c support/mesh.c launch/launch_server.c
  ckpt/ckpt.h ckpt/ckpt_write.c proof/ledger.c proof/detail.c train/train_checkpoint.c train/train_optimizer.c
  plan/plan_read.c plan/plan_report.c plan/plan_at_peak.h plan/plan_audit.h plan/plan_head.c plan/plan_matrices.c plan/plan_matrices.h plan/plan_time.c plan/plan_program.c plan/simulate.h
  bench/bench_comm.c bench/bench_kernels.c doctor/doctor_machine.c
  plugins/plugin_known.c plugins/plugin_takes.c plugins/plugins.c plugins/check/device.c plugins/check/rank.c plugins/check/wrap.c"
rooms=$(printf '|%s' "${!core[@]}") # a tool finds their headers without "core/" too
rooms=${rooms/|kit/}
# crossings ROOT: "file included-header" of every include that its room may not make.
crossings() {
  local room file line to folder
  for room in "${!core[@]}"; do
    folder=$1/core/$room
    [ "$room" != kit ] || folder=$1/kit
    grep -rnoE '#include "[a-z]+/[^"]+"' "$folder" | sed -E 's/#include "([^"]+)"/\1/' | while IFS=: read -r file line to; do
      case $to in tessera/*) continue ;; esac
      [[ " $room ${core[$room]} " == *" ${to%%/*} "* ]] || echo "${file#"$1"/} $to"
    done
  done
  for room in "${!tools[@]}"; do
    [ -d "$1/tools/$room" ] || continue
    grep -rnoE '#include "tools/[a-z]+/[^"]+"' "$1/tools/$room" | sed -E 's/#include "tools\/([^"]+)"/\1/' | while IFS=: read -r file line to; do
      [[ " $room ${tools[$room]} " == *" ${to%%/*} "* ]] || echo "${file#"$1"/} tools/$to"
    done
  done
  grep -rnoE "#include \"(core$rooms)/[^\"]+\"" "$1/tools" | sed -E 's/#include "([^"]+)"/\1/' | while IFS=: read -r file line to; do
    file=${file#"$1"/}
    case core/${to#core/} in core/runtime/* | core/optimize/* | core/engine/* | core/recovery/* | core/saving/* | core/group/* | core/inspect/* | core/front/*) echo "$file $to" ;;
      *) [[ " "${private//$'\n'/ }" " == *" ${file#tools/} "* ]] || echo "$file $to" ;; esac
  done
}
cd "$SOURCE"
wrong=$(crossings . | sed 's#^\./##' | sort -u)
[ -z "$wrong" ] || { echo "FAILED: includes that a room may not make:"; echo "$wrong"; exit 1; }
for file in $private; do
  grep -qE '#include "core/' "tools/$file" || { echo "FAILED: tools/$file includes nothing private to the core any more, but is listed"; exit 1; }
done

# unread TABLE: rows of the core's table of options that the core, the kit and the plugins name nowhere: the command has its own.
unread() {
  comm -23 <(sed -n 's/^    { "\([a-z0-9-]*\)", [A-Z]*,.*/"\1"/p' "$1" | sort) \
    <(grep -rhoE --include='*.[ch]' --include='*.cc' --exclude=option_table.c '"[a-z0-9-]+"' core kit plugins | sort -u)
}
wrong=$(unread core/base/option_table.c)
[ -z "$wrong" ] || { echo "FAILED: options that nothing in the core reads, but its table has:"; echo "$wrong"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Each room but the uppermost with an include of that, and each of tools/ with one of a header private to the core. Nor
# does a listed tool include the runtime.
tool_rooms=("${!tools[@]}")
for room in "${!core[@]}" "${tool_rooms[@]/#/tools/}"; do
  [ "$room" != front ] || continue
  place=core/$room header=front/open.h
  [ "$room" != kit ] || place=kit header=base/status.h
  [ "$room" = "${room#tools/}" ] || place=$room header=core/base/log.h
  [ "$room" != tools/train ] || header=base/log.h
  mkdir -p "$work/tree/$place"
  echo "#include \"$header\"" >"$work/tree/$place/planted.c"
  echo "$place/planted.c $header"
done >"$work/planted"
echo '#include "core/runtime/comms.h"' >"$work/tree/tools/plan/plan_read.c"
echo "tools/plan/plan_read.c core/runtime/comms.h" >>"$work/planted"
missed=$(crossings "$work/tree" | sort | comm -3 - <(sort "$work/planted"))
[ -z "$missed" ] || { echo "FAILED: planted includes were not found, or others were:"; echo "$missed"; exit 1; }
echo '    { "top-k", INT, "0", NULL, "of a sample" },' >"$work/option_table.c"
[ "$(unread "$work/option_table.c")" = '"top-k"' ] || { echo "FAILED: a planted option was not found in the core's table"; exit 1; }
if [ -x /usr/bin/python3 ]; then
  docs/pictures/rooms docs/architecture.md "$work/rooms.svg" && cmp -s "$work/rooms.svg" docs/pictures/rooms.svg ||
    { echo "FAILED: docs/pictures/rooms.svg is not what docs/pictures/rooms draws of docs/architecture.md"; exit 1; }
  sed 's/^| control |\(.*\)| base |$/| control |\1| plan |/' docs/architecture.md >"$work/wrong.md"
  ! docs/pictures/rooms "$work/wrong.md" "$work/wrong.svg" 2>/dev/null || { echo "FAILED: a wrong place was not found"; exit 1; }
fi
echo "every room includes only what stands below it"
