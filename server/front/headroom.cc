#include "server/front/headroom.h"

#include <algorithm>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "server/admission/front_pool.h"

namespace switchyard::server {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

int64_t Available(const std::string& meminfo) {
  std::ifstream in(meminfo);
  for (std::string word; in >> word;) {
    int64_t kilobytes = 0;
    if (word == "MemAvailable:" && in >> kilobytes) return kilobytes << 10;
  }
  return kNoLimit;
}

// A file of one number; `otherwise` if it has none ("max").
int64_t NumberIn(const std::string& path, int64_t otherwise) {
  int64_t number = 0;
  return std::ifstream(path) >> number ? number : otherwise;
}

// What the group uses and the kernel cannot drop: all but pages of files.
int64_t UsedBy(const std::string& folder) {
  int64_t used = NumberIn(folder + "/memory.current", 0);
  std::ifstream in(folder + "/memory.stat");
  int64_t bytes = 0;
  for (std::string word; in >> word >> bytes;) {
    if (word == "active_file" || word == "inactive_file") used -= bytes;
  }
  return std::max<int64_t>(0, used);
}

// What the cgroup and those around it leave.
int64_t LeftByCgroups(const std::string& root) {
  std::ifstream in(root + "proc/self/cgroup");
  std::string path;
  for (std::string line; std::getline(in, line);) {
    if (line.compare(0, 3, "0::") == 0) path = line.substr(3);  // version 2
  }
  int64_t left = kNoLimit;
  for (;;) {
    const std::string folder = absl::StrCat(root, "sys/fs/cgroup", path);
    const int64_t limit = NumberIn(folder + "/memory.max", kNoLimit);
    if (limit != kNoLimit) left = std::min(left, limit - UsedBy(folder));
    if (path.empty()) return left;
    path.resize(path.rfind('/') == std::string::npos ? 0 : path.rfind('/'));
  }
}

}  // namespace

int64_t MemoryHeadroom(const std::string& root) {
  return std::max<int64_t>(0,
                           std::min({Available(root + "proc/meminfo"), FrontPool::MemoryRoom(), LeftByCgroups(root)}));
}

}  // namespace switchyard::server
