# SPDX-License-Identifier: BSD-3-Clause
# cmake -DOUT=file.c -DSOURCES="a.md;b.md" -P embed.cmake: the sources' bytes, one after another, as a C array.
set(hex "")
foreach(source IN LISTS SOURCES)
  file(READ ${source} bytes HEX)
  string(APPEND hex ${bytes})
endforeach()
string(LENGTH "${hex}" length)
math(EXPR length "${length} / 2")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," body "${hex}")
# Compilers read short lines faster.
string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" body
  "${body}")
file(WRITE ${OUT} "#include <stdint.h>\nextern const unsigned char tool_embedded_docs[];\n"
  "extern const uint64_t tool_embedded_docs_bytes;\n"
  "const unsigned char tool_embedded_docs[] = {\n${body}0 };\nconst uint64_t tool_embedded_docs_bytes = ${length};\n")
