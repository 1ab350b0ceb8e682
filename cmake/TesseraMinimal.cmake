# SPDX-License-Identifier: BSD-3-Clause
# TESSERA_MINIMAL: every find_* below this line finds nothing and C++ does not exist, as on a machine that has a C
# compiler alone. CMocka is looked for before, so that the C tests can run on what such a build contains.
if(TESSERA_MINIMAL)
  find_path(CMOCKA_INCLUDE cmocka.h)
  find_library(CMOCKA_LIBRARY cmocka)
  foreach(place PACKAGE_ROOT_PATH CMAKE_PATH CMAKE_ENVIRONMENT_PATH SYSTEM_ENVIRONMENT_PATH CMAKE_SYSTEM_PATH
      INSTALL_PREFIX PACKAGE_REGISTRY SYSTEM_PACKAGE_REGISTRY)
    set(CMAKE_FIND_USE_${place} OFF)
  endforeach()
  set(CMAKE_FIND_USE_CMAKE_SYSTEM_PACKAGE_REGISTRY OFF)
  set(CMAKE_CXX_COMPILER NOTFOUND) # check_language(CXX) then looks no further
  set(CMAKE_CUDA_COMPILER NOTFOUND)
  tessera_leave_out("every part that needs a library or C++" "TESSERA_MINIMAL is on")
endif()
