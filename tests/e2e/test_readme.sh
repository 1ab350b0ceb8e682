#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# What README.md quotes is what is in the tree, and every file it and the docs point to is there.
set -eu
fail() { echo "FAILED: $*"; exit 1; }
# Its C is at most 25 lines of examples/first/train.c, in order; a remark with … stands where lines are left out.
awk '/^```c$/ { on = 1; next } /^```$/ { on = 0 } on' "$SOURCE/README.md" >quoted.c
lines_of() { awk 'NR == FNR { if ($0 !~ /^ *\/\*.*….*\*\/$/ && $0 != "") want[++n] = $0; next } $0 == want[at + 1] { at++ } END { if (at < n) print want[at + 1] }' "$1" "$2"; }
[ "$(wc -l <quoted.c)" -gt 15 ] && [ "$(wc -l <quoted.c)" -le 25 ] || fail "README.md quotes $(wc -l <quoted.c) lines of C"
wrong=$(lines_of quoted.c "$SOURCE/examples/first/train.c")
[ -z "$wrong" ] || fail "not a line of examples/first/train.c, or not there: $wrong"
sed 's/tess_step(/tess_stop(/' quoted.c >planted.c
[ -n "$(lines_of planted.c "$SOURCE/examples/first/train.c")" ] || fail "a planted line was not found"
# Its table has rows of docs/benchmarks/fsdp2.md: the ratio of times, and bytes. Table and picture come before line 40.
sed -n '1,40s/^| \([a-z]*\), \([a-z0-9]*\), \([a-z]*\) | \([0-9.]*\) | \([0-9]*\) | \([0-9]*\) |.*/\1 | 2 | \2 | \3 | .* | \4 | \5 | \6 |/p' "$SOURCE/README.md" >measured
[ "$(wc -l <measured)" = 4 ] || fail "README.md has $(wc -l <measured) measured rows before line 40"
while read -r row; do
  grep -q "^| $row" "$SOURCE/docs/benchmarks/fsdp2.md" || fail "docs/benchmarks/fsdp2.md does not have README.md's row: $row"
done <measured
head -n 40 "$SOURCE/README.md" | grep -q '](docs/pictures/' || fail "README.md has no picture before line 40"
[ "$(grep -cv '^$' "$SOURCE/examples/plugins/wrap-transformer/wrap_transformer.c")" -lt 100 ] ||
  fail "wrap-transformer has 100 lines or more"
grep -Fq "$(sed -n '/^tessera_add_plugin/p' "$SOURCE/examples/plugins/wrap-transformer/CMakeLists.txt")" "$SOURCE/README.md" ||
  fail "README.md does not quote examples/plugins/wrap-transformer/CMakeLists.txt"
cd "$SOURCE"
# Each page that promises GPUs says what one has run, and what none has. docs/benchmarks/gpu.md lists both, by name.
silent() { # PAGE…
  for page; do
    tr '\n' ' ' <"$page" | grep -q 'One NVIDIA H200 \(has run\|ran\).*NCCL between GPUs has run on stand-ins only\|NCCL between GPUs has run on stand-ins only.*One NVIDIA H200 has run' ||
      echo "$page"
  done
}
gpu=docs/benchmarks/gpu.md
wrong=$(silent README.md $gpu docs/nvidia.md docs/your-own-cuda-trainer.md plugins/comm-nccl/README.md plugins/device-cuda/README.md)
[ -z "$wrong" ] || fail "promises GPUs and does not say what one has run and what none has: $wrong"
sed 's/on stand-ins only/well/' README.md >"$OLDPWD/planted.md"
[ -n "$(silent "$OLDPWD/planted.md")" ] || fail "a page that promises NCCL between GPUs was not found"
for name in "several GPUs" "NCCL between GPUs" "windows of more than one rank" lion "stochastic rounding of .wire8." "Kernels for sm_80" \
  "five products" "the head's present form" "products in fp8" "copy engines" "attention by cuDNN"; do
  sed -n '/^Not run on any GPU:$/,/^## /p' $gpu | grep -q "$name" || fail "$gpu does not say that no GPU has run: $name"
done
for page in README.md docs/nvidia.md; do # whose figures are older than these
  tr '\n' ' ' <$page | grep -q "The head, attention's backward and products in fp8 are newer" || fail "$page does not say what is newer than its figures"
done
grep -q '^| device |.*one GPU has run this, several have not' README.md || fail "README.md: the row of devices does not say what has run"
! grep -n 'No GPU has run this yet' README.md CHANGELOG.md docs/*.md docs/benchmarks/*.md plugins/*/README.md || fail "a GPU has run it"
! grep -nE 'always has work|never leaves the GPU without work|together exclude it|CUDA 12\.0 or later\)' docs/nvidia.md plugins/comm-nccl/README.md ||
  fail "a promise that no GPU has shown"
tests/gpu/page --check $gpu || fail "the tables of $gpu are not those of its runs"
count=0
for page in README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md docs/benchmarks/*.md {plugins,tools}/*/README.md examples/*/*/README.md; do
  [ -e "$page" ] || continue
  while read -r link; do
    [ -e "$(dirname "$page")/$link" ] || fail "$page points to $link, which is not there"
    count=$((count + 1))
  done < <(grep -o '](\([^):#]*\))' "$page" | sed 's/](\(.*\))/\1/')
done
[ "$count" -gt 5 ] || fail "only $count links found"

# Paths of this tree, linked or not, and the names of docs/architecture.md's list of rooms.
pages=$(ls README.md CONTRIBUTING.md SECURITY.md CHANGELOG.md docs/*.md docs/benchmarks/*.md plugins/*/README.md examples/*/*/README.md tools/*/README.md)
paths() { # FILE…: "PAGE PATH" per line; KIND-NAME and programs that a build makes are no paths
  grep -oHE '(^|[ (`"])(core|kit|tools|tests|plugins|examples|docs|cmake|\.ci)/[A-Za-z0-9_./*-]*[A-Za-z0-9_*]' "$@" | sed 's/:[ (`"]*/ /' | sort -u |
    grep -Ev ' plugins/KIND-NAME$| tests/matrix/test_matrix$| tests/support/toy$'
}
listed() { # core/ROOM/NAME and kit/NAME per line
  awk '/^```$/ { on = 0 } /^core\/include\/tessera\// { on = 1 } !on { next }
    /^[a-z]/ { room = $1 } room ~ /^(core\/[a-z]*|kit)\/$/ { names = substr($0, 24); sub(/  .*/, "", names); gsub(/,/, "", names)
      n = split(names, name, " "); for (i = 1; i <= n; i++) print room name[i] }' docs/architecture.md
}
# shellcheck disable=SC2086
wrong=$(paths $pages | while read -r page path; do compgen -G "$path" >/dev/null || echo "$page: $path"; done)
[ -z "$wrong" ] || fail "no such file: $wrong"
[ "$(listed | wc -l)" -gt 40 ] || fail "docs/architecture.md lists $(listed | wc -l) files"
wrong=$(listed | while read -r name; do [ -e "$name.c" ] || [ -e "$name.h" ] || echo "$name"; done)
[ -z "$wrong" ] || fail "docs/architecture.md lists what is not there: $wrong"
printf 'See `core/engine/not_here.c`.\n' >"$OLDPWD/planted.md"
[ "$(paths "$OLDPWD/planted.md" | wc -l)" = 1 ] || fail "a planted path was not found"
# shellcheck disable=SC2086
echo "$count links, $(paths $pages | wc -l) paths"
