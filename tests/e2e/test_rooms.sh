#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# A room of the core or of the command includes only what stands below it (docs/architecture.md), and no tool includes
# the runtime or the engine. kit/ is a room of its own at the top and includes no other. A violation planted in each room
# must be found. The core's table of options has none that the command alone reads.
set -eu
declare -A core=( [base]="" [kit]="" [kernels]="base kit" [builtin]="base kit kernels" [plugin]="base builtin"
  [control]="base" [plan]="base kit" [readers]="base kit plan plugin"
  [checkpoint]="base" [runtime]="base kit kernels builtin plugin control plan readers checkpoint"
  [engine]="base kit kernels builtin plugin control plan readers checkpoint runtime"
  [recovery]="base kit kernels builtin plugin control plan readers checkpoint runtime engine" [saving]="base kit kernels builtin plugin control plan readers checkpoint runtime engine"
  [front]="engine recovery saving" )
declare -A tools=( [support]="" [models]="support" [machine]="support models" [launch]="support" [report]="support" [plugins]="support"
  [plan]="support models machine launch report plugins" [train]="support models machine launch report plugins plan"
  [tune]="support models machine launch report plugins plan" [bench]="support models machine launch report plugins plan train tune" [ckpt]="support" )
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
    grep -rnoE '#include "(tools/[a-z]+|core/runtime|core/engine|core/recovery|core/saving)/[^"]+"' "$1/tools/$room" | sed -E 's/#include "([^"]+)"/\1/' | while IFS=: read -r file line to; do
      case $to in tools/*) to=${to#tools/}; [[ " $room ${tools[$room]} " == *" ${to%%/*} "* ]] || echo "${file#"$1"/} tools/$to" ;;
        *) echo "${file#"$1"/} $to" ;; esac
    done
  done
}
cd "$SOURCE"
wrong=$(crossings . | sed 's#^\./##' | sort -u)
[ -z "$wrong" ] || { echo "FAILED: includes that a room may not make:"; echo "$wrong"; exit 1; }

# unread TABLE: rows of the core's table of options that the core, the kit and the plugins name nowhere: the command has its own.
unread() {
  comm -23 <(sed -n 's/^    { "\([a-z0-9-]*\)", [A-Z]*,.*/"\1"/p' "$1" | sort) \
    <(grep -rhoE --include='*.[ch]' --include='*.cc' --exclude=option_table.c '"[a-z0-9-]+"' core kit plugins | sort -u)
}
wrong=$(unread core/base/option_table.c)
[ -z "$wrong" ] || { echo "FAILED: options that nothing in the core reads, but its table has:"; echo "$wrong"; exit 1; }

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Each room but the uppermost with an include of that, and a tool with one of the runtime.
for room in "${!core[@]}" tools/plan; do
  [ "$room" != front ] || continue
  place=core/$room header=front/open.h
  [ "$room" != kit ] || place=kit header=base/status.h
  [ "$room" != tools/plan ] || place=tools/plan header=core/runtime/comms.h
  mkdir -p "$work/$place"
  echo "#include \"$header\"" >"$work/$place/planted.c"
  [ "$(crossings "$work" 2>/dev/null)" = "$place/planted.c $header" ] || { echo "FAILED: a planted include was not found in $place"; exit 1; }
  rm -r "${work:?}/$place"
done
echo '    { "top-k", INT, "0", NULL, "of a sample" },' >"$work/option_table.c"
[ "$(unread "$work/option_table.c")" = '"top-k"' ] || { echo "FAILED: a planted option was not found in the core's table"; exit 1; }
if [ -x /usr/bin/python3 ]; then
  docs/pictures/rooms docs/architecture.md "$work/rooms.svg" && cmp -s "$work/rooms.svg" docs/pictures/rooms.svg ||
    { echo "FAILED: docs/pictures/rooms.svg is not what docs/pictures/rooms draws of docs/architecture.md"; exit 1; }
  sed 's/^| control |\(.*\)| base |$/| control |\1| plan |/' docs/architecture.md >"$work/wrong.md"
  ! docs/pictures/rooms "$work/wrong.md" "$work/wrong.svg" 2>/dev/null || { echo "FAILED: a wrong place was not found"; exit 1; }
fi
echo "every room includes only what stands below it"
