# SPDX-License-Identifier: BSD-3-Clause
# Packages: `cpack -G DEB` and `cpack -G TGZ` in the build folder. Debian's split: libtessera0 (library, light plugins),
# libtessera-dev, tessera (the command), tessera-doc, and one package per plugin with heavy dependencies. Configure with
# -DCMAKE_INSTALL_PREFIX=/usr for them.
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VENDOR "Tessera")
# Who makes the packages, as Debian's tools have it.
set(maintainer "The Tessera developers <tessera@localhost>")
if(DEFINED ENV{DEBEMAIL} AND DEFINED ENV{DEBFULLNAME})
  set(maintainer "$ENV{DEBFULLNAME} <$ENV{DEBEMAIL}>")
endif()
set(CPACK_PACKAGE_CONTACT ${maintainer})
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY ${PROJECT_DESCRIPTION})
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_DEBIAN_PACKAGE_RELEASE 1)
set(debian_version ${PROJECT_VERSION}-1)
set(CPACK_RESOURCE_FILE_LICENSE ${PROJECT_SOURCE_DIR}/LICENSE)
set(CPACK_STRIP_FILES ON)
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_GENERATOR TGZ)
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF) # the archive is whole
set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_HOMEPAGE "https://example.org/tessera")
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
set(CPACK_DEBIAN_COMPRESSION_TYPE xz)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${PROJECT_BINARY_DIR})

# tessera_package(<component> <package> <section> <depends> <description>)
set(packages "")
macro(tessera_package component package section depends description)
  string(TOUPPER ${component} upper)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${package})
  set(CPACK_DEBIAN_${upper}_PACKAGE_SECTION ${section})
  set(CPACK_DEBIAN_${upper}_PACKAGE_DEPENDS "${depends}")
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${description}")
  set(CPACK_COMPONENT_${upper}_DESCRIPTION "${description}")
  list(APPEND CPACK_COMPONENTS_ALL ${component})
  tessera_package_docs(${component} ${package})
endmacro()

# Debian wants a copyright file and a changelog in each package.
function(tessera_package_docs component package)
  set(folder ${PROJECT_BINARY_DIR}/packages/${package})
  file(READ ${PROJECT_SOURCE_DIR}/LICENSE licence)
  string(REGEX REPLACE "\n\n" "\n.\n" licence "${licence}")
  string(REGEX REPLACE "\n([^\n])" "\n \\1" licence " ${licence}")
  string(STRIP "${licence}" licence)
  file(WRITE ${folder}/copyright "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\n\
Upstream-Name: tessera\n\nFiles: *\nCopyright: 2026 The Tessera authors\nLicense: BSD-3-Clause\n ${licence}\n")
  file(WRITE ${folder}/changelog.Debian "tessera (${debian_version}) unstable; urgency=medium\n\n  * CHANGELOG.md has what \
changed.\n\n -- ${maintainer}  Sat, 21 Nov 2026 12:00:00 +0000\n")
  execute_process(COMMAND gzip -9nf ${folder}/changelog.Debian COMMAND_ERROR_IS_FATAL ANY)
  install(FILES ${folder}/copyright ${folder}/changelog.Debian.gz DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${package}
    COMPONENT ${component})
endfunction()

set(own "(= ${debian_version})")
set(CPACK_COMPONENTS_ALL "")
tessera_package(library libtessera0 libs ""
  "Divides parameters, gradients and optimizer state of a model over several\nprocesses. This package has the library and \
the plugins that need libc alone.")
# The line of tessera-static.pc links these.
set(linked "")
if(TESSERA_PC_HWLOC)
  string(APPEND linked ", libhwloc-dev")
endif()
if(TESSERA_PC_OPENSSL)
  string(APPEND linked ", libssl-dev")
endif()
tessera_package(development libtessera-dev libdevel "libtessera0 ${own}${linked}"
  "Headers, CMake package, pkg-config file, the static library and the sources\nthat plugins may compile in.")
tessera_package(command tessera science "libtessera0 ${own}"
  "Trains reference models, starts ranks of any program, plans memory and time,\ndraws reports and checks plugins.")
tessera_package(documentation tessera-doc doc ""
  "The guide, the examples and the reference, as Markdown and sources.")
set(CPACK_DEBIAN_DOCUMENTATION_PACKAGE_ARCHITECTURE all)
set(CPACK_DEBIAN_COMMAND_PACKAGE_RECOMMENDS "tessera-comm-gloo")
set(CPACK_DEBIAN_COMMAND_PACKAGE_SUGGESTS "libtessera-dev, tessera-doc")
foreach(plugin IN ITEMS comm-gloo comm-nccl device-cuda)
  if(TARGET tessera-${plugin})
    tessera_package(plugin-${plugin} tessera-${plugin} science "libtessera0 ${own}"
      "The plugin ${plugin} of Tessera, which is loaded at run time.")
  endif()
endforeach()

# The library's symbols, and the trigger that every library package has.
set(symbols "libtessera.so.${PROJECT_VERSION_MAJOR} libtessera${PROJECT_VERSION_MAJOR} #MINVER#\n")
set(names "")
foreach(header IN ITEMS tessera inspect gpu)
  file(STRINGS ${PROJECT_SOURCE_DIR}/core/include/tessera/${header}.h declared REGEX "^TESS_API ")
  foreach(line IN LISTS declared)
    if(line MATCHES "[ *](tess_[a-z_]*)\\(")
      list(APPEND names ${CMAKE_MATCH_1})
    endif()
  endforeach()
endforeach()
list(SORT names)
foreach(name IN LISTS names)
  string(APPEND symbols " ${name}@Base ${PROJECT_VERSION}\n")
endforeach()
file(WRITE ${PROJECT_BINARY_DIR}/packages/symbols "${symbols}")
file(WRITE ${PROJECT_BINARY_DIR}/packages/triggers "activate-noawait ldconfig\n")
file(WRITE ${PROJECT_BINARY_DIR}/packages/shlibs
  "libtessera ${PROJECT_VERSION_MAJOR} libtessera${PROJECT_VERSION_MAJOR} (>= ${PROJECT_VERSION})\n")
set(CPACK_DEBIAN_LIBRARY_PACKAGE_CONTROL_EXTRA
  "${PROJECT_BINARY_DIR}/packages/symbols;${PROJECT_BINARY_DIR}/packages/triggers;${PROJECT_BINARY_DIR}/packages/shlibs")
include(CPack)
