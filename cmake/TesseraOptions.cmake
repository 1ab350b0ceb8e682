# SPDX-License-Identifier: BSD-3-Clause
# Flags every target of this tree shares, those of tessera_plain without a sanitizer; and the list of parts left out.
add_library(tessera_plain INTERFACE)
# -ffp-contract=off: a fused multiply-add changes bits, so it happens only where it is written (docs/numbers.md).
target_compile_options(tessera_plain INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -ffp-contract=off -fno-fast-math -fvisibility=hidden>
  $<$<AND:$<COMPILE_LANGUAGE:C>,$<C_COMPILER_ID:GNU>>:-Wno-format-truncation>
  $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-format-truncation>)
if(TESSERA_WERROR)
  target_compile_options(tessera_plain INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>)
endif()
target_compile_definitions(tessera_plain INTERFACE _GNU_SOURCE)
add_library(tessera_flags INTERFACE)
target_link_libraries(tessera_flags INTERFACE tessera_plain)
if(TESSERA_SANITIZE)
  target_compile_options(tessera_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>)
  target_link_options(tessera_flags INTERFACE -fsanitize=${TESSERA_SANITIZE})
  target_compile_definitions(tessera_flags INTERFACE TESSERA_SANITIZED=1)
endif()

# tessera_leave_out(<part> <reason>): remember that <part> is not built.
function(tessera_leave_out part reason)
  set_property(GLOBAL APPEND PROPERTY TESSERA_LEFT_OUT "${part}: ${reason}")
endfunction()

function(tessera_say_left_out)
  get_property(left GLOBAL PROPERTY TESSERA_LEFT_OUT)
  file(WRITE ${CMAKE_BINARY_DIR}/left_out "") # tests/closing_table reads it
  foreach(line IN LISTS left)
    message(STATUS "tessera: left out ${line}")
    file(APPEND ${CMAKE_BINARY_DIR}/left_out "${line}\n")
  endforeach()
endfunction()
