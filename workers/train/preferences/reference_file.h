// The file with a reference's log probabilities of the pairs of a token file, in the folder of a job with preferences:
// computed once, it serves later attempts and forks.
//
// All integers are little-endian.
//   0    char[8]   "SYREFLOG"
//   8    u32       version, 1
//   12   u32       data type of the model: 0 fp32, 1 bf16, 2 fp64
//   16   u64       which token file: the hash of the contents in its header
//   24   u64       P: its pairs
//   32   char[64]  checksum of the base's weights, hexadecimal (base_folder.h)
//   96             P times {f64, f64}: of the chosen and of the rejected answer; NaN = not computed
//        u32       CRC-32C of all bytes before
// Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/jobs/job_spec.h"
#include "workers/train/step/train_rows.h"

namespace switchyard::train {

inline constexpr int64_t kReferenceHeaderBytes = 96, kReferencePairBytes = 16;

struct ReferenceValues {
  jobs::TrainDType dtype = jobs::TrainDType::kF32;
  uint64_t tokens = 0;                   // TokenFileHeader::contents
  std::string base = {};                 // 64 digits
  std::vector<PairLogProbs> pairs = {};  // NaN: not computed
};

int64_t ReferenceFileBytes(int64_t pairs);
// REQUIRES: a base of 64 bytes.
std::string EncodeReferences(const ReferenceValues& values);
// InvalidArgument for another kind of file; FailedPrecondition for another version; DataLoss for a damaged one.
absl::StatusOr<ReferenceValues> DecodeReferences(absl::string_view bytes);

// Of a pair that is not computed.
PairLogProbs NotComputed();
bool IsComputed(const PairLogProbs& pair);

}  // namespace switchyard::train
