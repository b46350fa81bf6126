#include "scheduler/popularity/trace/trace_file.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/trace_bytes.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::popularity {
namespace {

// An u32 in [least, most].
absl::StatusOr<int> TakeCount(ByteReader* reader, absl::string_view what, int least, int most) {
  ASSIGN_OR_RETURN(const auto count,
                   reader->TakeIn<uint32_t>(what, static_cast<uint32_t>(least), static_cast<uint32_t>(most)));
  return static_cast<int>(count);
}

// Ids of experts in groups, one of each token and layer.
struct ExpertGroups {
  uint64_t num_groups = 0;
  int width = 0;
  int num_experts = 0;  // ids are in [-1, num_experts), distinct within a group but for -1
};

absl::StatusOr<std::vector<int16_t>> TakeExperts(ByteReader* reader, const ExpertGroups& groups,
                                                 absl::string_view what) {
  const uint64_t at = reader->position();
  const uint64_t num_ids = groups.num_groups * static_cast<uint64_t>(groups.width);
  ASSIGN_OR_RETURN(const absl::string_view taken, reader->Take(num_ids * sizeof(int16_t), what));
  std::vector<int16_t> ids(num_ids);
  for (uint64_t i = 0; i < num_ids; ++i) {
    const auto id = LoadInt<int16_t>(taken.data() + i * sizeof(int16_t));
    if (id < -1 || id >= groups.num_experts)
      return reader->Error(at + i * sizeof(int16_t),
                           absl::StrCat(what, ": expert ", id, " is not in [-1, ", groups.num_experts, ")"));
    const uint64_t group = i - i % static_cast<uint64_t>(groups.width);
    const auto first = ids.begin() + static_cast<int64_t>(group);
    const auto here = ids.begin() + static_cast<int64_t>(i);
    if (id >= 0 && std::find(first, here, id) != here)
      return reader->Error(at + i * sizeof(int16_t),
                           absl::StrCat(what, ": expert ", id, " twice for one token and layer"));
    *here = id;
  }
  return ids;
}

// The bytes of a token in a sequence.  Within the header's limits the sum stays below 2^48.
uint64_t BytesPerToken(const RoutingTrace& trace) {
  uint64_t ids = static_cast<uint64_t>(trace.shape.top_k);
  for (const TraceChannel& channel : trace.channels) ids += static_cast<uint64_t>(channel.num_predicted);
  return sizeof(int32_t) + static_cast<uint64_t>(trace.shape.num_layers) * ids * sizeof(int16_t);
}

absl::StatusOr<std::vector<int32_t>> TakeTokens(ByteReader* cursor, uint64_t num_tokens) {
  const uint64_t at = cursor->position();
  ASSIGN_OR_RETURN(const absl::string_view taken, cursor->Take(num_tokens * sizeof(int32_t), "token ids"));
  std::vector<int32_t> tokens(num_tokens);
  for (uint64_t i = 0; i < num_tokens; ++i) {
    tokens[i] = LoadInt<int32_t>(taken.data() + i * sizeof(int32_t));
    if (tokens[i] < 0)
      return cursor->Error(at + i * sizeof(int32_t), absl::StrCat("token id ", tokens[i], " is negative"));
  }
  return tokens;
}

// Reads one sequence after the other.  Borrows the bytes.
class TraceReader {
 public:
  // Reads the header.
  static absl::StatusOr<TraceReader> Open(absl::string_view bytes);

  // The trace without its sequences.
  const RoutingTrace& header() const { return header_; }
  bool AtEnd() const { return position_ == bytes_.size(); }
  int64_t num_read() const { return num_read_; }
  // The next sequence.  After an error the reader stays before the sequence that has it.  REQUIRES: !AtEnd().
  absl::StatusOr<TraceSequence> Next();
  // Whether the bytes ended within the last sequence that was asked for.
  bool torn() const { return torn_; }

 private:
  explicit TraceReader(absl::string_view bytes) : bytes_(bytes) {}

  absl::StatusOr<TraceSequence> Take(ByteReader* cursor) const;

  absl::string_view bytes_;
  RoutingTrace header_;
  uint64_t position_ = 0;
  int64_t num_read_ = 0;
  bool torn_ = false;
};

absl::StatusOr<TraceReader> TraceReader::Open(absl::string_view bytes) {
  ByteReader cursor(bytes, "trace: header");
  ASSIGN_OR_RETURN(const absl::string_view magic, cursor.Take(kTraceMagic.size(), "the magic \"SYTRACE1\""));
  if (magic != kTraceMagic)
    return cursor.Error(0, absl::StrCat("starts with \"", absl::CHexEscape(magic), "\", not with \"", kTraceMagic,
                                        "\": no routing trace, or one of another version"));
  TraceReader reader(bytes);
  RoutingShape& shape = reader.header_.shape;
  ASSIGN_OR_RETURN(shape.num_layers, TakeCount(&cursor, "number of layers", 1, kMaxTraceLayers));
  ASSIGN_OR_RETURN(shape.num_experts, TakeCount(&cursor, "number of experts", 1, kMaxTraceExperts));
  ASSIGN_OR_RETURN(shape.top_k, TakeCount(&cursor, "top_k", 1, shape.num_experts));
  ASSIGN_OR_RETURN(const int num_channels, TakeCount(&cursor, "number of channels", 0, kMaxTraceChannels));
  ASSIGN_OR_RETURN(reader.header_.model, cursor.TakeString("model", kMaxTraceNameBytes));
  for (int c = 0; c < num_channels; ++c) {
    TraceChannel channel;
    ASSIGN_OR_RETURN(channel.name, cursor.TakeString(absl::StrCat("name of channel ", c), kMaxTraceNameBytes));
    ASSIGN_OR_RETURN(channel.num_predicted,
                     TakeCount(&cursor, absl::StrCat("predictions of channel ", c), 1, shape.num_experts));
    reader.header_.channels.push_back(std::move(channel));
  }
  reader.position_ = cursor.position();
  return reader;
}

absl::StatusOr<TraceSequence> TraceReader::Next() {
  SY_CHECK(!AtEnd());
  ByteReader cursor(bytes_, absl::StrCat("trace: sequence ", num_read_), position_);
  absl::StatusOr<TraceSequence> sequence = Take(&cursor);
  if (sequence.ok()) {
    position_ = cursor.position();
    ++num_read_;
  }
  torn_ = cursor.truncated();
  return sequence;
}

absl::StatusOr<TraceSequence> TraceReader::Take(ByteReader* cursor) const {
  ASSIGN_OR_RETURN(const auto marker, cursor->TakeInt<uint32_t>("marker"));
  if (marker != kTraceSequenceMarker)
    return cursor->Error(position_, absl::StrCat("marker is 0x", absl::Hex(marker, absl::kZeroPad8), ", not 0x",
                                                 absl::Hex(kTraceSequenceMarker, absl::kZeroPad8), " (\"SEQ1\")"));
  TraceSequence sequence;
  ASSIGN_OR_RETURN(sequence.label, cursor->TakeString("label", kMaxTraceNameBytes));
  const uint64_t counts_at = cursor->position();
  ASSIGN_OR_RETURN(sequence.num_prompt, TakeCount(cursor, "num_prompt", 0, std::numeric_limits<int32_t>::max()));
  ASSIGN_OR_RETURN(const int count, TakeCount(cursor, "num_tokens", 0, std::numeric_limits<int32_t>::max()));
  const auto num_tokens = static_cast<uint64_t>(count);
  // Checked before any multiplication by a number that the bytes claim: more tokens than there are bytes for.
  const uint64_t left = bytes_.size() - cursor->position();
  if (const uint64_t each = BytesPerToken(header_); num_tokens > left / each)
    return cursor->Truncated(counts_at + sizeof(uint32_t),
                             absl::StrCat(num_tokens, " tokens of ", each, " bytes, ", left, " are left"));
  if (sequence.num_prompt > count)
    return cursor->Error(counts_at, absl::StrCat("num_prompt is ", sequence.num_prompt, " of ", count, " tokens"));
  const uint64_t num_rows = num_tokens * static_cast<uint64_t>(header_.shape.num_layers);
  // The checksum comes first: it is the true reason where bytes were damaged.
  ByteReader ids = *cursor;
  RETURN_IF_ERROR(cursor->Take(num_tokens * BytesPerToken(header_), "tokens").status());
  const absl::string_view hashed = bytes_.substr(position_, cursor->position() - position_);
  ASSIGN_OR_RETURN(const auto wanted, cursor->TakeInt<uint64_t>("checksum"));
  if (const uint64_t actual = Fnv1a(hashed); actual != wanted)
    return cursor->Error(cursor->position() - sizeof(uint64_t),
                         absl::StrCat("checksum is 0x", absl::Hex(wanted, absl::kZeroPad16), ", its ", hashed.size(),
                                      " bytes have 0x", absl::Hex(actual, absl::kZeroPad16)));
  ASSIGN_OR_RETURN(sequence.token_ids, TakeTokens(&ids, num_tokens));
  const int num_experts = header_.shape.num_experts;
  ASSIGN_OR_RETURN(sequence.experts, TakeExperts(&ids, {num_rows, header_.shape.top_k, num_experts}, "experts"));
  for (const TraceChannel& channel : header_.channels) {
    ASSIGN_OR_RETURN(std::vector<int16_t> predictions,
                     TakeExperts(&ids, {num_rows, channel.num_predicted, num_experts},
                                 absl::StrCat("predictions of \"", absl::CHexEscape(channel.name), "\"")));
    sequence.predictions.push_back(std::move(predictions));
  }
  return sequence;
}

}  // namespace

absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes) {
  absl::Status torn;
  ASSIGN_OR_RETURN(RoutingTrace trace, ParseTrace(bytes, &torn));
  RETURN_IF_ERROR(torn);
  return trace;
}

absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes, absl::Status* torn) {
  ASSIGN_OR_RETURN(TraceReader reader, TraceReader::Open(bytes));
  RoutingTrace trace = reader.header();
  while (!reader.AtEnd()) {
    absl::StatusOr<TraceSequence> sequence = reader.Next();
    if (reader.torn() && reader.num_read() > 0) {
      *torn = sequence.status();
      return trace;
    }
    if (!sequence.ok()) return sequence.status();
    trace.sequences.push_back(*std::move(sequence));
  }
  return trace;
}

}  // namespace switchyard::popularity
