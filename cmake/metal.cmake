# The Metal backend. On a Mac all of it, with its kernels as libraries that Xcode's Metal compiler makes now, or, where
# that is not installed, as text that the system compiles at the first start. Elsewhere only what chooses kernels, so that
# `calla plan` can count them. Adds to CALLA_SOURCES. None of the part for Macs has run yet.
set(metal ${CMAKE_SOURCE_DIR}/src/backend/metal)
file(GLOB metal_sources CONFIGURE_DEPENDS ${metal}/*.c)
if(NOT APPLE)
  list(FILTER metal_sources INCLUDE REGEX "/(encode_[a-z]+|metal_(count|describe|encode|nowhere|ops))\\.c$")
  list(APPEND CALLA_SOURCES ${metal_sources})
  return()
endif()
enable_language(OBJC)
list(FILTER metal_sources EXCLUDE REGEX "/metal_nowhere\\.c$")
list(APPEND CALLA_SOURCES ${metal_sources} ${metal}/metal_device.m)
set_source_files_properties(${metal}/metal_device.m PROPERTIES COMPILE_OPTIONS "-fobjc-arc")
# Programs without a window get a device from Metal only when CoreGraphics is linked, as Apple's page for
# MTLCreateSystemDefaultDevice says.
set(CALLA_METAL_FRAMEWORKS "-framework Foundation" "-framework Metal" "-framework CoreGraphics")

file(GLOB metal_kernels CONFIGURE_DEPENDS ${metal}/kernels/*.metal)
file(GLOB metal_headers CONFIGURE_DEPENDS ${metal}/kernels/*.h)
set(metal_tensor_kernels ${metal_kernels})
list(FILTER metal_tensor_kernels INCLUDE REGEX "/tensor_[^/]*$")
list(FILTER metal_kernels EXCLUDE REGEX "/tensor_[^/]*$")

# Xcode 26 has a program of that name that only says that the compiler is not installed: it is run, not looked for.
execute_process(COMMAND xcrun -sdk macosx metal --version RESULT_VARIABLE result OUTPUT_QUIET ERROR_QUIET)
execute_process(COMMAND xcrun -sdk macosx --show-sdk-version OUTPUT_VARIABLE sdk OUTPUT_STRIP_TRAILING_WHITESPACE
                ERROR_QUIET)
if(result EQUAL 0)
  message(STATUS "Metal kernels are compiled now, for macOS SDK ${sdk}")
else()
  message(STATUS "No Metal compiler (xcodebuild -downloadComponent MetalToolchain): kernels are compiled at the first start")
endif()

# metal_library(NAME MAJOR MINOR DEPLOYMENT-TARGET FILES...): a C file with the kernels, added to CALLA_SOURCES. The
# deployment target is given at both steps: without it cooperative inputs of tensor operations give wrong numbers.
function(metal_library name major minor target)
  set(folder ${CMAKE_BINARY_DIR}/metal)
  file(MAKE_DIRECTORY ${folder})
  set(out ${folder}/${name}.c)
  set(depends ${ARGN} ${metal_headers} ${metal}/embed.cmake)
  set(library "")
  if(result EQUAL 0 AND ARGN AND NOT "${sdk}" VERSION_LESS "${target}")
    set(objects "")
    foreach(source ${ARGN})
      get_filename_component(file ${source} NAME_WE)
      set(object ${folder}/${file}.air)
      add_custom_command(OUTPUT ${object}
                         COMMAND xcrun -sdk macosx metal -std=metal${major}.${minor} -mmacosx-version-min=${target} -O2
                                 -fno-fast-math -Wall -Wextra -c ${source} -o ${object}
                         DEPENDS ${source} ${metal_headers} COMMENT "Compiling ${file}.metal" VERBATIM)
      list(APPEND objects ${object})
    endforeach()
    set(library ${folder}/${name}.metallib)
    add_custom_command(OUTPUT ${library}
                       COMMAND xcrun -sdk macosx metal -mmacosx-version-min=${target} ${objects} -o ${library}
                       DEPENDS ${objects} COMMENT "Linking kernels '${name}'" VERBATIM)
    list(APPEND depends ${library})
  endif()
  add_custom_command(OUTPUT ${out}
                     COMMAND ${CMAKE_COMMAND} -D "KERNELS=${ARGN}" -D NAME=${name} -D LANGUAGE=${major},${minor}
                             -D METALLIB=${library} -D OUT=${out} -P ${metal}/embed.cmake
                     DEPENDS ${depends} COMMENT "Embedding kernels '${name}'" VERBATIM)
  set(CALLA_SOURCES ${CALLA_SOURCES} ${out} PARENT_SCOPE)
endfunction()
metal_library(kernels 3 1 14.0 ${metal_kernels})
metal_library(tensor_kernels 4 0 26.2 ${metal_tensor_kernels})
