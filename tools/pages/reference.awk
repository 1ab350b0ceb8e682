# SPDX-License-Identifier: BSD-3-Clause
# The reference of the C interface from tessera.h: a section per heading of the header, each function with its comment,
# each type as it stands there. form=man or form=markdown.
function heading(text) {
  if (form == "man") printf ".SH %s\n", toupper(escape(text))
  else printf "\n## %s\n", text
}
function escape(text) {
  gsub(/\\/, "\\e", text)
  gsub(/-/, "\\-", text)
  return text ~ /^[.']/ ? "\\&" text : text
}
function collective(text) {
  sub(/^\[C\] */, "Collective. ", text)
  sub(/^Collective\. only in that/, "Collective only in that", text)
  return text
}
function function_out(name) {
  name = code
  sub(/\(.*/, "", name)
  sub(/.*[ *]/, "", name)
  gsub(/TESS_API /, "", code)
  doc = collective(doc)
  if (form == "man") {
    printf ".TP\n.B %s\n%s\n", escape(squeeze(code)), escape(squeeze(doc == "" ? "See the section." : doc))
  } else
    printf "\n### %s\n\n```c\n%s\n```\n%s", name, code, doc == "" ? "" : "\n" squeeze(doc) "\n"
}
function squeeze(text) {
  gsub(/[ \n]+/, " ", text)
  sub(/^ /, "", text)
  sub(/ $/, "", text)
  return text
}
function type_out(n, lines, i) {
  if (form != "man") {
    printf "\n%s```c\n%s\n```\n", doc == "" ? "" : squeeze(doc) "\n\n", code
    return
  }
  if (doc != "") printf ".PP\n%s\n", escape(squeeze(doc))
  print ".PP\n.nf"
  n = split(code, lines, "\n")
  for (i = 1; i <= n; i++) print escape(lines[i])
  print ".fi"
}
BEGIN {
  if (form == "man")
    printf ".\\\" Made from tessera.h.\n.TH TESSERA.H 3 \"\" \"tessera %s\" \"C interface\"\n.SH NAME\n" \
           "tessera.h \\- the C interface of Tessera\n.SH SYNOPSIS\n.B #include <tessera/tessera.h>\n", version
  else
    print "# The C interface\n\nMade from [tessera/tessera.h](../core/include/tessera/tessera.h) by `tools/pages/make`; the header " \
          "is the contract.\n\"Collective\": every rank calls it, in the same order."
}
/^\/\* ---- / {
  line = $0
  sub(/^\/\* -+ */, "", line)
  sub(/ *-+ *\*\/$/, "", line)
  heading(line)
  next
}
in_doc {
  line = $0
  sub(/^ *\* ?/, "", line)
  if (line ~ /\*\/|^\/$/) in_doc = 0
  sub(/ *\*?\/$/, "", line)
  doc = doc " " line
  next
}
/^\/\*\*/ {
  doc = $0
  sub(/^\/\*\* */, "", doc)
  in_doc = doc !~ /\*\//
  sub(/ *\*\/.*/, "", doc)
  next
}
taking != "" {
  code = code "\n" $0
  if (taking == "function" && in_tail) { # a comment behind the prototype goes on
    in_tail = $0 !~ /\*\//
  }
}
taking == "" && /^TESS_API/ { taking = "function"; code = $0; in_tail = $0 ~ /\/\*/ && $0 !~ /\*\// }
taking == "" && /^(typedef|enum|struct .*\{|#define TESS_[A-Z_]* )/ && !/^#define TESS_API/ { taking = "type"; code = $0; depth = 0 }
taking != "" {
  line = $0
  gsub(/\/\*[^*]*\*\//, "", line)
  depth += gsub(/\{/, "{", line) - gsub(/\}/, "}", line)
  if (taking == "function" && !in_tail && code ~ /;/) {
    tail = code
    if (sub(/^[^;]*; */, "", tail) && tail ~ /^\/\*/) {
      gsub(/^\/\*+ *| *\*\/ *$/, "", tail)
      gsub(/\n *\*? ?/, " ", tail)
      doc = doc == "" ? tail : doc " " tail
    }
    sub(/;.*/, ";", code)
    function_out()
    taking = doc = code = ""
  } else if (taking == "type" && depth <= 0 && (line ~ /; *$/ || code ~ /^#define/)) {
    type_out()
    taking = doc = code = ""
  }
}
