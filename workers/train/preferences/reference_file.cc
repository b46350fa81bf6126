#include "workers/train/preferences/reference_file.h"

#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::train {
namespace {

constexpr absl::string_view kReferenceMagic = "SYREFLOG", kReferenceFormat = "file of the reference";
constexpr uint32_t kReferenceVersion = 1;
constexpr size_t kReferenceBaseBytes = 64;

double LoadReal(const char* from) { return std::bit_cast<double>(LoadInt<uint64_t>(from)); }

}  // namespace

PairLogProbs NotComputed() {
  return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
}

bool IsComputed(const PairLogProbs& pair) { return !std::isnan(pair.chosen) && !std::isnan(pair.rejected); }

int64_t ReferenceFileBytes(int64_t pairs) { return kReferenceHeaderBytes + kReferencePairBytes * pairs + 4; }

std::string EncodeReferences(const ReferenceValues& values) {
  SY_CHECK_EQ(values.base.size(), kReferenceBaseBytes);
  std::string bytes(kReferenceMagic);
  bytes.reserve(static_cast<size_t>(ReferenceFileBytes(std::ssize(values.pairs))));
  AppendInt(kReferenceVersion, &bytes);
  AppendInt(static_cast<uint32_t>(values.dtype), &bytes);
  AppendInt(values.tokens, &bytes);
  AppendInt(static_cast<uint64_t>(values.pairs.size()), &bytes);
  bytes += values.base;
  for (const PairLogProbs& pair : values.pairs) {
    AppendInt(std::bit_cast<uint64_t>(pair.chosen), &bytes);
    AppendInt(std::bit_cast<uint64_t>(pair.rejected), &bytes);
  }
  AppendInt(Crc32c(bytes), &bytes);
  return bytes;
}

absl::StatusOr<ReferenceValues> DecodeReferences(absl::string_view bytes) {
  ByteReader reader(bytes, kReferenceFormat);
  ASSIGN_OR_RETURN(const absl::string_view magic, reader.Take(kReferenceMagic.size(), "magic"));
  if (magic != kReferenceMagic)
    return absl::InvalidArgumentError(absl::StrCat(kReferenceFormat, ": does not begin as one"));
  ASSIGN_OR_RETURN(const uint32_t version, reader.TakeInt<uint32_t>("version"));
  if (version != kReferenceVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat(kReferenceFormat, ": version ", version, ", this program reads ", kReferenceVersion));
  }
  const size_t body = bytes.size() - 4;  // (There are 12 at least.)
  if (LoadInt<uint32_t>(bytes.data() + body) != Crc32c(bytes.substr(0, body))) {
    return absl::DataLossError(
        absl::StrCat(kReferenceFormat, ": damaged: its checksum is not that of its ", bytes.size(), " bytes"));
  }
  ReferenceValues values;
  ASSIGN_OR_RETURN(const uint32_t dtype, (reader.TakeIn<uint32_t>("data type", 0, 2)));
  values.dtype = static_cast<jobs::TrainDType>(dtype);
  ASSIGN_OR_RETURN(values.tokens, reader.TakeInt<uint64_t>("token file"));
  ASSIGN_OR_RETURN(const uint64_t pairs, reader.TakeInt<uint64_t>("pairs"));
  ASSIGN_OR_RETURN(const absl::string_view base, reader.Take(kReferenceBaseBytes, "checksum of the base"));
  values.base = std::string(base);
  if (pairs != (reader.left() - 4) / kReferencePairBytes || reader.left() % kReferencePairBytes != 4) {
    return absl::InvalidArgumentError(
        absl::StrCat(kReferenceFormat, ": ", bytes.size(), " bytes for ", pairs, " pairs"));
  }
  values.pairs.reserve(pairs);
  for (const char* at = bytes.data() + kReferenceHeaderBytes; at < bytes.data() + body; at += kReferencePairBytes) {
    values.pairs.push_back({LoadReal(at), LoadReal(at + 8)});
  }
  return values;
}

}  // namespace switchyard::train
