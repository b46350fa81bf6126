#include "workers/moe/experts/summed_copier.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::moe {

absl::Status SummedCopier::Copy(const ExpertChunk& chunk) {
  ExpertChecksum& sum = sums_[chunk.id];
  if (chunk.offset == 0) sum = ExpertChecksum();  // the copy before may have been given up
  const char* const bytes = options_.slots_on_host ? chunk.to : chunk.from;
  RETURN_IF_ERROR(copier_->CopyBeside(chunk, [&] { sum.Add(bytes, chunk.bytes); }));
  if (chunk.offset + chunk.bytes < options_.expert_bytes) return absl::OkStatus();
  const uint64_t arrived = sum.value(), expected = options_.checksum(chunk.id);
  sums_.erase(chunk.id);
  if (arrived == expected) return absl::OkStatus();
  found_damage_ = true;
  return absl::DataLossError(absl::StrCat("expert file: ", chunk.id.ToString(), " has checksum 0x", absl::Hex(arrived),
                                          ", was written with 0x", absl::Hex(expected),
                                          ": its bytes have changed since the file was opened"));
}

}  // namespace switchyard::moe
