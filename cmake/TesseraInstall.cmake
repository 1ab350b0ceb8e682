# SPDX-License-Identifier: BSD-3-Clause
# `cmake --install` puts below the prefix: the library, the headers, the CMake package, pkg-config files, the guide and
# the examples. Everything in it is relative to itself, so the tree may be moved. Components are those of the packages.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

install(TARGETS tessera_library tessera_plugin_header tessera_static EXPORT tesseraTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT library NAMELINK_COMPONENT development
  ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT development)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/core/include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  COMPONENT development FILES_MATCHING PATTERN "*.h" PATTERN "*.f90" PATTERN "*.hpp")
# Sources that plugins may compile in: tessera_add_plugin(… KIT).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/kit/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/kit
  COMPONENT development FILES_MATCHING PATTERN "*.[ch]")
install(DIRECTORY ${PROJECT_SOURCE_DIR}/plugins/cuda-common/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/cuda
  COMPONENT development FILES_MATCHING PATTERN "*.[ch]")
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir} COMPONENT development)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tesseraConfig.cmake INSTALL_DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/TesseraPlugin.cmake ${CMAKE_CURRENT_LIST_DIR}/TesseraCuda.cmake ${CMAKE_CURRENT_LIST_DIR}/TesseraTorch.cmake DESTINATION ${package_dir}
  COMPONENT development)

set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH TESSERA_PC_PREFIX ${pc_dir} ${CMAKE_INSTALL_PREFIX})
# The dynamic loader looks in /usr by itself; for any other prefix the program remembers where the library was.
set(TESSERA_PC_RPATH " -Wl,-rpath,\${libdir}")
if(CMAKE_INSTALL_PREFIX STREQUAL "/usr")
  set(TESSERA_PC_RPATH "")
endif()
set(TESSERA_PC_HWLOC "")
if(HWLOC_INCLUDE AND HWLOC_LIBRARY)
  set(TESSERA_PC_HWLOC " -lhwloc")
endif()
set(TESSERA_PC_OPENSSL "")
if(OPENSSL_SSL_LIBRARY AND OPENSSL_CRYPTO_LIBRARY)
  set(TESSERA_PC_OPENSSL " -lssl -lcrypto")
endif()
foreach(file tessera.pc tessera-static.pc)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${file}.in ${PROJECT_BINARY_DIR}/${file} @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig COMPONENT development)
endforeach()

# The guide, the examples and the sources of the plugins, in the folders that their links expect.
set(doc_dir ${CMAKE_INSTALL_DATADIR}/doc/tessera)
install(FILES ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md DESTINATION ${doc_dir}
  COMPONENT documentation)
install(FILES ${PROJECT_SOURCE_DIR}/tools/models/README.md DESTINATION ${doc_dir}/tools/models COMPONENT documentation)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/docs ${PROJECT_SOURCE_DIR}/examples ${PROJECT_SOURCE_DIR}/plugins
  DESTINATION ${doc_dir} COMPONENT documentation PATTERN pictures/make EXCLUDE)
install(CODE "set(doc_dir ${doc_dir})\nset(include_dir ${CMAKE_INSTALL_INCLUDEDIR})\nset(kit_dir ${CMAKE_INSTALL_DATADIR}/tessera/kit)"
  COMPONENT documentation)
install(SCRIPT ${CMAKE_CURRENT_LIST_DIR}/InstalledLinks.cmake COMPONENT documentation)
