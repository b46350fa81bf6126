#include "workers/checkpoint/files/file_sums.h"

#include <openssl/evp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::checkpoint {

struct SumBlocks::Sha {
  Sha() : context(EVP_MD_CTX_new()) {
    SY_CHECK(context != nullptr);
    SY_CHECK_EQ(EVP_DigestInit_ex(context, EVP_sha256(), nullptr), 1);
  }
  ~Sha() { EVP_MD_CTX_free(context); }
  Sha(const Sha&) = delete;
  Sha& operator=(const Sha&) = delete;

  EVP_MD_CTX* const context;
};

SumBlocks::SumBlocks() : sha_(std::make_unique<Sha>()) {}
SumBlocks::~SumBlocks() = default;

void SumBlocks::Add(absl::string_view block) {
  if (block.empty()) return;
  SY_CHECK_EQ(sums_.bytes % kSummedBlockBytes, 0);
  SY_CHECK_LE(static_cast<int64_t>(block.size()), kSummedBlockBytes);
  SY_CHECK_EQ(EVP_DigestUpdate(sha_->context, block.data(), block.size()), 1);
  sums_.crc32c.push_back(Crc32c(block));
  sums_.bytes += static_cast<int64_t>(block.size());
}

FileSums SumBlocks::Finish() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int size = 0;
  SY_CHECK_EQ(EVP_DigestFinal_ex(sha_->context, digest, &size), 1);
  sums_.sha256 = absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest), size));
  return std::move(sums_);
}

std::string Sha256Hex(absl::string_view bytes) {
  SumBlocks sums;
  for (; !bytes.empty(); bytes.remove_prefix(std::min<size_t>(bytes.size(), kSummedBlockBytes))) {
    sums.Add(bytes.substr(0, kSummedBlockBytes));
  }
  return sums.Finish().sha256;
}

absl::StatusOr<std::unique_ptr<SummedFile>> SummedFile::Create(FileSystem* files, const std::string& path) {
  ASSIGN_OR_RETURN(std::unique_ptr<File> file, files->Open(path, OpenMode::kCreate));
  return std::unique_ptr<SummedFile>(new SummedFile(std::move(file)));
}

absl::Status SummedFile::Append(absl::string_view bytes) {
  while (!bytes.empty()) {
    const size_t count = std::min(bytes.size(), static_cast<size_t>(kSummedBlockBytes) - block_.size());
    block_.append(bytes.data(), count);
    bytes.remove_prefix(count);
    if (block_.size() == static_cast<size_t>(kSummedBlockBytes)) RETURN_IF_ERROR(Flush());
  }
  return absl::OkStatus();
}

absl::Status SummedFile::Flush() {
  if (block_.empty()) return absl::OkStatus();
  sums_.Add(block_);
  RETURN_IF_ERROR(file_->Append(block_));
  block_.clear();
  return absl::OkStatus();
}

absl::StatusOr<FileSums> SummedFile::Finish() {
  RETURN_IF_ERROR(Flush());
  RETURN_IF_ERROR(file_->Sync());
  return sums_.Finish();
}

absl::Status CheckSums(const File& file, const std::string& path, const FileSums& expected, const OnRead& on_read) {
  ASSIGN_OR_RETURN(int64_t size, file.Size());
  if (size != expected.bytes) {
    return absl::DataLossError(absl::StrCat(path, ": ", size, " bytes, the manifest says ", expected.bytes));
  }
  SumBlocks sums;
  std::string block;
  for (int64_t at = 0; at < size; at += kSummedBlockBytes) {
    block.resize(static_cast<size_t>(std::min(kSummedBlockBytes, size - at)));
    RETURN_IF_ERROR(file.Read(at, absl::MakeSpan(block.data(), block.size())));
    const auto index = static_cast<size_t>(at / kSummedBlockBytes);
    const uint32_t crc = Crc32c(block);
    if (index >= expected.crc32c.size() || crc != expected.crc32c[index]) {
      const std::string said = index < expected.crc32c.size() ? CrcHex(expected.crc32c[index]) : "nothing";
      return absl::DataLossError(absl::StrCat(path, ": damaged at bytes [", at, ", ",
                                              at + static_cast<int64_t>(block.size()), "): CRC-32C ", CrcHex(crc),
                                              ", the manifest says ", said));
    }
    sums.Add(block);
    if (on_read) RETURN_IF_ERROR(on_read(static_cast<int64_t>(block.size())));
  }
  const std::string sha256 = sums.Finish().sha256;
  if (sha256 == expected.sha256) return absl::OkStatus();
  return absl::DataLossError(
      absl::StrCat(path, ": damaged: SHA-256 ", sha256, ", the manifest says ", expected.sha256));
}

}  // namespace switchyard::checkpoint
