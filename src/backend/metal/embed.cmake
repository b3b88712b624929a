# The kernels inside the program: writes a C file with one or two struct metal_sources (metal_sources.h). Run as
#
#   cmake -D "KERNELS=a.metal;b.metal" -D NAME=kernels -D LANGUAGE=3,1 [-D METALLIB=kernels.metallib]
#         (-D OUT=kernels.c | -D TEXT=kernels.metal) -P embed.cmake
#
# Without a metallib the files become one text, for that is what Metal compiles at run time: what a file includes in
# quotes stands in its place, once, and what it includes in brackets is Metal's own. TEXT writes that alone. The price
# is that names at file scope must differ between files.
cmake_minimum_required(VERSION 3.21)

set(seen "")
set(text "")
# Semicolons and brackets mean something in CMake's lists: the text is handled as a string throughout.
function(append_file file)
  get_filename_component(folder ${file} DIRECTORY)
  get_filename_component(name ${file} NAME)
  file(READ ${file} rest)
  set(text "${text}#line 1 \"${name}\"\n" PARENT_SCOPE)
  set(text "${text}#line 1 \"${name}\"\n")
  set(line 1)
  while(TRUE)
    string(FIND "${rest}" "#include \"" at)
    if(at EQUAL -1)
      break()
    endif()
    string(SUBSTRING "${rest}" 0 ${at} before)
    string(SUBSTRING "${rest}" ${at} -1 rest)
    string(REGEX MATCH "^#include \"([^\"]+)\"[^\n]*" directive "${rest}")
    set(included "${folder}/${CMAKE_MATCH_1}")
    string(LENGTH "${directive}" length)
    string(SUBSTRING "${rest}" ${length} -1 rest)
    string(REGEX MATCHALL "\n" breaks "${before}")
    list(LENGTH breaks breaks)
    math(EXPR line "${line} + ${breaks}")
    set(text "${text}${before}")
    get_filename_component(included "${included}" ABSOLUTE)
    if(NOT included IN_LIST seen)
      list(APPEND seen "${included}")
      append_file("${included}")
      set(text "${text}\n#line ${line} \"${name}\"\n")
    endif()
  endwhile()
  set(text "${text}${rest}\n" PARENT_SCOPE)
  set(seen "${seen}" PARENT_SCOPE)
endfunction()

if(METALLIB)
  file(READ "${METALLIB}" hex HEX)
else()
  foreach(kernel IN LISTS KERNELS)
    append_file("${kernel}")
  endforeach()
  if(TEXT)
    file(WRITE "${TEXT}" "${text}")
    return()
  endif()
  file(WRITE "${OUT}.text" "${text}")
  file(READ "${OUT}.text" hex HEX)
endif()

string(REGEX REPLACE "(..)" "0x\\1," bytes "${hex}")
string(REGEX REPLACE "(................................................................................)" "\\1\n    "
       bytes "${bytes}")
if(METALLIB)
  set(fields ".metallib = bytes, .metallib_size = sizeof bytes - 1")
else()
  set(fields ".text = (const char *)bytes")
endif()
file(WRITE "${OUT}" "/* Made by embed.cmake. */
#include \"backend/metal/metal_sources.h\"

static const unsigned char bytes[] = {
    ${bytes}0};

const struct metal_sources metal_${NAME} = {.name = \"${NAME}\", .language = METAL_LANGUAGE(${LANGUAGE}), ${fields}};
")
