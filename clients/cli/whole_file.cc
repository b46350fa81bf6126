#include "clients/cli/whole_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <vector>

#include "absl/strings/str_cat.h"
#include "clients/cli/command.h"

namespace switchyard::cli {
namespace {

constexpr size_t kPieceBytes = 64 << 10;

}  // namespace

absl::Status RefuseFile(const std::string& path, absl::string_view why) {
  return BadInput(absl::StrCat(path, ": ", why));
}

absl::StatusOr<std::string> ReadWhole(const std::string& path, size_t max_bytes) {
  std::ifstream file(path, std::ios::binary);
  std::string bytes;
  std::vector<char> piece(kPieceBytes);
  while (file && bytes.size() <= max_bytes) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    bytes.append(piece.data(), static_cast<size_t>(file.gcount()));
  }
  if (file.bad() || !file.is_open()) return RefuseFile(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
  if (bytes.size() > max_bytes) return RefuseFile(path, absl::StrCat("has more bytes than the limit of ", max_bytes));
  return bytes;
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

}  // namespace switchyard::cli
