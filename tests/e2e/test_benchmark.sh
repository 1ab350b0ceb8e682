#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# tools/benchmark writes its page, with commands, medians and spread; figures themselves are no test's.
. "$SOURCE/tests/e2e/lib.sh"
[ -z "$SANITIZE" ] || { echo "skipped: figures of a build with a sanitizer say nothing"; exit 77; }
export TESSERA
expect 0 "$SOURCE/tools/benchmark" --quick --rounds 2 --only 'norm|planning 405' page.md
has_line page.md '\| norm, of memory bandwidth \(ratio\) \| more \| [0-9.e+-]+ \| [0-9.e+-]+ \| [0-9.e+-]+ \| [0-9.]+ % \|'
has_line page.md '\| planning 405 B .*\(plan_seconds\) \| less \| [0-9.e+-]+ .*'
has_line page.md '    tessera bench norm --bytes 64KiB --rounds 5'
has_line page.md '\| commit \| ([0-9a-f]{12}(, changed)?|not a checkout) \|'
has_line page.md '\| date \| 20[0-9-]+ [0-9:]+ UTC \|'
# Exact cases run once. A round that would not end in time does not begin, and the page says so.
expect 0 "$SOURCE/tools/benchmark" --quick --rounds 50 --minutes 0 --only '^gpt peak, full\||planning 405' page.md
[ "$(grep -c '^round 1 of 50: ' err)" = 2 ] && ! grep -q '^round 2' err || fail "rounds: $(cat err)"
has_line page.md 'More rounds would have taken longer than the 0 minutes of `--minutes`.'
expect 0 "$SOURCE/tools/benchmark" --quick --rounds 2 --only '^gpt peak, full\||planning 405' page.md
[ "$(grep -c ': gpt peak' err) $(grep -c ': planning' err)" = "1 2" ] || fail "an exact case ran twice: $(cat err)"
# With a python, PyTorch's steps are cases in the same turns, and the page has the ratio of the medians.
cat >python <<'END'
#!/bin/sh
case "$*" in
  *"import torch"*) echo "torch 0.0" ;;
  *"--nproc-per-node 2 "*"/tests/reference/fsdp2.py --clip 1 --strategy full --steps 2 "*) echo '{"event":"summary","step_seconds":0.5}' ;;
  *) exit 1 ;;
esac
END
chmod +x python
TESSERA_PYTHON=$PWD/python expect 0 "$SOURCE/tools/benchmark" --quick --rounds 2 --only '^gpt step, full(, PyTorch)?\|' page.md
has_line page.md '\| PyTorch FSDP2 \| torch 0.0 \|'
has_line page.md '\| gpt step, full, PyTorch \(step_seconds\) \| less \| 0.5 \| 0.5 \| 0.5 \| 0.0 % \|'
has_line page.md '\| gpt step, full \| [0-9]+\.[0-9]+ \|'
has_line page.md '    python -m torch.distributed.run --nproc-per-node 2 tests/reference/fsdp2.py --clip 1 --strategy full .*'
TESSERA=/bin/false expect 1 "$SOURCE/tools/benchmark" --quick --rounds 1 --only norm page.md
grep -q 'not measured' page.md || fail "a failed case has a figure"
expect 2 "$SOURCE/tools/benchmark" --only 'nothing like it'
expect 2 "$SOURCE/tools/benchmark" --fast
echo "the page is written, and says what failed"
