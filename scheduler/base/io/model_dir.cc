#include "scheduler/base/io/model_dir.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

// Kernels before 5.6 and some sandboxes have no openat2: there links are not followed at all.
int OpenForReading(int root_fd, const std::string& name) {
  constexpr int kFlags = O_RDONLY | O_CLOEXEC | O_NONBLOCK;  // O_NONBLOCK: a FIFO must not hold us up
  const int fd = OpenBeneath(root_fd, name, kFlags);
  if (fd >= 0 || (errno != ENOSYS && errno != EPERM)) return fd;
  return openat(root_fd, name.c_str(), kFlags | O_NOFOLLOW);
}

// The Hugging Face cache: <root>/snapshots/<revision>.
bool IsCacheSnapshot(const std::string& real_path) {
  const std::vector<std::string> parts = absl::StrSplit(real_path, '/');
  return parts.size() >= 3 && parts[parts.size() - 2] == "snapshots";
}

// ORG/NAME, as hubs write it.
bool IsNameOnHub(absl::string_view path) {
  const std::vector<absl::string_view> parts = absl::StrSplit(path, '/');
  const auto is_name = [](absl::string_view part) {
    return !part.empty() && absl::ascii_isalnum(static_cast<unsigned char>(part[0])) &&
           std::all_of(part.begin(), part.end(), [](char c) {
             return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_' || c == '.';
           });
  };
  return parts.size() == 2 && is_name(parts[0]) && is_name(parts[1]);
}

// The name on a hub in its page's address, "https://HUB/ORG/NAME"; another path unchanged.
std::string WithoutHub(const std::string& path) {
  const std::vector<std::string> parts = absl::StrSplit(path, '/');
  const bool is_page = parts.size() == 5 && absl::StartsWith(parts[0], "http") && parts[1].empty();
  return is_page ? absl::StrCat(parts[3], "/", parts[4]) : path;
}

// Names of the directory's entries, sorted.
std::vector<std::string> ListOf(const std::string& path) {
  std::vector<std::string> names;
  DIR* dir = opendir(path.c_str());
  if (dir == nullptr) return names;
  while (const dirent* entry = readdir(dir)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(dir);
  std::sort(names.begin(), names.end());
  return names;
}

bool IsGgufName(absl::string_view name) { return absl::EndsWithIgnoreCase(name, ".gguf"); }

bool HasConfig(const std::string& folder) {
  struct stat st = {};
  return stat((folder + "/config.json").c_str(), &st) == 0 && S_ISREG(st.st_mode);
}

}  // namespace

bool IsGgufFile(const std::string& path) {
  struct stat st = {};
  return IsGgufName(path) && stat(path.c_str(), &st) == 0 && !S_ISDIR(st.st_mode);
}

std::string WhyNoModelDir(const std::string& path) {
  struct stat st = {};
  if (stat(path.c_str(), &st) == 0) {
    if (IsGgufName(path)) return "is a GGUF file; give the directory of a checkpoint with safetensors";
    return absl::StrContains(path, ".safetensors") ? "is a file; give the directory that holds it"
                                                   : "unsupported format; only safetensors, in a directory";
  }
  const std::string missing = errno != ENOENT    ? std::strerror(errno)
                              : IsGgufName(path) ? "no such file"
                                                 : "no such directory";
  const std::string on_hub = WithoutHub(path);
  if (!IsNameOnHub(on_hub)) return missing;
  const std::string name = on_hub.substr(on_hub.find('/') + 1);
  return absl::StrCat(missing, "; if it is a model's name on a hub, download it: hf download ", on_hub, " --local-dir ",
                      name, "; then --model=", name);
}

std::string WhyNoConfig(const std::string& path) {
  constexpr absl::string_view kNone = "has no config.json";
  const std::vector<std::string> names = ListOf(path);
  if (names.empty())
    return absl::StrCat(kNone, "; it is empty: download a model into it, hf download ORG/NAME --local-dir ", path);
  for (const std::string& name : names) {
    if (IsGgufName(name)) return absl::StrCat(kNone, ", but ", name, ": give that file, ", path, "/", name);
    if (name == "adapter_config.json")
      return absl::StrCat(
          kNone, ", but an adapter (LoRA), which wants its model: switchyard-server --model=MODEL --adapter=", path);
  }
  // Of the cache of a hub's client: models--ORG--NAME/snapshots/<revision>.
  for (const std::string& name : names) {
    std::vector<std::string> folders = {absl::StrCat(path, "/", name)};
    if (name == "snapshots") {
      for (const std::string& revision : ListOf(folders[0])) folders.push_back(absl::StrCat(folders[0], "/", revision));
    }
    for (const std::string& folder : folders) {
      if (HasConfig(folder)) return absl::StrCat(kNone, "; did you mean ", folder, "?");
    }
  }
  return std::string(kNone);
}

bool IsLfsPointer(absl::string_view bytes) {
  return bytes.size() <= kMaxLfsPointer && absl::StartsWith(bytes, "version https://git-lfs.github.com/spec/");
}

absl::Status CheckPlainName(absl::string_view name) {
  const bool plain = !name.empty() && name.size() <= 255 && name.find('/') == absl::string_view::npos &&
                     name.find('\0') == absl::string_view::npos && name != "." && name != "..";
  if (plain) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("\"", absl::CHexEscape(name.substr(0, 64)), "\" is not a plain file name of the model directory"));
}

absl::StatusOr<ModelDir> ModelDir::Open(const std::string& path) {
  struct stat st = {};
  if (stat(path.c_str(), &st) != 0) {
    return absl::NotFoundError(absl::StrCat("model directory ", path, ": ", WhyNoModelDir(path)));
  }
  if (!S_ISDIR(st.st_mode)) return absl::InvalidArgumentError(absl::StrCat("model ", path, ": ", WhyNoModelDir(path)));
  char* resolved = realpath(path.c_str(), nullptr);
  if (resolved == nullptr)
    return absl::NotFoundError(absl::StrCat("model directory ", path, ": ", std::strerror(errno)));
  std::string root = resolved;
  std::free(resolved);
  std::string prefix;
  if (IsCacheSnapshot(root)) {
    const size_t revision = root.rfind('/');
    const size_t snapshots = root.rfind('/', revision - 1);
    prefix = root.substr(snapshots + 1) + "/";
    root.resize(snapshots);
  }
  UniqueFd fd(open(root.empty() ? "/" : root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) return ModelDir(std::move(fd), std::move(prefix), path);
  return absl::PermissionDeniedError(absl::StrCat("model directory ", path, ": ", std::strerror(errno)));
}

ModelDir ModelDir::OfTexts(std::string path, absl::btree_map<std::string, std::string> texts) {
  ModelDir dir(UniqueFd(), "", std::move(path));
  dir.texts_ = std::move(texts);
  return dir;
}

absl::StatusOr<ModelDir> ModelDir::Beneath(const RootDir& root, const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, root.OpenFolder(name));
  return ModelDir(UniqueFd(fd), "", absl::StrCat(root.path(), "/", name));
}

absl::StatusOr<ModelDir> ModelDir::Folder(const std::string& name) const {
  RETURN_IF_ERROR(CheckPlainName(name));
  struct stat st = {};
  if (root_.get() < 0 || fstatat(root_.get(), (prefix_ + name).c_str(), &st, AT_SYMLINK_NOFOLLOW) != 0 ||
      !S_ISDIR(st.st_mode)) {
    return absl::NotFoundError(absl::StrCat(name, ": no such folder in the model directory"));
  }
  UniqueFd root(fcntl(root_.get(), F_DUPFD_CLOEXEC, 0));
  if (root.get() < 0) return absl::UnavailableError(absl::StrCat(name, ": ", std::strerror(errno)));
  return ModelDir(std::move(root), absl::StrCat(prefix_, name, "/"), absl::StrCat(path_, "/", name));
}

absl::StatusOr<int> ModelDir::OpenFile(const std::string& name) const {
  if (const size_t slash = name.find('/'); slash != std::string::npos) {
    ASSIGN_OR_RETURN(const ModelDir folder, Folder(name.substr(0, slash)));
    return folder.OpenFile(name.substr(slash + 1));
  }
  RETURN_IF_ERROR(CheckPlainName(name));
  if (root_.get() < 0) return absl::NotFoundError(absl::StrCat(name, ": no such file of the model"));
  const int fd = OpenForReading(root_.get(), prefix_ + name);
  if (fd < 0) {
    if (errno == ENOENT) return absl::NotFoundError(absl::StrCat(name, ": no such file in the model directory"));
    if (errno == EXDEV || errno == ELOOP) {
      return absl::PermissionDeniedError(absl::StrCat(name, ": its link leads out of the model directory"));
    }
    const std::string text = absl::StrCat(name, ": ", std::strerror(errno));
    // Errors that may pass say nothing of the file.
    constexpr int kPassing[] = {EIO, ESTALE, ENOMEM, EAGAIN, EINTR, EMFILE, ENFILE};
    const bool passes = std::find(std::begin(kPassing), std::end(kPassing), errno) != std::end(kPassing);
    return passes ? absl::UnavailableError(text) : absl::PermissionDeniedError(text);
  }
  struct stat st = {};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return absl::InvalidArgumentError(absl::StrCat(name, ": not a regular file"));
  }
  return fd;
}

bool ModelDir::Exists(const std::string& name) const {
  struct stat st = {};
  if (root_.get() < 0) return texts_.contains(name);
  return fstatat(root_.get(), (prefix_ + name).c_str(), &st, 0) == 0;
}

absl::StatusOr<std::string> ModelDir::ReadSmallFile(const std::string& name, int64_t max_bytes) const {
  if (const auto text = texts_.find(name); text != texts_.end()) {
    const auto size = static_cast<int64_t>(text->second.size());
    if (size <= max_bytes) return text->second;
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", size, " bytes, limit ", max_bytes));
  }
  ASSIGN_OR_RETURN(const int opened, OpenFile(name));
  const UniqueFd fd(opened);
  struct stat st = {};
  fstat(fd.get(), &st);
  if (st.st_size > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", st.st_size, " bytes, limit ", max_bytes));
  }
  std::string text(static_cast<size_t>(st.st_size), '\0');
  int error = 0;
  const size_t done = ReadWhole(fd.get(), text.data(), text.size(), &error);
  if (done == text.size() && IsLfsPointer(text))
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", kLfsAdvice));
  if (done == text.size()) return text;
  if (error != 0) return absl::UnavailableError(absl::StrCat(name, ": read at ", done, ": ", std::strerror(error)));
  return absl::DataLossError(absl::StrCat(name, ": ended after ", done, " of ", text.size(), " bytes"));
}

std::vector<std::string> ModelDir::List() const {
  if (root_.get() >= 0) return ListOf(path_);
  std::vector<std::string> names;
  for (const auto& [name, text] : texts_) names.push_back(name);
  return names;
}

}  // namespace switchyard
