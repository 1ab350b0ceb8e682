# tessera_add_plugin(<kind> <name> SOURCES … [LIBRARIES …])
# A loadable module libtessera-<kind>-<name>.so that exports the descriptor and the open function and nothing else.
# Works in this tree and, through the installed package, outside it.
function(tessera_add_plugin kind name)
  cmake_parse_arguments(arg "" "" "SOURCES;LIBRARIES" ${ARGN})
  set(target tessera-${kind}-${name})
  add_library(${target} MODULE ${arg_SOURCES})
  if(TARGET tessera_plugin_header)
    target_link_libraries(${target} PRIVATE tessera_flags tessera_plugin_header)
    set_target_properties(${target} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/plugins)
  else()
    # As in the tree: a fused multiply-add changes bits, so it happens only where it is written.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>)
    target_link_libraries(${target} PRIVATE tessera::plugin)
  endif()
  target_link_libraries(${target} PRIVATE ${arg_LIBRARIES})
  set(script ${CMAKE_CURRENT_BINARY_DIR}/${target}.map)
  file(WRITE ${script} "{ global: tess_plugin_note_v1; tess_plugin_open_v1; local: *; };\n")
  target_link_options(${target} PRIVATE -Wl,--version-script=${script} -Wl,-z,noexecstack)
  if(NOT TESSERA_SANITIZE)
    target_link_options(${target} PRIVATE -Wl,-z,defs)
  endif()
  set_target_properties(${target} PROPERTIES C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden PREFIX lib
    POSITION_INDEPENDENT_CODE ON)
  install(TARGETS ${target} LIBRARY DESTINATION ${TESSERA_PLUGIN_DIR} COMPONENT plugins)
endfunction()

# A plugin whose library is missing says so; in this tree TesseraOptions collects the lines.
if(NOT COMMAND tessera_leave_out)
  function(tessera_leave_out part reason)
    message(STATUS "left out ${part}: ${reason}")
  endfunction()
endif()
