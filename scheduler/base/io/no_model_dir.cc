#include "scheduler/base/io/no_model_dir.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace switchyard {
namespace {

// ORG/NAME, as hubs have it.
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

}  // namespace

std::string WhyNoModelDir(const std::string& path) {
  if (absl::EndsWithIgnoreCase(path, ".gguf")) {
    return "GGUF is not read yet; give the directory of a checkpoint with safetensors";
  }
  struct stat st = {};
  if (stat(path.c_str(), &st) == 0) {
    return absl::StrContains(path, ".safetensors") ? "is a file; give the directory that holds it"
                                                   : "unsupported format; only safetensors, in a directory";
  }
  const std::string missing = errno == ENOENT ? "no such directory" : std::strerror(errno);
  if (!IsNameOnHub(path)) return missing;
  const std::string name = path.substr(path.find('/') + 1);
  return absl::StrCat(missing, "; if it is a model's name on a hub, download it: hf download ", path, " --local-dir ",
                      name, "; then --model=", name);
}

}  // namespace switchyard
