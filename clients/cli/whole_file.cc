#include "clients/cli/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"

namespace switchyard {

absl::Status RefuseFile(const std::string& path, absl::string_view why) {
  return BadInput(absl::StrCat(path, ": ", why));
}

absl::StatusOr<std::string> ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  // (Of an empty file the stream fails to take anything.)
  if (file && file.peek() != std::ifstream::traits_type::eof()) bytes << file.rdbuf();
  if (file.bad() || !file.is_open()) return RefuseFile(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  return bytes.str();
}

absl::Status WriteWhole(const std::string& path, absl::string_view bytes) {
  const std::string beside = absl::StrCat(path, ".", getpid(), ".tmp");
  {
    std::ofstream file(beside, std::ios::binary | std::ios::trunc);
    file << bytes;
    if (!file.flush()) {
      const absl::Status failed = RefuseFile(path, absl::StrCat("cannot be written: ", std::strerror(errno)));
      std::remove(beside.c_str());
      return failed;
    }
  }
  if (std::rename(beside.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status failed = RefuseFile(path, absl::StrCat("cannot be written: ", std::strerror(errno)));
  std::remove(beside.c_str());
  return failed;
}

}  // namespace switchyard
