# What `cmake --install` puts below the prefix: the library, the two headers, the CMake package, tessera.pc. Everything
# in it is relative to itself, so the tree may be moved.
include(CMakePackageConfigHelpers)
set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tessera)

install(TARGETS tessera_library tessera_plugin_header EXPORT tesseraTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(DIRECTORY ${PROJECT_SOURCE_DIR}/core/include/tessera DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
  FILES_MATCHING PATTERN "*.h")
# What plugins may compile in: tessera_add_plugin(… KIT).
install(DIRECTORY ${PROJECT_SOURCE_DIR}/core/kit/ DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/kit
  FILES_MATCHING PATTERN "*.[ch]")
install(FILES ${PROJECT_SOURCE_DIR}/core/formulas.h ${PROJECT_SOURCE_DIR}/core/formulas_optimizer.h
  DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera/kit)
install(EXPORT tesseraTargets NAMESPACE tessera:: DESTINATION ${package_dir})

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/tesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/tesseraConfig.cmake INSTALL_DESTINATION ${package_dir} NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file(${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tesseraConfig.cmake ${PROJECT_BINARY_DIR}/tesseraConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/TesseraPlugin.cmake DESTINATION ${package_dir})

set(pc_dir ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig)
file(RELATIVE_PATH TESSERA_PC_PREFIX ${pc_dir} ${CMAKE_INSTALL_PREFIX})
configure_file(${CMAKE_CURRENT_LIST_DIR}/tessera.pc.in ${PROJECT_BINARY_DIR}/tessera.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tessera.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
