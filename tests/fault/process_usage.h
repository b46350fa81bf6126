// What a process holds of the system, from /proc.
#pragma once

#include <dirent.h>
#include <sys/types.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"

namespace switchyard {

struct ProcessUsage {
  int fds = 0;
  int threads = 0;
  int64_t rss_kb = 0;
};

inline ProcessUsage UsageOf(pid_t pid) {
  ProcessUsage usage;
  if (DIR* folder = opendir(absl::StrCat("/proc/", pid, "/fd").c_str())) {
    while (readdir(folder) != nullptr) ++usage.fds;
    closedir(folder);
  }
  std::ifstream status(absl::StrCat("/proc/", pid, "/status"));
  for (std::string word; status >> word;) {
    if (word == "VmRSS:") status >> usage.rss_kb;
    if (word == "Threads:") status >> usage.threads;
  }
  return usage;
}

}  // namespace switchyard
