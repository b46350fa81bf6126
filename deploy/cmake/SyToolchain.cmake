# Language, build type, warnings, hardening and sanitizers: every target takes them from `sy_flags`, nowhere else.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release CACHE STRING "" FORCE)
endif()

find_program(SY_CCACHE ccache)
if(SY_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER "${SY_CCACHE}")
endif()

add_library(sy_flags INTERFACE)
target_include_directories(sy_flags INTERFACE "${CMAKE_SOURCE_DIR}")
# -ffp-contract=off: whether a*b+c is fused must not depend on how the compiler inlined a loop, or a row's bits
# would depend on the code path that its batch size chose.  Kernels say fma where they mean it.
set(sy_compile_options -Wall -Wextra -Werror=return-type -Werror=unused-result -ffp-contract=off -fstack-protector-strong)
list(JOIN sy_compile_options "," sy_nvcc_host_options)  # nvcc hands them to the compiler of its host code
# -pthread everywhere: some packages ask for it, and headers that were compiled before serve only sources with the same macros.
target_compile_options(sy_flags INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:-pthread;${sy_compile_options}>"
                                          "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=${sy_nvcc_host_options}>")
if(SY_SANITIZE)
  set(CMAKE_CXX_FLAGS_RELEASE "-O1 -g1 -DNDEBUG")  # half the time to compile, and stacks that name most functions
else()
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -g1 -DNDEBUG")
  target_compile_definitions(sy_flags INTERFACE "$<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:_FORTIFY_SOURCE=2>")
endif()
target_link_options(sy_flags INTERFACE -Wl,-z,relro,-z,now)
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  # (Not what is deprecated: std::stable_sort of libstdc++ 12 itself calls such a function.)
  target_compile_options(sy_flags INTERFACE -Wthread-safety -Werror -Wno-deprecated-declarations)
endif()
if(SY_SANITIZE)
  list(JOIN SY_SANITIZE "," sy_sanitizers)
  set(sy_sanitizer_flags -fsanitize=${sy_sanitizers} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_compile_options(sy_flags INTERFACE ${sy_sanitizer_flags})
  target_compile_definitions(sy_flags INTERFACE _GLIBCXX_ASSERTIONS)
  # An RPATH, not a RUNPATH: it also says where the libraries of a library (gRPC's Abseil) are.
  target_link_options(sy_flags INTERFACE -fsanitize=${sy_sanitizers} -Wl,--disable-new-dtags)
endif()
if(SY_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "SY_FUZZ needs clang: cmake --preset fuzz")
  endif()
  # What a fuzz target covers is counted in all that it links.
  target_compile_options(sy_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()
