#include "workers/moe/experts/expert_file_format.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "workers/moe/experts/expert_checksum.h"

namespace switchyard::moe {
namespace {

constexpr int64_t kPage = 4096, kHugePage = 2 << 20;

int64_t RoundUp(int64_t bytes, int64_t unit) { return (bytes + unit - 1) / unit * unit; }

}  // namespace

ExpertFileFormat::ExpertFileFormat(const ExpertFileOptions& options)
    : experts(int64_t{options.num_layers} * options.num_experts), forms_(options.expert) {
  const int64_t expert_bytes = forms_.bytes();  // of the largest
  const int64_t unit = expert_bytes >= 16 * kHugePage && !options.on_disk ? kHugePage : kPage;
  layout = {.num_layers = options.num_layers,
            .num_experts = options.num_experts,
            .stride = RoundUp(expert_bytes, unit),
            .piece_bytes = options.piece_bytes,
            .pieces = (expert_bytes + options.piece_bytes - 1) / options.piece_bytes};
  layout.data = RoundUp(kExpertTableAt + table_bytes(), unit);
  layout.bytes = layout.data + experts * layout.stride;
  mapped_bytes = options.on_disk ? layout.data : layout.bytes;
  identity =
      absl::StrCat("weights ", options.weights, " layers ", options.num_layers, " experts ", options.num_experts, " ",
                   options.expert.ToString(), " packed for ", options.device == DeviceKind::kCpu ? "cpu" : "cuda",
                   " pieces ", options.piece_bytes, options.on_disk ? " on disk" : "");
  path = absl::StrFormat("%s/%s%d-%016x.pack", options.dir, kExpertFilePrefix, getuid(),
                         ChecksumOf(identity.data(), static_cast<int64_t>(identity.size())));
}

std::string ExpertFileFormat::Problem(const char* memory) const {
  const auto& header = *reinterpret_cast<const ExpertFileHeader*>(memory);
  if (std::memcmp(header.magic, ExpertFileHeader::kMagic, 8) != 0) return "is another kind of file";
  if (header.state != ExpertFileHeader::kComplete) return "is incomplete";
  if (header.checksum != HeaderChecksum(memory)) return "has a damaged header";
  if (header.file_bytes != layout.bytes || header.data != layout.data || header.stride != layout.stride ||
      header.experts != experts ||
      identity != std::string(header.identity, static_cast<size_t>(std::clamp<int64_t>(header.identity_bytes, 0,
                                                                                       sizeof(header.identity))))) {
    return "is of another model";
  }
  return "";
}

void ExpertFileFormat::WriteHeader(char* memory) const {
  auto& header = *reinterpret_cast<ExpertFileHeader*>(memory);
  std::memcpy(header.magic, ExpertFileHeader::kMagic, 8);
  header.file_bytes = layout.bytes;
  header.data = layout.data;
  header.stride = layout.stride;
  header.experts = experts;
  header.identity_bytes = static_cast<int64_t>(identity.size());
  std::memcpy(header.identity, identity.data(), identity.size());
  header.checksum = HeaderChecksum(memory);
}

void ExpertFileFormat::WriteSums(int64_t index, const char* expert, char* memory) const {
  auto* const table = reinterpret_cast<uint64_t*>(memory + kExpertTableAt);
  const int64_t bytes = BytesOf(index);
  table[index] = ChecksumOf(expert, bytes);
  uint64_t* const of_pieces = table + experts + index * layout.pieces;
  for (int64_t piece = 0; piece < layout.pieces; ++piece) {
    const int64_t at = piece * layout.piece_bytes;
    of_pieces[piece] = ChecksumOf(expert + at, std::clamp<int64_t>(bytes - at, 0, layout.piece_bytes));
  }
}

bool ExpertFileFormat::HasSum(int64_t index, const char* expert, const char* memory) const {
  return reinterpret_cast<const uint64_t*>(memory + kExpertTableAt)[index] == ChecksumOf(expert, BytesOf(index));
}

uint64_t ExpertFileFormat::HeaderChecksum(const char* memory) const {
  constexpr int64_t kFrom = offsetof(ExpertFileHeader, file_bytes);
  return ChecksumOf(memory + kFrom, kExpertTableAt - kFrom + table_bytes());
}

absl::StatusOr<ExpertFileMapping> ExpertFileMapping::Map(const ExpertFileFormat& format, int fd, bool writable) {
  const auto bytes = static_cast<size_t>(format.mapped_bytes);
  void* const memory = mmap(nullptr, bytes, PROT_READ | (writable ? PROT_WRITE : 0), MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) return ExpertFileError(format.path, "cannot map");
  madvise(memory, bytes, MADV_HUGEPAGE);
  ExpertFileMapping mapping;
  mapping.memory_ = static_cast<char*>(memory);
  mapping.bytes_ = format.mapped_bytes;
  return mapping;
}

ExpertFileMapping::~ExpertFileMapping() {
  if (memory_ != nullptr) munmap(memory_, static_cast<size_t>(bytes_));
}

absl::Status ExpertFileError(const std::string& path, const std::string& what) {
  const std::string text = absl::StrCat("expert file ", path, ": ", what, ": ", std::strerror(errno));
  return errno == ENOSPC ? absl::ResourceExhaustedError(text) : absl::UnavailableError(text);
}

absl::Status ExpertFileStopped(const std::string& path, int64_t bytes_done) {
  return absl::CancelledError(absl::StrCat("expert file ", path, ": stopped after ", bytes_done, " bytes"));
}

}  // namespace switchyard::moe
