# SPDX-License-Identifier: BSD-3-Clause
# The sentences of Markdown pages that are longer than `most` words or begin with "What": FILE:LINE: WORDS words: SENTENCE.
# Code counts as one word. A cell of a table and an item of a list are paragraphs of their own; in a
# cell a semicolon ends a sentence, since cells are lists.
function judge(text, line,   n, words, i, count) {
  gsub(/^[ *_>]+|[ *_]+$/, "", text)
  n = split(text, words, /[ \t]+/)
  for (i = 1; i <= n; i++)
    count += words[i] ~ /[[:alnum:]]/
  if (count > most || text ~ /^What[ ']/)
    printf "%s:%d: %d words: %s\n", file, line, count, text
}
function flush(   n, parts, i) {
  if (held == "") return
  gsub(/<!--[^>]*-->/, "", held)
  gsub(/`[^`]*`/, "X", held)
  while (match(held, /\[[^\]]*\]\([^)]*\)/)) {
    link = substr(held, RSTART + 1, RLENGTH - 1)
    sub(/\]\(.*/, "", link)
    held = substr(held, 1, RSTART - 1) link substr(held, RSTART + RLENGTH)
  }
  gsub(/[.!?][)*_"]* +| · /, "&\001", held)
  gsub(/: +[A-Z]/, "&\002", held)
  n = split(held, parts, "\001")
  for (i = 1; i <= n; i++) {
    gsub(/\002/, "", parts[i])
    judge(parts[i], begun)
  }
  held = ""
}
FNR == 1 { flush(); file = FILENAME; fence = comment = 0 }
/^ *```/ { flush(); fence = !fence; next }
fence { next }
/^<!--/ { flush(); comment = 1 }
comment { if (/-->/) comment = 0; next }
/^ *$/ || /^#/ { flush(); next }
/^ *\|/ {
  flush()
  cells = split($0, cell, /[^\\]\|/)
  for (c = 1; c <= cells; c++) { held = cell[c]; gsub(/; /, ". ", held); sub(/^ *\|/, "", held); begun = FNR; flush() }
  next
}
/^    / && held == "" { next }
/^ *([-*]|[0-9]+\.) / { flush(); sub(/^ *([-*]|[0-9]+\.) +/, "") }
{ if (held == "") begun = FNR; sub(/^ +/, ""); held = held (held == "" ? "" : " ") $0 }
END { flush() }
