# SPDX-License-Identifier: BSD-3-Clause
# The parts for NVIDIA GPUs need the CUDA toolkit's headers and nvcc, none of its libraries. Where one is
# missing, TESSERA_CUDA is off and each part says that it is left out.
set(TESSERA_CUDA OFF)
if(NOT TESSERA_MINIMAL OR TESSERA_MINIMAL STREQUAL "cuda")
  find_program(TESSERA_NVCC nvcc HINTS ENV CUDA_PATH PATH_SUFFIXES bin PATHS /usr/local/cuda/bin)
  get_filename_component(beside "${TESSERA_NVCC}" REALPATH) # the headers of that very toolkit
  get_filename_component(beside "${beside}" DIRECTORY)
  find_path(TESSERA_CUDA_INCLUDE cuda.h HINTS ENV CUDA_PATH HINTS ${beside}/../include PATH_SUFFIXES include
    PATHS /usr/local/cuda/include)
  if(TESSERA_CUDA_INCLUDE AND TESSERA_NVCC)
    set(TESSERA_CUDA ON)
  endif()
endif()
if(NOT tessera_CUDA_COMMON) # else an installed package has set it
  set(tessera_CUDA_COMMON ${CMAKE_CURRENT_LIST_DIR}/../plugins/cuda-common)
endif()

# tessera_add_kernels(<target> <file.cu> <symbol> [INCLUDES …]): compiles the kernels for sm_80, sm_90 and, as PTX, for what
# comes later, and puts the file into the target as `extern const unsigned char <symbol>[]`, for cuModuleLoadData. With code for
# sm_100 and sm_120 nvcc takes 1.8 times as long.
function(tessera_add_kernels target source symbol)
  cmake_parse_arguments(arg "" "" "INCLUDES" ${ARGN})
  get_filename_component(source ${source} ABSOLUTE)
  set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.fatbin)
  set(includes "")
  foreach(folder IN LISTS arg_INCLUDES)
    list(APPEND includes -I${folder})
  endforeach()
  set(code -gencode arch=compute_80,code=sm_80 -gencode arch=compute_90,code=sm_90 -gencode arch=compute_90,code=compute_90)
  if(TESSERA_SANITIZE OR TESSERA_NO_KERNELS) # which looks at the host's code, without a GPU: an image without kernels, which take long to compile
    set(code -gencode arch=compute_80,code=compute_80)
    set(source ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.cu)
    file(CONFIGURE OUTPUT ${source} CONTENT "/* Made by CMake: no kernel. */\n")
  endif()
  set(werror "")
  if(TESSERA_WERROR)
    set(werror -Werror all-warnings)
  endif()
  # What ptxas says of registers and spills stays beside it, for tests/gpu/kernels; all else is said as usual.
  add_custom_command(OUTPUT ${fatbin} DEPENDS ${source} DEPFILE ${fatbin}.d
    COMMAND sh -c "\"$@\" >\"$0\" 2>&1; code=$?; grep -Ev '^ptxas info|^ +[0-9]+ bytes stack frame' \"$0\" >&2; exit $code" ${fatbin}.said
      ${TESSERA_NVCC} -fatbin -O3 --fmad=false -Xptxas -v ${werror} ${code} ${includes} -MD -MF ${fatbin}.d -o ${fatbin} ${source}
    COMMENT "Compiling kernels ${symbol}" VERBATIM)
  set(holder ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c)
  file(CONFIGURE OUTPUT ${holder} @ONLY CONTENT "/* Made by CMake. */
__asm__(\".section .rodata\\n.balign 64\\n.global @symbol@\\n.hidden @symbol@\\n@symbol@:\\n\"
        \".incbin \\\"@fatbin@\\\"\\n.balign 8\\n.previous\\n\");
")
  set_source_files_properties(${holder} PROPERTIES OBJECT_DEPENDS ${fatbin})
  target_sources(${target} PRIVATE ${holder} ${fatbin})
endfunction()
