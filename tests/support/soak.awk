# SPDX-License-Identifier: BSD-3-Clause
# Judges the looks of tests/e2e/test_soak_slow.sh: "look SECONDS NAME memory mapped descriptors threads", in KiB. The time of each
# process is cut into ten parts. The first is warm-up, the second is the measure, and no later one may be above it: not at all in its
# fewest descriptors and threads, by not more than BOUND KiB (256) in its least memory and mapping. Least, for a checkpoint
# being written has files open and a buffer for a moment; whatever leaks stays. Exits 1 unless all are flat.
function least(name, part, what) { return value[name, part, what] }
function growth(name, what,    part, most) {
  most = least(name, 3, what)
  for (part = 4; part <= 10; part++) if (least(name, part, what) > most) most = least(name, part, what)
  return most - least(name, 2, what)
}
$1 == "look" {
  n++; at[n] = $2; who[n] = $3
  if ($2 > last[$3]) last[$3] = $2
  if ($2 > end) end = $2
  for (k = 1; k <= 4; k++) seen[n, k] = $(3 + k)
  if (!($3 in known)) { known[$3] = 1; names[++count] = $3 }
}
END {
  if (BOUND == "") BOUND = 256
  for (i = 1; i <= n; i++) {
    part = int(at[i] * 10 / (last[who[i]] + 1)) + 1
    looks[who[i], part]++
    for (k = 1; k <= 4; k++) {
      if (!((who[i], part, k) in value) || seen[i, k] < value[who[i], part, k]) value[who[i], part, k] = seen[i, k]
      if (seen[i, k] > greatest[who[i], k]) greatest[who[i], k] = seen[i, k]
    }
  }
  print "| process | memory, KiB: 2nd tenth | last | growth | mapped, KiB: 2nd | last | growth | descriptors: 2nd | last | threads: 2nd | last | flat |"
  print "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |"
  for (j = 1; j <= count; j++) {
    w = names[j]
    flat = growth(w, 1) <= BOUND && growth(w, 2) <= BOUND && growth(w, 3) <= 0 && growth(w, 4) <= 0
    for (part = 2; part <= 10; part++) if (looks[w, part] < 3) flat = 0
    if (!flat) bad++
    printf "| %s | %d | %d | %d | %d | %d | %d | %d | %d | %d | %d | %s |\n", w, least(w, 2, 1), least(w, 10, 1), growth(w, 1), least(w, 2, 2),
      least(w, 10, 2), growth(w, 2), least(w, 2, 3), least(w, 10, 3), least(w, 2, 4), least(w, 10, 4), flat ? "yes" : "NO"
  }
  printf "%d looks in %d s at %d processes, %d of them not flat; bound %d KiB\n", n, end, count, bad, BOUND
  exit bad > 0 || count == 0
}
