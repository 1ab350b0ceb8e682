# SPDX-License-Identifier: BSD-3-Clause
# tessera_find_torch(): tessera::torch, which is tessera/torch.hpp on LibTorch (Debian: libtorch-dev, PyPI: torch), if that is
# found; else tessera_TORCH_MISSING says why not. LibTorch is looked for by its files, since its own package asks for a CUDA
# toolkit wherever it was built with one. CMAKE_PREFIX_PATH may be torch.utils.cmake_prefix_path.
function(tessera_find_torch)
  if(TARGET tessera::torch)
    return()
  endif()
  set(places)
  foreach(prefix IN LISTS CMAKE_PREFIX_PATH)
    list(APPEND places ${prefix} ${prefix}/../..)
  endforeach()
  find_path(TESSERA_TORCH_INCLUDE torch/csrc/api/include/torch/torch.h HINTS ${places} PATH_SUFFIXES include)
  set(libraries)
  foreach(name torch torch_cpu c10)
    find_library(TESSERA_TORCH_${name} ${name} HINTS ${places} PATH_SUFFIXES lib)
    list(APPEND libraries ${TESSERA_TORCH_${name}})
  endforeach()
  if(NOT TESSERA_TORCH_INCLUDE OR NOT TESSERA_TORCH_torch OR NOT TESSERA_TORCH_torch_cpu OR NOT TESSERA_TORCH_c10)
    set(tessera_TORCH_MISSING "LibTorch not found (libtorch-dev)" PARENT_SCOPE)
    return()
  endif()
  set(standard 17)
  file(STRINGS "${TESSERA_TORCH_INCLUDE}/torch/csrc/api/include/torch/all.h" newer REGEX "#error C\\+\\+[0-9]+ or later")
  if(newer MATCHES "C\\+\\+(2[0-9])") # LibTorch says itself what it needs, as 2.15 does
    set(standard ${CMAKE_MATCH_1})
  endif()
  add_library(tessera::torch INTERFACE IMPORTED GLOBAL)
  set_target_properties(tessera::torch PROPERTIES
    INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${TESSERA_TORCH_INCLUDE};${TESSERA_TORCH_INCLUDE}/torch/csrc/api/include"
    INTERFACE_INCLUDE_DIRECTORIES "${TESSERA_TORCH_INCLUDE};${TESSERA_TORCH_INCLUDE}/torch/csrc/api/include"
    INTERFACE_COMPILE_FEATURES cxx_std_${standard}
    # libtorch.so registers what torch_cpu.so alone does not: it stays, although no symbol of it is used.
    INTERFACE_LINK_LIBRARIES "tessera::tessera;-Wl,--no-as-needed;${libraries};-Wl,--as-needed")
endfunction()
