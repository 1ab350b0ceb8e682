#!/bin/bash
# SPDX-License-Identifier: BSD-3-Clause
# labels: e2e
# The cheap part of the house style's English (CONTRIBUTING.md): no words that hide who does what, no sentences that begin with
# "What", no words of a dialect that newcomers read twice. Pages and the rooms listed here hold it; elsewhere it is counted.
. "$SOURCE/tests/e2e/lib.sh"
cd "$SOURCE"
words="seldom|befall|but for |nobody's|sets going|talked out|gone astray|comes behind|in its place is"
begins='/\*+ (What|Of|Between) |^(# |\* )?What [a-z]'
git() { command git -c safe.directory='*' "$@"; }
git rev-parse --git-dir >/dev/null 2>&1 || { echo "skipped: not a git checkout"; exit 77; }
all() { git ls-files -- '*.c' '*.h' '*.cc' '*.cu' '*.cmake' '*CMakeLists.txt' '*.sh' '*.md' "$@" | grep -v '^tests/e2e/test_english.sh$'; }
held='^(README|CONTRIBUTING|SECURITY|CHANGELOG)\.md$|^docs/[^/]*\.md$|^cmake/|^core/|^kit/|^plugins/|^tools/(bench|ckpt|launch|machine|models|pages|plan|plugins|proof|report|support|tokenizer|train|tune)/'
wrong=$(all | grep -E "$held" | xargs grep -nE "$words|$begins" || true)
[ -z "$wrong" ] || fail "say it with a subject, a verb and an object: $wrong"
# Pages: no sentence of more than 25 words.
wrong=$(awk -v most=25 -f tests/support/sentences.awk ./*.md docs/*.md docs/benchmarks/*.md {plugins,tools}/*/README.md examples/*/*/README.md \
  tests/reference/data/README.md)
[ -z "$wrong" ] || fail "shorter sentences: $wrong"
echo "held in $(all | grep -cE "$held") files; $(all | grep -vE "$held" | xargs grep -hE "$words|$begins" | wc -l) places elsewhere"
