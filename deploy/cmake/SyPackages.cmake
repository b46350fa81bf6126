# Finds every third-party package.

# sy_instrumented(NAME BINARY_PACKAGE [cmake argument ...]): the distribution's version, built with the sanitizers, is what find_package(NAME) finds.
function(sy_instrumented name package)
  set(dir "${CMAKE_BINARY_DIR}/instrumented/${name}")
  list(JOIN sy_sanitizer_flags " " flags)
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    # Clang 18 and later name some templates otherwise than g++ 12, which compiled what uses this library.
    string(APPEND flags " -fclang-abi-compat=17")
  endif()
  message(STATUS "${name}: building it with ${flags}; minutes, the first time")
  execute_process(COMMAND "${CMAKE_SOURCE_DIR}/deploy/ci/build_instrumented.sh" ${package} "${dir}" "${CMAKE_CXX_COMPILER}"
                          "${CMAKE_CXX_FLAGS_RELEASE} ${flags}" "-DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER}" ${ARGN}
                  RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "${name} could not be built with the sanitizers; without it they report thousands of false races")
  endif()
  find_package(${name} REQUIRED PATHS "${dir}/prefix" NO_DEFAULT_PATH)
  # For the packages that need this one.
  set(ENV{CMAKE_PREFIX_PATH} "${dir}/prefix:$ENV{CMAKE_PREFIX_PATH}")
endfunction()

if(SY_SANITIZE)
  # absl::Mutex reports to ThreadSanitizer only if it is compiled for it.  Shared libraries with the distribution's names, so that
  # gRPC takes these, too: one Abseil in a process.
  sy_instrumented(absl libabsl-dev -DBUILD_SHARED_LIBS=ON -DCMAKE_CXX_STANDARD=17 -DABSL_PROPAGATE_CXX_STD=ON)
else()
  find_package(absl REQUIRED)
endif()
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(Boost REQUIRED)  # headers: Beast and Asio
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto SSL)
find_package(PkgConfig REQUIRED)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(yaml_cpp REQUIRED IMPORTED_TARGET yaml-cpp)
pkg_check_modules(sqlite3 REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(liburing REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)
if(SY_RPC)
  if(SY_SANITIZE AND SY_INSTRUMENT_RPC)
    sy_instrumented(Protobuf libprotobuf-dev -DBUILD_SHARED_LIBS=ON -DCMAKE_CXX_STANDARD=17 -Dprotobuf_BUILD_TESTS=OFF)
    set(providers ABSL CARES PROTOBUF RE2 SSL ZLIB BENCHMARK)
    list(TRANSFORM providers REPLACE "(.+)" "-DgRPC_\\1_PROVIDER=package")
    set(plugins CSHARP NODE OBJECTIVE_C PHP PYTHON RUBY)
    list(TRANSFORM plugins REPLACE "(.+)" "-DgRPC_BUILD_GRPC_\\1_PLUGIN=OFF")
    sy_instrumented(gRPC libgrpc++-dev -DBUILD_SHARED_LIBS=ON -DCMAKE_CXX_STANDARD=17 -DgRPC_INSTALL=ON ${providers} ${plugins})
  else()
    find_package(Protobuf REQUIRED)
    find_package(gRPC CONFIG REQUIRED)
  endif()
  find_package(prometheus-cpp CONFIG REQUIRED)
endif()
if(SY_TESTS)
  find_package(GTest REQUIRED)
endif()
if(SY_BENCH)
  find_package(benchmark REQUIRED)
endif()
