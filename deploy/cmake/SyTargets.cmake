# The four kinds of targets.
#
#   sy_library(NAME [SRCS ...] [DEPS ...])    a static library; without SRCS a header-only one
#   sy_binary(NAME SRCS ... [DEPS ...])       a program, in <build>/bin
#   sy_test(NAME SRCS ... [DEPS ...] [LABELS unit|e2e|slow|gpu ...] [ARGS ...] [TIMEOUT seconds])
#   sy_proto(NAME SRCS ... [DEPS ...])        generated messages and gRPC stubs
#
# DEPS are PUBLIC.  A test's default label is `unit`, its default time limit 120 s; tests run in the source tree's root.

function(sy_library name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  if(arg_SRCS)
    add_library(${name} STATIC ${arg_SRCS})
    target_link_libraries(${name} PUBLIC sy_flags ${arg_DEPS})
  else()
    add_library(${name} INTERFACE)
    target_link_libraries(${name} INTERFACE sy_flags ${arg_DEPS})
  endif()
endfunction()

function(sy_binary name)
  cmake_parse_arguments(arg "" "" "SRCS;DEPS" ${ARGN})
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sy_flags ${arg_DEPS})
endfunction()

function(sy_test name)
  if(NOT SY_TESTS)
    return()
  endif()
  cmake_parse_arguments(arg "" "TIMEOUT" "SRCS;DEPS;LABELS;ARGS" ${ARGN})
  if(NOT arg_LABELS)
    set(arg_LABELS unit)
  endif()
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  add_executable(${name} ${arg_SRCS})
  target_link_libraries(${name} PRIVATE sy_flags ${arg_DEPS} GTest::gtest GTest::gmock GTest::gtest_main)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/tests")
  add_test(NAME ${name} COMMAND ${name} ${arg_ARGS} WORKING_DIRECTORY "${CMAKE_SOURCE_DIR}")
  set_tests_properties(${name} PROPERTIES LABELS "${arg_LABELS}" TIMEOUT ${arg_TIMEOUT}
                       ENVIRONMENT "SY_TEST_BIN_DIR=${CMAKE_BINARY_DIR}/bin")
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
  target_include_directories(${name} SYSTEM PUBLIC "${out}")
  target_link_libraries(${name} PUBLIC protobuf::libprotobuf gRPC::grpc++ ${arg_DEPS})
endfunction()
