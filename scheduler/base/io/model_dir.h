// The files of one model directory, opened so that no name and no link leads out of it.
//
// Names come from files that we do not trust (the shard index), so each must be a plain file name (to open a file also
// one in folders beneath it, "folder/file", none of which is a link), and symbolic links are followed only beneath the
// directory.  One exception: a snapshot of the Hugging Face cache (…/snapshots/<revision>) consists of links into
// …/blobs, so there the directory above both is the bound.  Only regular files open. Thread-safe after Open. Errors:
// NotFound, PermissionDenied for what leads out, InvalidArgument for what is no plain name or no regular file.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/io/unique_fd.h"

namespace switchyard {

class ModelDir {
 public:
  static absl::StatusOr<ModelDir> Open(const std::string& path);
  // No directory but texts as its files, by name, as those of a model that is one file (GGUF).  `path`: for messages.
  static ModelDir OfTexts(std::string path, absl::btree_map<std::string, std::string> texts);
  // A folder beneath a root (training jobs name theirs so); its files' links may lead nowhere out of the folder itself.
  static absl::StatusOr<ModelDir> Beneath(const RootDir& root, const std::string& name);

  const std::string& path() const { return path_; }  // as it was given, for messages
  // One of its folders, within the same bounds.  NotFound if there is none, or if it is a link.
  absl::StatusOr<ModelDir> Folder(const std::string& name) const;
  // A descriptor for reading; the caller closes it.  A text has none: NotFound.
  absl::StatusOr<int> OpenFile(const std::string& name) const;
  bool Exists(const std::string& name) const;
  // Its whole contents.  InvalidArgument "<name>: S bytes, limit L" when it is larger, or a pointer of Git LFS.
  absl::StatusOr<std::string> ReadSmallFile(const std::string& name, int64_t max_bytes) const;
  // Names of the directory's entries, sorted.
  std::vector<std::string> List() const;

 private:
  ModelDir(UniqueFd root, std::string prefix, std::string path)
      : root_(std::move(root)), prefix_(std::move(prefix)), path_(std::move(path)) {}

  UniqueFd root_;       // nothing outside of this is opened; none where the files are texts
  std::string prefix_;  // from the root to the directory: "" or "snapshots/<revision>/"
  std::string path_;
  absl::btree_map<std::string, std::string> texts_;
};

// Whether there is a file at the path, whose name ends in ".gguf": a whole model.
bool IsGgufFile(const std::string& path);

// Why a path is no directory with a model, and what to do about it: of a GGUF file (where one is not expected), a file
// of weights, a model's name on a hub, and of what is not there ("no such directory").  REQUIRES: path is no directory.
std::string WhyNoModelDir(const std::string& path);

// Why a directory, which has no config.json, is no model, and what to do about it: "has no config.json; …", of one that
// is empty, has GGUF files or an adapter, or a model in a folder beneath it.
std::string WhyNoConfig(const std::string& path);

// What Git leaves in a file's place without its extension LFS: a few lines that name the file.
inline constexpr int64_t kMaxLfsPointer = 1024;  // bytes
bool IsLfsPointer(absl::string_view bytes);
inline constexpr char kLfsAdvice[] =
    "is a pointer of Git LFS, not the file itself; run git lfs pull in its directory, or download the model by "
    "hf download";

// OK if `name` is a plain file name: not empty, at most 255 bytes, no '/', no NUL, not "." or "..".
absl::Status CheckPlainName(absl::string_view name);

}  // namespace switchyard
