#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# timeout: 200
# processors: 2
# The page in headless Chromium: nothing is reported as wrong, labels of a picture do not lie on one another, a narrow
# page does not scroll sideways, and the dark scheme is another picture. Screenshots stay in the test's folder.
set -eu
. "$SOURCE/tests/e2e/lib.sh"
export TESSERA_LOG=warning
chromium=$(command -v chromium || command -v chromium-browser || true)
[ -n "$chromium" ] || { echo "skipped: chromium is not installed"; exit 77; }
head -c 4000 "$SOURCE/core/layout/layout.c" >text.txt
"$TESSERA" train gpt --data text.txt --layers 4 --heads 2 --width 32 --context 16 --batch 2 --steps 2 --json=a.json --quiet
"$TESSERA" train gpt --data text.txt --layers 4 --heads 2 --width 32 --context 16 --batch 2 --steps 2 \
  --activations recompute --json=b.json --quiet
# As train writes them with several ranks, in place of the one that it wrote.
sed -i '/"event":"rank"/d' a.json
for rank in 0 1; do
  echo '{"event":"rank","rank":'$rank',"peak_device_bytes":4096,"peak_resident_bytes":'$((8192 + rank))',"step_allocations":0}' >>a.json
done
"$TESSERA" report a.json b.json -o page.html
grep -q 'Ranks differ in: resident set, peak\.' page.html || fail "the page does not say where ranks differ"
[ "$(grep -c 'Training loss over the run</title>' page.html)" = 2 ] || fail "not two curves of the loss"
grep -q '<figcaption class="legend"><span>' page.html || fail "the timeline has no legend"
grep -q 'The same in all: model gpt' page.html || fail "the comparison does not say what is the same"
! grep -A3 'id="compare0"' page.html | grep -q '>model<' || fail "the comparison has a column for what does not differ"
browse() {
  timeout 60 "$chromium" --headless=new --no-sandbox --disable-gpu --hide-scrollbars --no-first-run \
    --user-data-dir="$PWD/profile" --allow-file-access-from-files "$@" 2>>chromium.log
}
if ! browse --dump-dom "file://$PWD/page.html" >dom.html; then
  echo "skipped: chromium does not start here: $(tail -n 1 chromium.log)"
  exit 77
fi
grep -q 'Planned equals measured' dom.html || fail "the page is not what was written"

# The page allows no script, so a copy without that rule measures itself, in a frame of 500 pixels.
cat >measure.js <<'END'
const wrong = [];
if (document.documentElement.scrollWidth > innerWidth) wrong.push('scrolls sideways: ' + document.documentElement.scrollWidth);
for (const svg of document.querySelectorAll('main svg:not(.swatch)')) {
  const boxes = [...svg.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
  boxes.forEach(([a, p], i) => boxes.slice(i + 1).forEach(([b, q]) => {
    const x = Math.min(p.right, q.right) - Math.max(p.left, q.left), y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
    if (x > 1 && y > 4) wrong.push(`'${a}' on '${b}'`);
  }));
}
for (const e of document.querySelectorAll('.scroll'))
  if (e.tabIndex !== 0 || !e.getAttribute('role')) wrong.push('out of reach by keyboard');
for (const e of document.querySelectorAll('[aria-labelledby]'))
  for (const id of e.getAttribute('aria-labelledby').split(' '))
    if (document.querySelectorAll('#' + id).length !== 1) wrong.push('label ' + id);
document.title = 'measured: ' + (wrong.join('; ') || 'nothing wrong');
END
{ grep -v Content-Security-Policy page.html | sed '/<\/body>/,$d'; echo '<script>'; cat measure.js; echo '</script></body></html>'; } >copy.html
echo '<!DOCTYPE html><title>-</title><body><iframe src="copy.html" width="500" height="900"
  onload="document.title = this.contentDocument.title"></iframe></body>' >narrow.html
for page in copy narrow; do
  browse --window-size=1100,900 --dump-dom "file://$PWD/$page.html" >$page.dom
  grep -q '<title>measured: nothing wrong</title>' $page.dom || fail "$page: $(grep -o '<title>[^<]*' $page.dom | head -n 1)"
done

browse --window-size=1100,2400 --screenshot="$PWD/light.png" "file://$PWD/page.html"
browse --window-size=1100,2400 --blink-settings=preferredColorScheme=0 --screenshot="$PWD/dark.png" "file://$PWD/page.html"
[ -s light.png ] && [ -s dark.png ] || fail "no screenshots"
! cmp -s light.png dark.png || fail "light and dark look the same"
rm -rf profile
echo "the page shows in Chromium, wide, narrow, light and dark"
