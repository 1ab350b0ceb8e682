# SPDX-License-Identifier: BSD-3-Clause
# Runs in `cmake --install`, when the guide is there: its links to headers and to the kit lead to where those are
# installed, and those to files that stay in the source become plain text. doc_dir, include_dir and kit_dir are set.
get_filename_component(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}" ABSOLUTE) # as given, it may be relative
file(GLOB_RECURSE pages ${prefix}/${doc_dir}/*.md)
foreach(page IN LISTS pages)
  get_filename_component(folder ${page} DIRECTORY)
  file(RELATIVE_PATH include ${folder} ${prefix}/${include_dir})
  file(RELATIVE_PATH kit ${folder} ${prefix}/${kit_dir})
  file(READ ${page} before)
  string(REGEX REPLACE "\\]\\((\\.\\./)*core/include/" "](${include}/" text "${before}")
  string(REGEX REPLACE "\\]\\((\\.\\./)*kit/" "](${kit}/" text "${text}")
  string(REGEX REPLACE "\\[([^]]*)\\]\\((\\.\\./)*(CONTRIBUTING\\.md|SECURITY\\.md|LICENSE|tests/[^)]*)\\)" "\\1" text "${text}")
  if(NOT text STREQUAL before)
    file(WRITE ${page} "${text}")
  endif()
endforeach()
