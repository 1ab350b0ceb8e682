# SPDX-License-Identifier: BSD-3-Clause
# cmake -DOUT=file.c -DROOT=folder -DSOURCES="comm/plugin.c;…" -P embed.cmake: the files as texts in a table of C, without ".in".
set(arrays "")
set(table "")
set(n 0)
foreach(source IN LISTS SOURCES)
  file(READ ${ROOT}/${source} hex HEX)
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," body "${hex}")
  string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" body
    "${body}")
  get_filename_component(folder ${source} DIRECTORY)
  get_filename_component(name ${source} NAME)
  string(REGEX REPLACE "\\.in$" "" name ${name})
  string(APPEND arrays "static const char text${n}[] = {\n${body}0 };\n")
  string(APPEND table "    { \"${folder}\", \"${name}\", text${n} },\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${OUT} "#include \"tools/plugins/plugins_new.h\"\n${arrays}const plugin_template tool_plugin_templates[] = {\n${table}\
    { 0, 0, 0 },\n};\n")
