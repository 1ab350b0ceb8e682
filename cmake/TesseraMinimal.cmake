# SPDX-License-Identifier: BSD-3-Clause
# TESSERA_MINIMAL: every find_* below this line finds nothing and C++ does not exist, as on a machine that has a C
# compiler alone. CMocka is looked for before, so that the C tests can run on what such a build contains.
# With the value "cuda" there are C++ and the CUDA toolkit too, with the headers of NCCL, cuBLAS and cuDNN: what a machine
# with a GPU has, for a rehearsal of tests/gpu/run.
if(TESSERA_MINIMAL)
  find_path(CMOCKA_INCLUDE cmocka.h)
  find_library(CMOCKA_LIBRARY cmocka)
  if(TESSERA_MINIMAL STREQUAL "cuda")
    include(TesseraCuda)
    foreach(header NCCL:nccl.h CUBLAS:cublas_v2.h CUDNN:cudnn.h)
      string(REPLACE ":" ";" header ${header})
      list(POP_FRONT header name)
      find_path(TESSERA_${name}_INCLUDE ${header} HINTS ${TESSERA_CUDA_INCLUDE} PATHS /usr/local/cuda/include)
    endforeach()
  else()
    set(CMAKE_CXX_COMPILER NOTFOUND) # check_language(CXX) then looks no further
  endif()
  foreach(place PACKAGE_ROOT_PATH CMAKE_PATH CMAKE_ENVIRONMENT_PATH SYSTEM_ENVIRONMENT_PATH CMAKE_SYSTEM_PATH
      INSTALL_PREFIX PACKAGE_REGISTRY SYSTEM_PACKAGE_REGISTRY)
    set(CMAKE_FIND_USE_${place} OFF)
  endforeach()
  set(CMAKE_FIND_USE_CMAKE_SYSTEM_PACKAGE_REGISTRY OFF)
  set(CMAKE_CUDA_COMPILER NOTFOUND)
  tessera_leave_out("every part that needs a library or C++" "TESSERA_MINIMAL is ${TESSERA_MINIMAL}")
endif()
