# SPDX-License-Identifier: BSD-3-Clause
# The table of tests/e2e/test_kill.sh, with TABLE=1, from its lines "phase|comm|outcome|call_us|death_us", one for each kill, of the
# survivor that took longest: from its own engine call, and from the death. Rows by phase, by comm and of all.
BEGIN { FS = "|" }
function add(row) {
  n[row]++; hangs[row] += $3 == "hang"; wrong[row] += $3 == "wrong"
  if ($3 == "ok") { k[row]++; call[row, k[row]] = $4; death[row, k[row]] = $5 }
}
{ add("1 " $1); add("2 over " $2); add("3 all"); if ($3 == "hang") bad++; if ($3 == "wrong") bad++ }
function sorted(values, row,    i, j, x) { # into v
  for (i = 1; i <= k[row]; i++) {
    x = values[row, i]
    for (j = i - 1; j > 0 && v[j] > x + 0; j--) v[j + 1] = v[j]
    v[j + 1] = x + 0
  }
}
function at(row, q,    i) { i = int(k[row] * q + 0.999999); return v[i < 1 ? 1 : i] / 1e3 }
function three(values, row) { sorted(values, row); return k[row] ? sprintf("%.1f | %.1f | %.1f", at(row, 0.5), at(row, 0.99), at(row, 1)) : "- | - | -" }
END {
  print "| kills | number | hangs | wrong | from the death, ms: p50 | p99 | greatest | from its own call: p50 | p99 | greatest |"
  print "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
  for (row in n) {
    name = row
    sub(/^[0-9] /, "", name)
    printf "%s\t| %s | %d | %d | %d | %s | %s |\n", row, name, n[row], hangs[row], wrong[row], three(death, row), three(call, row) | "sort | cut -f 2-"
  }
  close("sort | cut -f 2-")
  exit bad > 0 || NR == 0
}
