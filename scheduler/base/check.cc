#include "scheduler/base/check.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace switchyard::internal {

void CheckFailed(const char* file, int line, const char* expr, const std::string& values) {
  const char* slash = std::strrchr(file, '/');
  std::fprintf(stderr, "%s:%d CHECK failed: %s%s%s%s\n", slash ? slash + 1 : file, line, expr,
               values.empty() ? "" : " (", values.c_str(), values.empty() ? "" : ")");
  std::fflush(stderr);
  std::abort();
}

}  // namespace switchyard::internal
