// Reads GGUF: one file (GgufFile), or the file or files of a model (GgufCheckpoint; split files are named
// NAME-00001-of-00003.gguf).
//
// Thread-safe after opening.
// Errors, each with the file's name in front: InvalidArgument for a file's contents, NotFound, and InputFile's.  Does
// not do: writing; what tensors mean (workers/checkpoint/gguf/).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/gguf/gguf_header.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/io/model_dir.h"

namespace switchyard {

inline constexpr int64_t kMaxGgufSplits = 1000;  // files of one model

class GgufFile {
 public:
  // Opens `name` and checks its header.
  static absl::StatusOr<std::unique_ptr<GgufFile>> Open(const ModelDir& dir, const std::string& name);

  const std::string& name() const { return file_.name(); }
  const InputFile& file() const { return file_; }
  const GgufMetadata& metadata() const { return header_.metadata; }
  const std::vector<GgufTensor>& tensors() const { return header_.tensors; }  // by rising offset
  const GgufHeader& header() const { return header_; }
  InputFile ReleaseFile() && { return std::move(file_); }

 private:
  GgufFile(InputFile file, GgufHeader header) : file_(std::move(file)), header_(std::move(header)) {}

  InputFile file_;
  const GgufHeader header_;
};

// The parts of a split file's name, PREFIX-00001-of-00003.gguf.
struct GgufSplitName {
  std::string prefix;
  int64_t number = 0;  // 1 …
  int64_t count = 0;
};
// Nullopt for a name of another kind.
std::optional<GgufSplitName> ParseGgufSplitName(const std::string& name);

// The place of a model's tensor.
struct GgufLocation {
  const GgufFile* file = nullptr;  // of the GgufCheckpoint
  const GgufTensor* tensor = nullptr;
};

class GgufCheckpoint {
 public:
  // `path` is a file's; of a split model any of its files will do, as the others are beside it.  A link may lead
  // anywhere.
  static absl::StatusOr<GgufCheckpoint> Open(const std::string& path);
  static absl::StatusOr<GgufCheckpoint> Open(const ModelDir& dir, const std::string& name);

  // Of the first file, which alone has the model's keys.
  const GgufMetadata& metadata() const { return files_.front()->metadata(); }
  // The file is null if there is no such tensor.
  GgufLocation Find(absl::string_view tensor) const;
  int64_t num_tensors() const { return static_cast<int64_t>(tensors_.size()); }
  const std::vector<std::unique_ptr<GgufFile>>& files() const { return files_; }  // by their number
  std::vector<std::unique_ptr<GgufFile>> ReleaseFiles() && { return std::move(files_); }

 private:
  absl::Status AddFile(std::unique_ptr<GgufFile> file);
  absl::Status OpenSplits(const ModelDir& dir, std::unique_ptr<GgufFile> given, int64_t count);
  absl::Status CheckSplit(const GgufFile& file, int64_t number, int64_t count) const;

  std::vector<std::unique_ptr<GgufFile>> files_;
  absl::flat_hash_map<std::string, GgufLocation> tensors_;
};

}  // namespace switchyard
