// File with what was typed at a prompt, for the prompts of later runs: a line each, the newest last.
//
// Only its owner may read it (mode 0600; a new folder 0700).  It stays below kMostBytes: at Open the oldest lines go.
// Several programs may append at once.  Thread-compatible.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace switchyard::cli {

class LineHistory {
 public:
  static constexpr size_t kMostLines = 1000;
  static constexpr size_t kMostLineBytes = 16 << 10;  // a longer one is not kept
  static constexpr size_t kMostBytes = 4 << 20;       // as the file has them, of lines that Open returns

  // "$XDG_STATE_HOME/switchyard/history", or beneath ~/.local/state; "" without a home.
  static std::string DefaultPath();

  // Opens or makes the file, and the folders above it.  Errors name the file: it cannot be opened or made, is no
  // regular file, or is another user's.
  static absl::StatusOr<std::unique_ptr<LineHistory>> Open(const std::string& path);
  ~LineHistory();

  // Those that were there, the newest last.
  const std::vector<std::string>& lines() const { return lines_; }
  // Appends a line, which may have line breaks, unless it is empty or the one before.
  absl::Status Add(const std::string& line);

 private:
  LineHistory(std::string path, int fd) : path_(std::move(path)), fd_(fd) {}
  absl::Status Load();

  const std::string path_;
  const int fd_;
  std::vector<std::string> lines_;
  std::string last_;
};

}  // namespace switchyard::cli
