# SPDX-License-Identifier: BSD-3-Clause
# The reference of the C interface from its headers: a section per heading of a header, each function with its comment,
# each type as it stands there. form=man, for one header and the name `page`, or form=markdown, for all.
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
  if (form != "man")
    print "# The C interface\n\nMade from the headers by `tools/pages/make`; they are the contract.\n\"Collective\": every rank calls " \
          "it, in the same order."
}
/^\/\* tessera\/[a-z]*\.h: / { # the second line of a header: its name, its idea
  name = $2
  sub(/:$/, "", name)
  idea = $0
  sub(/^[^:]*: */, "", idea)
  sub(/\. C11 and C.*/, "", idea)
  if (form == "man")
    printf ".\\\" Made from %s.\n.TH %s 3 \"\" \"tessera %s\" \"C interface\"\n.SH NAME\n%s \\- %s\n.SH SYNOPSIS\n.B #include <%s>\n", \
      name, toupper(page), version, escape(page), escape(idea), name
  else
    printf "\n# [%s](../core/include/%s): %s\n", name, name, idea
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
