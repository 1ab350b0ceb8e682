#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 200
# processors: 2
# Reports of real runs and plans: page, picture and trace; what they say equals the JSON; wrong input is one line.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=warning
ranks=2
[ -e "$BUILD/plugins/libtessera-comm-gloo.so" ] || ranks=1
head -c 4000 "$SOURCE/core/layout/layout.c" >text.txt
gpt=(gpt -n $ranks --data text.txt --layers 2 --heads 2 --width 32 --context 16 --batch 2 --steps 3 --threads 1)

# The command writes the page itself; the JSON beside it makes the same one.
"$TESSERA" train "${gpt[@]}" --json=run.json --report page.html --quiet
"$TESSERA" report run.json -o again.html
sed 's/gpt<\/h2>/run.json<\/h2>/' page.html | cmp - again.html || fail "two pages of one run differ"
"$TESSERA" plan "${gpt[@]}" --json=plan.json --report planned.html --quiet
"$TESSERA" report plan.json | sed 's/plan.json<\/h2>/gpt<\/h2>/' | cmp - planned.html || fail "two pages of one plan differ"
"$TESSERA" train mnist $(brief_digits) --batch 8 --steps 2 --json=mnist.json --quiet
"$TESSERA" report run.json plan.json mnist.json >three.html
"$TESSERA" report plan.json --svg -o plan.svg
"$TESSERA" report run.json --perfetto -o run.trace
cat run.json | "$TESSERA" report - --svg | cmp - <("$TESSERA" report run.json --svg) || fail "standard input"
if command -v xmllint >/dev/null; then
  xmllint --noout page.html three.html plan.svg || fail "not well-formed"
fi

# Planned equals measured, and the page has the bytes of the events.
[ "$(grep -c 'Planned equals measured' three.html)" = 2 ] || fail "a run differs from its plan"
grouped() { sed ':a;s/\B[0-9]\{3\}\>/,&/;ta'; }
sum_of() { grep -o '"device":{[^}]*}' | grep -o ':[0-9][0-9]*' | tr -d : | awk '{ s += $1 } END { print s }'; }
for file in run plan; do
  peak=$(grep '"point":"peak"' $file.json | grep planned | sum_of)
  obtained=$(sed -n 's/.*"planned_peak_device_bytes":\([0-9]*\).*/\1/p' $file.json | tail -n 1)
  "$TESSERA" report $file.json -o one.html
  grep -q "alive in all</th><td class=\"n\">$(echo "$peak" | grouped)<" one.html || fail "$file: peak $peak is not in the page"
  grep -q "obtained</th><td class=\"n\">$(echo "$obtained" | grouped)<" one.html || fail "$file: $obtained is not in the page"
done
grep -q '"ph":"X"' run.trace && grep -q '"ph":"C"' run.trace || fail "the trace lacks spans or counters"
if command -v python3 >/dev/null; then
  python3 -c 'import json; json.load(open("run.trace"))' || fail "the trace is no JSON"
fi

# Wrong input.
expect 6 "$TESSERA" report nowhere.json -o x
one_line err "tessera: error: nowhere.json: No such file or directory"
head -n 5 run.json | head -c -10 >cut.json # within a line
expect 6 "$TESSERA" report cut.json -o x
grep -q '^tessera: error: cut.json:5: cut off JSON at column' err || fail "$(cat err)"
expect 6 "$TESSERA" report text.txt -o x
grep -q '^tessera: error: text.txt:1: no JSON at column 1' err || fail "$(cat err)"
grep '"event":"step"' run.json >steps.json
expect 6 "$TESSERA" report steps.json -o x
expect 6 "$TESSERA" report run.json -o /dev/full
one_line err "tessera: error: /dev/full: cannot be written: No space left on device"
expect 6 "$TESSERA" report run.json -o nowhere/x
expect 2 "$TESSERA" report run.json -o run.json
expect 2 "$TESSERA" report
expect 2 "$TESSERA" report run.json --svg --perfetto -o x
(ulimit -f 4 && trap '' XFSZ && expect 6 "$TESSERA" report run.json -o x) || fail "a file size limit"
expect 6 "$TESSERA" train linear --report nowhere/x --quiet
[ ! -e x ] && [ -z "$(ls | grep tmp- || true)" ] || fail "half-written output: $(ls)"
echo "page, picture and trace are whole and say what was measured"
