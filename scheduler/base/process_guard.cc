#include "scheduler/base/process_guard.h"

#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "scheduler/base/log.h"

namespace switchyard {
namespace {

void ForbidCoreDumps() {
  const rlimit none = {0, 0};
  setrlimit(RLIMIT_CORE, &none);
  // A handler that core_pattern pipes to ignores the limit; its dump then has no memory in it.
  if (std::FILE* filter = std::fopen("/proc/self/coredump_filter", "w")) {
    std::fputs("0\n", filter);
    std::fclose(filter);
  }
}

}  // namespace

void ForbidPrivilegesAndDumps() {
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0) LogWarn("this kernel knows no no_new_privs");
  ForbidCoreDumps();
}

absl::Status GuardProcess(int64_t open_files, absl::string_view what_for) {
  ForbidPrivilegesAndDumps();
  if (geteuid() == 0) LogWarn("running as root; a user of its own is safer");
  rlimit files = {};
  if (getrlimit(RLIMIT_NOFILE, &files) != 0) return absl::OkStatus();
  const auto wanted = static_cast<rlim_t>(open_files);
  if (files.rlim_cur >= wanted) return absl::OkStatus();
  const rlim_t before = files.rlim_cur;
  files.rlim_cur = wanted;
  if (files.rlim_max >= wanted && setrlimit(RLIMIT_NOFILE, &files) == 0) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("open files: the limit is ", before, " (hard limit ", files.rlim_max,
                                                 "), ", open_files, " are needed for ", what_for,
                                                 "; raise it with ulimit -n"));
}

}  // namespace switchyard
