#include "workers/checkpoint/safetensors/block_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/files/file_sums.h"

namespace switchyard::checkpoint {
namespace {

// Describes [begin, end): `where tensor "a" is`, or the first and the last of several.
std::string Describe(const WeightsFile& file, int64_t begin, int64_t end) {
  const std::string *first = nullptr, *last = nullptr;
  for (const auto& [name, entry] : file.tensors()) {
    if (entry.begin >= end || entry.begin + entry.bytes <= begin) continue;
    if (first == nullptr) first = &name;
    last = &name;
  }
  if (first == nullptr) return "where its header is";
  if (first == last) return absl::StrCat("where tensor \"", Excerpt(*first), "\" is");
  return absl::StrCat("where tensors \"", Excerpt(*first), "\" to \"", Excerpt(*last), "\" are");
}

}  // namespace

BlockCheck::BlockCheck(const WeightsFile* file) : file_(file), seen_(file->block_sums().size()) {}

absl::Status BlockCheck::Compare(int64_t block, absl::string_view bytes) const {
  const uint32_t found = Crc32c(bytes), expected = file_->block_sums()[static_cast<size_t>(block)];
  if (found == expected) return absl::OkStatus();
  const int64_t begin = block * kSummedBlockBytes, end = begin + static_cast<int64_t>(bytes.size());
  return absl::DataLossError(absl::StrCat(
      file_->name(), ": damaged at bytes [", begin, ", ", end, "), ", Describe(*file_, begin, end), ": CRC-32C ",
      CrcHex(found), ", the manifest says ", CrcHex(expected), "; copy this folder anew, or take another step's"));
}

absl::Status BlockCheck::Check(int64_t begin, absl::string_view bytes, std::string* scratch) {
  const int64_t end = begin + static_cast<int64_t>(bytes.size());
  for (int64_t block = begin / kSummedBlockBytes; block * kSummedBlockBytes < end; ++block) {
    if (seen_[static_cast<size_t>(block)].exchange(true)) continue;
    const int64_t first = block * kSummedBlockBytes, last = std::min(first + kSummedBlockBytes, file_->size());
    if (first >= begin && last <= end) {
      RETURN_IF_ERROR(
          Compare(block, bytes.substr(static_cast<size_t>(first - begin), static_cast<size_t>(last - first))));
      continue;
    }
    scratch->resize(static_cast<size_t>(last - first));
    RETURN_IF_ERROR(file_->Read(first, last - first, scratch->data()));
    RETURN_IF_ERROR(Compare(block, *scratch));
  }
  return absl::OkStatus();
}

absl::Status BlockCheck::CheckHeader() {
  std::string block;
  const int64_t end = 8 + static_cast<int64_t>(file_->header().size());
  for (int64_t at = 0; at < end; at += kSummedBlockBytes) {
    block.resize(static_cast<size_t>(std::min(kSummedBlockBytes, file_->size() - at)));
    RETURN_IF_ERROR(file_->Read(at, static_cast<int64_t>(block.size()), block.data()));
    RETURN_IF_ERROR(Compare(at / kSummedBlockBytes, block));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::checkpoint
