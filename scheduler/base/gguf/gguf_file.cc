#include "scheduler/base/gguf/gguf_file.h"

#include <algorithm>
#include <cstdlib>
#include <optional>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"

namespace switchyard {
namespace {

constexpr char kSplitNo[] = "split.no";
constexpr char kSplitCount[] = "split.count";
constexpr char kSplitTensors[] = "split.tensors.count";
constexpr size_t kMostNamed = 8;

std::string SplitFileName(const std::string& prefix, int64_t number, int64_t count) {
  return absl::StrFormat("%s-%05d-of-%05d.gguf", prefix, number, count);
}

}  // namespace

std::optional<GgufSplitName> ParseGgufSplitName(const std::string& name) {
  constexpr size_t kTail = sizeof("-00001-of-00003.gguf") - 1;
  if (name.size() <= kTail) return std::nullopt;
  GgufSplitName split = {.prefix = name.substr(0, name.size() - kTail)};
  if (!absl::SimpleAtoi(name.substr(name.size() - kTail + 1, 5), &split.number) ||
      !absl::SimpleAtoi(name.substr(name.size() - kTail + 10, 5), &split.count) ||
      SplitFileName(split.prefix, split.number, split.count) != name) {
    return std::nullopt;
  }
  return split;
}

absl::StatusOr<std::unique_ptr<GgufFile>> GgufFile::Open(const ModelDir& dir, const std::string& name) {
  absl::StatusOr<InputFile> file = InputFile::Open(dir, name);
  if (!file.ok()) return InFile(Excerpt(name), file.status());
  absl::StatusOr<GgufHeader> header = ReadGgufHeader(file->size(), [&](int64_t begin, absl::Span<char> to) {
    return file->Read(begin, static_cast<int64_t>(to.size()), to.data());
  });
  if (!header.ok()) return InFile(Excerpt(name), header.status());
  return std::unique_ptr<GgufFile>(new GgufFile(*std::move(file), *std::move(header)));
}

absl::StatusOr<GgufCheckpoint> GgufCheckpoint::Open(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash);
  ASSIGN_OR_RETURN(const ModelDir dir, ModelDir::Open(folder.empty() ? "/" : folder));
  absl::StatusOr<GgufCheckpoint> opened = Open(dir, slash == std::string::npos ? path : path.substr(slash + 1));
  if (!absl::IsPermissionDenied(opened.status())) return opened;
  char* const resolved = realpath(path.c_str(), nullptr);
  const std::string real = resolved == nullptr ? path : resolved;
  std::free(resolved);
  if (real == path) return opened;
  return Open(real);
}

absl::StatusOr<GgufCheckpoint> GgufCheckpoint::Open(const ModelDir& dir, const std::string& name) {
  ASSIGN_OR_RETURN(std::unique_ptr<GgufFile> file, GgufFile::Open(dir, name));
  const absl::StatusOr<int64_t> count = file->metadata().Int(kSplitCount, 0);
  if (!count.ok()) return InFile(name, count.status());
  GgufCheckpoint checkpoint;
  if (*count == 0 || *count == 1) {
    RETURN_IF_ERROR(checkpoint.AddFile(std::move(file)));
  } else {
    RETURN_IF_ERROR(checkpoint.OpenSplits(dir, std::move(file), *count));
  }
  return checkpoint;
}

absl::Status GgufCheckpoint::OpenSplits(const ModelDir& dir, std::unique_ptr<GgufFile> given, int64_t count) {
  const std::string name = given->name();
  const std::optional<GgufSplitName> split = ParseGgufSplitName(name);
  const auto refuse = [&](const std::string& why) { return InFile(name, absl::InvalidArgumentError(why)); };
  if (count < 0 || count > kMaxGgufSplits) {
    return refuse(absl::StrCat("key \"", kSplitCount, "\": expected 1 to ", kMaxGgufSplits, ", found ", count));
  }
  if (!split.has_value() || split->count != count) {
    return refuse(absl::StrCat("key \"", kSplitCount, "\": ", count,
                               " files, so the file's name must end in -00001-of-", absl::StrFormat("%05d", count),
                               ".gguf, or in the number of another of them"));
  }
  std::vector<std::string> missing;
  for (int64_t i = 1; i <= count; ++i) {
    const std::string each = SplitFileName(split->prefix, i, count);
    if (!dir.Exists(each)) missing.push_back(Excerpt(each));
  }
  if (const size_t all = missing.size(); all > 0) {
    missing.resize(std::min(all, kMostNamed));
    return InFile(name,
                  absl::NotFoundError(absl::StrCat(
                      "of the model's ", count, " files ", all, all == 1 ? " is" : " are", " missing; is the ",
                      "download incomplete? Missing: ", absl::StrJoin(missing, ", "), all > kMostNamed ? " …" : "")));
  }
  for (int64_t i = 1; i <= count; ++i) {
    std::unique_ptr<GgufFile> file;
    if (i == split->number) {
      file = std::move(given);
    } else {
      ASSIGN_OR_RETURN(file, GgufFile::Open(dir, SplitFileName(split->prefix, i, count)));
    }
    if (absl::Status status = CheckSplit(*file, i, count); !status.ok()) return InFile(file->name(), status);
    RETURN_IF_ERROR(AddFile(std::move(file)));
  }
  const absl::StatusOr<int64_t> expected = metadata().Int(kSplitTensors);
  if (!expected.ok()) return InFile(files_.front()->name(), expected.status());
  if (*expected == num_tensors()) return absl::OkStatus();
  return InFile(files_.front()->name(),
                absl::InvalidArgumentError(absl::StrCat("key \"", kSplitTensors, "\": expected ", *expected,
                                                        " tensors in all files, found ", num_tensors())));
}

absl::Status GgufCheckpoint::CheckSplit(const GgufFile& file, int64_t number, int64_t count) const {
  ASSIGN_OR_RETURN(const int64_t found_count, file.metadata().Int(kSplitCount));
  if (found_count != count) {
    return absl::InvalidArgumentError(absl::StrCat("key \"", kSplitCount, "\": expected ", count,
                                                   " as in the model's other files, found ", found_count));
  }
  ASSIGN_OR_RETURN(const int64_t found_number, file.metadata().Int(kSplitNo));
  if (found_number == number - 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("key \"", kSplitNo, "\": expected ", number - 1, " by the file's name, found ", found_number));
}

absl::Status GgufCheckpoint::AddFile(std::unique_ptr<GgufFile> file) {
  for (const GgufTensor& tensor : file->tensors()) {
    const auto [found, added] = tensors_.try_emplace(tensor.name, GgufLocation{file.get(), &tensor});
    if (added) continue;
    return InFile(file->name(), absl::InvalidArgumentError(absl::StrCat(
                                    "tensor \"", Excerpt(tensor.name), "\": is also in ", found->second.file->name())));
  }
  files_.push_back(std::move(file));
  return absl::OkStatus();
}

GgufLocation GgufCheckpoint::Find(absl::string_view tensor) const {
  const auto found = tensors_.find(tensor);
  return found == tensors_.end() ? GgufLocation{} : found->second;
}

}  // namespace switchyard
