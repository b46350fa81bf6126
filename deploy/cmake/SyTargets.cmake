# Functions that define our kinds of targets:
#
#   sy_library(NAME [SRCS ...] [DEPS ...] [PRIVATE ...])  a static library; without SRCS a header-only one
#   sy_binary(NAME SRCS ... [DEPS ...])       a program, in <build>/bin
#   sy_test(NAME SRCS ... [DEPS ...] [LABELS unit|rpc|e2e|slow|gpu ...] [ARGS ...] [TIMEOUT seconds])
#   sy_example(NAME LABEL unit|e2e [DEPS ...])  a program of tests/examples, NAME.cc, that is run as the test example_NAME
#   sy_proto(NAME SRCS ... [DEPS ...])        generated messages and gRPC stubs
#
#   sy_cuda_emulated(NAME SRCS ... [DEPS ...])  .cu sources compiled as C++ against tests/cuda_emulation, which runs kernels on the CPU
#
# DEPS are PUBLIC: a header of the library may include theirs; PRIVATE ones its sources alone include.
# A test's default label is `unit`, its default time limit 120 s.  `rpc`: messages go through gRPC.
# Tests run in the source tree's root.
# `gpu`: needs a GPU (tests/gpu/gpu_test.h).  All of these are one program, gpu_tests, which tests/gpu/pack.sh takes to a machine with one.

# Under a sanitizer a test may take this many times its time limit, and every test, or process that it starts, has these options.
# (No detect_stack_use_after_return: g++ 12 does not align vectors of 64 bytes on the stack that it brings.  memmem without
# an interceptor: it looks at all that is left of a text for every letter replaced in it, and texts of 4 MB are replaced in.)
set(SY_TIMEOUT_FACTOR 1)
set(SY_TEST_ENVIRONMENT "SY_TEST_BIN_DIR=${CMAKE_BINARY_DIR}/bin")
if(SY_SANITIZE)
  set(SY_TIMEOUT_FACTOR 8)
  list(APPEND SY_TEST_ENVIRONMENT
       "ASAN_OPTIONS=detect_leaks=1:intercept_memmem=0:strict_string_checks=1:check_initialization_order=1"
       "LSAN_OPTIONS=print_suppressions=0"
       "UBSAN_OPTIONS=print_stacktrace=1"
       "TSAN_OPTIONS=intercept_memmem=0:second_deadlock_stack=1:suppressions=${CMAKE_SOURCE_DIR}/deploy/cmake/tsan.supp")
endif()
# Unless SY_INSTRUMENT_RPC: gRPC is the distribution's, not instrumented. Where messages go through it (labels rpc and e2e), what one thread hands to the other
# by its atomics looks like a race, a thousand times in one test.
set(SY_TEST_RPC ON)
if(SY_SANITIZE STREQUAL "thread" AND NOT SY_INSTRUMENT_RPC)
  set(SY_TEST_RPC OFF)
endif()

# Properties of every test, also of scripts.
function(sy_test_properties name labels timeout)
  math(EXPR timeout "${timeout} * ${SY_TIMEOUT_FACTOR}")
  set_tests_properties(${name} PROPERTIES LABELS "${labels}" TIMEOUT ${timeout} ENVIRONMENT "${SY_TEST_ENVIRONMENT}")
endfunction()

# Compiles several sources of a target as one: headers of gRPC and Abseil, most of what a source costs, are read once for all of them.
function(sy_unity name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD "${SY_UNITY}" UNITY_BUILD_BATCH_SIZE 12)
endfunction()

# Sources that ThreadSanitizer leaves alone: what runs in one thread there, fifty times slower.  It sees no race between them and others.
function(sy_not_for_tsan)
  if(SY_SANITIZE STREQUAL "thread")
    set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS -fno-sanitize=thread)
  endif()
endfunction()

function(sy_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS;PRIVATE" ${ARGN})
  if(arg_SRCS)
    add_library(${name} STATIC ${arg_SRCS})
    target_link_libraries(${name} PUBLIC sy_flags ${arg_DEPS} PRIVATE ${arg_PRIVATE})
    if(NOT CMAKE_CURRENT_SOURCE_DIR MATCHES "/tests(/|$)")
      sy_unity(${name})
    endif()
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE sy_flags ${arg_DEPS})
  endif()
endfunction()

# Through a wrapper of one line, as the same .cu source may be compiled as CUDA in the same folder.
function(sy_cuda_emulated name)
  if(NOT SY_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  set(sources)
  foreach(src ${arg_SRCS})
    cmake_path(ABSOLUTE_PATH src OUTPUT_VARIABLE path)
    if(src MATCHES "\\.cu$")
      cmake_path(GET src STEM stem)
      set(wrapper "${CMAKE_CURRENT_BINARY_DIR}/${name}/${stem}.cc")
      file(CONFIGURE OUTPUT "${wrapper}" CONTENT "#include \"${path}\"\n")
      set(path "${wrapper}")
      sy_not_for_tsan("${path}")
    endif()
    list(APPEND sources "${path}")
  endforeach()
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC sy_cuda_emulation sy_flags ${arg_DEPS})
endfunction()

function(sy_binary name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sy_flags ${arg_DEPS})
endfunction()

# Precompiled headers that nearly every test includes.  (An executable: libraries are compiled with other flags.  -fpch-preprocess: so that ccache
# sees it; deploy/build.sh sets ccache to trust it.)
function(sy_test_headers)
  file(CONFIGURE OUTPUT "${CMAKE_BINARY_DIR}/sy_test_headers.cc" CONTENT "int main() {}\n")
  add_executable(sy_test_headers EXCLUDE_FROM_ALL "${CMAKE_BINARY_DIR}/sy_test_headers.cc")
  target_link_libraries(sy_test_headers PRIVATE sy_flags absl::statusor absl::strings absl::time absl::synchronization GTest::gtest GTest::gmock)
  target_precompile_headers(sy_test_headers PRIVATE
    <algorithm> <atomic> <cmath> <cstdint> <filesystem> <fstream> <functional> <map> <memory> <numeric> <optional> <random> <set> <sstream> <string>
    <thread> <utility> <vector> <gmock/gmock.h> <gtest/gtest.h> <absl/status/statusor.h> <absl/strings/str_cat.h> <absl/strings/str_join.h>
    <absl/strings/str_split.h> <absl/synchronization/mutex.h> <absl/time/clock.h> <absl/types/span.h>)
  set_target_properties(sy_test_headers PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  target_compile_options(sy_test_headers PRIVATE -O1)
endfunction()

# A test's own sources: what they test is optimised, they need not be.
function(sy_test_sources name)
  target_compile_options(${name} PRIVATE -O1)
  if(SY_UNITY)
    target_precompile_headers(${name} REUSE_FROM sy_test_headers)
    target_compile_options(${name} PRIVATE $<$<CXX_COMPILER_ID:GNU>:-fpch-preprocess>)
  endif()
endfunction()

function(sy_test name)
  if(NOT SY_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT SY_TEST_RPC AND arg_LABELS MATCHES "rpc|e2e")
    return()
  endif()
  if("gpu" IN_LIST arg_LABELS)
    sy_gpu_test("${arg_SRCS}" "${arg_DEPS}")
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sy_flags ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  sy_test_sources(${name})
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  sy_test_properties(${name} "${arg_LABELS}" ${arg_TIMEOUT})
endfunction()

# Adds sources to gpu_tests, where CUDA is built, and to gpu_tests_emulated, which is the same over the emulation (tests/gpu/rehearse.sh) and is
# built only when it is named.  A source that several tests share is there once.
function(sy_gpu_test sources deps)
  list(TRANSFORM sources PREPEND "${CMAKE_CURRENT_SOURCE_DIR}/" REGEX "^[^$]")
  foreach(program gpu_tests gpu_tests_emulated)
    if(program STREQUAL "gpu_tests" AND NOT SY_CUDA_FOUND)
      continue()
    endif()
    if(NOT TARGET ${program})
      add_executable(${program})
      target_link_libraries(${program} PRIVATE sy_flags GTest::gtest GTest::gmock GTest::gtest_main)
      sy_test_sources(${program})
      sy_packed(${program})
    endif()
    get_target_property(known ${program} SOURCES)
    set(new ${sources})
    if(known)
      list(REMOVE_ITEM new ${known})
    endif()
    target_sources(${program} PRIVATE ${new})
    foreach(dep ${deps})
      if(program STREQUAL "gpu_tests_emulated")
        string(REPLACE "sy_test_device_gpu" "sy_test_device_emulated" dep "${dep}")
        set(dep "$<IF:$<TARGET_EXISTS:${dep}_emulated>,${dep}_emulated,${dep}>")
      endif()
      target_link_libraries(${program} PRIVATE ${dep})
    endforeach()
  endforeach()
endfunction()

# A program that tests/gpu/pack.sh packs: it looks first into lib/ of the pack.  (DT_RPATH, not DT_RUNPATH: it also counts for what lib/ itself needs.)
# The emulated ones are built only when they are named, but for those that are tests.
function(sy_packed name)
  set_target_properties(${name} PROPERTIES BUILD_RPATH "\$ORIGIN/../lib")
  target_link_options(${name} PRIVATE -Wl,--disable-new-dtags)
  if(name MATCHES "_emulated$" AND NOT name MATCHES "bench")
    set_target_properties(${name} PROPERTIES EXCLUDE_FROM_ALL ON)
  endif()
endfunction()

# A program with its own main() that checks itself; it is in <build>/bin, beside the programs that it starts.
function(sy_example name)
  cmake_parse_arguments(arg "" "LABEL" "DEPS" ${ARGN})
  sy_binary(example_${name} SRCS ${name}.cc DEPS ${arg_DEPS})
  add_test(NAME example_${name} COMMAND example_${name} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  sy_test_properties(example_${name} ${arg_LABEL} 120)
endfunction()

function(sy_proto name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  set(out "${CMAKE_BINARY_DIR}/gen")
  file(MAKE_DIRECTORY "${out}")
  set(generated)
  foreach(src ${arg_SRCS})
    file(RELATIVE_PATH rel "${CMAKE_SOURCE_DIR}/proto" "${CMAKE_CURRENT_SOURCE_DIR}/${src}")
    string(REGEX REPLACE "\\.proto$" "" stem "${rel}")
    set(files "${out}/${stem}.pb.cc" "${out}/${stem}.pb.h" "${out}/${stem}.grpc.pb.cc" "${out}/${stem}.grpc.pb.h")
    add_custom_command(
      OUTPUT ${files}
      COMMAND protobuf::protoc --proto_path "${CMAKE_SOURCE_DIR}/proto" --cpp_out "${out}" --grpc_out "${out}"
              --plugin=protoc-gen-grpc=$<TARGET_FILE:gRPC::grpc_cpp_plugin> "${CMAKE_CURRENT_SOURCE_DIR}/${src}"
      DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/${src}"
      VERBATIM)
    list(APPEND generated ${files})
  endforeach()
  add_library(${name} STATIC ${generated})
  if(SY_SANITIZE STREQUAL "thread" AND NOT SY_INSTRUMENT_RPC)
    target_include_directories(${name} SYSTEM INTERFACE "${CMAKE_SOURCE_DIR}/deploy/cmake/tsan")
  endif()
  if(SY_INSTRUMENT_RPC)
    target_compile_options(${name} PRIVATE ${sy_sanitizer_flags})  # messages have the library's layout
  endif()
  target_include_directories(${name} SYSTEM PUBLIC "${out}")
  target_link_libraries(${name} PUBLIC protobuf::libprotobuf gRPC::grpc++ ${arg_DEPS})
  sy_unity(${name})
  # protoc gives these two names to the tables of every file.
  set_target_properties(${name} PROPERTIES UNITY_BUILD_UNIQUE_ID sy_file UNITY_BUILD_CODE_BEFORE_INCLUDE
    "#undef schemas\n#undef file_default_instances\n#define sy_join(a, b) a##b\n#define sy_own(a, b) sy_join(a, b)\n#define schemas sy_own(schemas_, sy_file)\n#define file_default_instances sy_own(file_default_instances_, sy_file)")
endfunction()

# sy_device_test(NAME SRCS ... DEPS ... [ARGS what the emulated one is called with] [TIMEOUT seconds]): one test for each device of tests/devices:
# NAME for the CPU, NAME_emulated, and a part of gpu_tests where CUDA is built.
function(sy_device_test name)
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS;ARGS" ${ARGN})
  if(NOT SY_TESTS)
    return()
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  # Compiled once, as a part of a program.
  add_library(${name}_objects OBJECT ${arg_SRCS})
  target_link_libraries(${name}_objects PRIVATE sy_flags ${arg_DEPS} GTest::gtest GTest::gmock)
  set_target_properties(${name}_objects PROPERTIES POSITION_INDEPENDENT_CODE OFF)
  target_compile_options(${name}_objects PRIVATE -fPIE)
  sy_test_sources(${name}_objects)
  set(arg_SRCS "$<TARGET_OBJECTS:${name}_objects>")
  sy_test(${name} SRCS ${arg_SRCS} DEPS ${arg_DEPS} sy_test_device_cpu TIMEOUT ${arg_TIMEOUT})
  sy_test(${name}_emulated SRCS ${arg_SRCS} DEPS ${arg_DEPS} sy_test_device_emulated TIMEOUT ${arg_TIMEOUT} ARGS ${arg_ARGS})
  sy_test(${name}_gpu SRCS ${arg_SRCS} DEPS ${arg_DEPS} sy_test_device_gpu LABELS gpu)
endfunction()
