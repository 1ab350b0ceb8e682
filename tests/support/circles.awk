# SPDX-License-Identifier: BSD-3-Clause
# Reads "from to" lines; prints each group of files that reach each other, one group a line. Tarjan's algorithm.
{ if (!($1 in id)) { id[$1] = 1; node[++n] = $1 } if (!($2 in id)) { id[$2] = 1; node[++n] = $2 }
  if ($1 != $2 && !(($1, $2) in seen)) { seen[$1, $2] = 1; next_of[$1, ++degree[$1]] = $2 } }
function visit(v,    i, w, group, size) {
  low[v] = depth[v] = ++clock; stack[++top] = v; on[v] = 1
  for (i = 1; i <= degree[v]; i++) {
    w = next_of[v, i]
    if (!(w in depth)) { visit(w); if (low[w] < low[v]) low[v] = low[w] }
    else if (on[w] && depth[w] < low[v]) low[v] = depth[w]
  }
  if (low[v] != depth[v]) return
  do { w = stack[top--]; on[w] = 0; group = group " " w; size++ } while (w != v)
  if (size > 1) print "circle:" group
}
END { for (k = 1; k <= n; k++) if (!(node[k] in depth)) visit(node[k]) }
