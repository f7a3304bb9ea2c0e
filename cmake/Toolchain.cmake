# Compiler settings for every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "" FORCE)
endif()
# -g1 keeps line numbers in traces at a fraction of the object size; asserts stay on: they guard our own invariants.
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O2 -g1")

find_program(CCACHE ccache)
if(CCACHE)
  # Paths below the source folder are hashed as relative ones, so that worktrees and fresh clones share the cache.
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
endif()
find_program(MOLD mold)
if(MOLD)
  add_link_options(-fuse-ld=mold)
endif()

add_compile_options(-Wall -Wextra -Wno-missing-field-initializers)
set(ROPEWALK_SANITIZE "" CACHE STRING "empty, address (with undefined), or thread")
if(ROPEWALK_SANITIZE STREQUAL "address")
  add_compile_options(-fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  add_link_options(-fsanitize=address,undefined)
elseif(ROPEWALK_SANITIZE STREQUAL "thread")
  # -O1: an instrumented tree takes long to compile, and races do not hide behind optimisation.
  set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O1 -g1")
  add_compile_options(-fsanitize=thread -Wno-tsan -fno-omit-frame-pointer)
  add_link_options(-fsanitize=thread)
  # Compiled into each binary: executors have no environment but their job's.
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cmake/tsan_suppressions.txt)
  file(READ cmake/tsan_suppressions.txt ROPEWALK_TSAN_SUPPRESSIONS)
  set(ROPEWALK_SANITIZER_SOURCE ${CMAKE_BINARY_DIR}/thread_sanitizer.cc)
  configure_file(cmake/thread_sanitizer.cc.in ${ROPEWALK_SANITIZER_SOURCE} @ONLY)
endif()
include_directories(${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR})
