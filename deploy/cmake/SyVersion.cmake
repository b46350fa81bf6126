# Which version this is, for --version: the number that project(VERSION) has in CMakeLists.txt, and the commit of the tree at the time of the
# build, "unknown" where there is no git or no repository; "-changed" if files differ from it.
#
# include(SyVersion) defines the library sy_version (scheduler/base/version.h).  Programs link it, libraries and tests do not: a new commit links
# programs again, and nothing else.  As a script it writes the library's source, if that changes:
#   cmake -DSOURCE=TREE -DVERSION=1.2.3 -DOUT=FILE.cc -P SyVersion.cmake
if(CMAKE_SCRIPT_MODE_FILE)
  set(commit unknown)
  # Not the commit of a repository around a tree that is none.
  if(EXISTS "${SOURCE}/.git")
    find_program(git git)
    if(git)
      execute_process(COMMAND "${git}" -c "safe.directory=${SOURCE}" -C "${SOURCE}" describe --always --exclude=* --abbrev=8 --dirty=-changed
                      RESULT_VARIABLE failed OUTPUT_VARIABLE described ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
      if(NOT failed)
        set(commit "${described}")
      endif()
    endif()
  endif()
  file(CONFIGURE OUTPUT "${OUT}" CONTENT [[
#include "scheduler/base/version.h"

namespace switchyard {

const char* Version() { return "@VERSION@ (@commit@)"; }

}  // namespace switchyard
]] @ONLY)
  return()
endif()

set(sy_version_source "${CMAKE_BINARY_DIR}/gen/version.cc")
add_custom_target(sy_version_commit
  COMMAND "${CMAKE_COMMAND}" "-DSOURCE=${CMAKE_SOURCE_DIR}" "-DVERSION=${PROJECT_VERSION}" "-DOUT=${sy_version_source}"
          -P "${CMAKE_CURRENT_LIST_FILE}"
  BYPRODUCTS "${sy_version_source}" VERBATIM)
sy_library(sy_version SRCS "${sy_version_source}")
add_dependencies(sy_version sy_version_commit)
