# SPDX-License-Identifier: BSD-3-Clause
# Lengths of functions in files that clang-format has formatted: from the line of the name to the closing brace, blank lines
# and comments left out. Prints "lines name file" for each.
FNR == 1 { name = ""; inside = 0 }
!inside && /^[a-zA-Z_].*\(/ && !/^(typedef|#|extern|enum|struct [a-z_]* \{|static const|const)/ && !/;$/ {
  name = $0; sub(/\(.*/, "", name); sub(/.*[ *]/, "", name); lines = 0; at = 1 }
!inside && name != "" { lines++; if (/;$/) name = ""; else if (/\{$/) inside = 1; else if (/\{.*\}$/) { print lines, name, FILENAME; name = "" } ; next }
inside && /^\}/ { print lines + 1, name, FILENAME; inside = 0; name = ""; next }
inside && !/^ *$/ && !/^ *(\/\*.*\*\/|\/\/.*)$/ { lines++ }
