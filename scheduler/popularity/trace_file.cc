#include "scheduler/popularity/trace_file.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/fnv1a.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/trace_bytes.h"

namespace switchyard {
namespace {

template <class Int>
Int LoadInt(const char* from) {
  std::make_unsigned_t<Int> bits = 0;
  for (size_t i = 0; i < sizeof(Int); ++i)
    bits = static_cast<std::make_unsigned_t<Int>>(bits | std::make_unsigned_t<Int>{static_cast<uint8_t>(from[i])}
                                                             << (8 * i));
  return static_cast<Int>(bits);
}

// Walks over bytes and says where it ran out of them.  `where` begins every message: "trace: header", "sequence 3".
class Cursor {
 public:
  Cursor(absl::string_view bytes, uint64_t position, std::string where)
      : bytes_(bytes), position_(position), where_(std::move(where)) {}

  uint64_t position() const { return position_; }

  absl::Status Error(uint64_t at, absl::string_view problem) const {
    return absl::InvalidArgumentError(absl::StrCat("trace: ", where_, ", byte ", at, ": ", problem));
  }

  absl::StatusOr<absl::string_view> Take(uint64_t num_bytes, absl::string_view what) {
    const uint64_t left = bytes_.size() - position_;
    if (num_bytes > left)
      return Error(position_, absl::StrCat("truncated: ", what, " wants ", num_bytes, " bytes, ", left, " are left"));
    const absl::string_view taken = bytes_.substr(position_, num_bytes);
    position_ += num_bytes;
    return taken;
  }

  template <class Int>
  absl::StatusOr<Int> TakeInt(absl::string_view what) {
    ASSIGN_OR_RETURN(const absl::string_view taken, Take(sizeof(Int), what));
    return LoadInt<Int>(taken.data());
  }

  // An u32 in [least, most].
  absl::StatusOr<int> TakeCount(absl::string_view what, int least, int most) {
    const uint64_t at = position_;
    ASSIGN_OR_RETURN(const auto count, TakeInt<uint32_t>(what));
    if (count < static_cast<uint32_t>(least) || count > static_cast<uint32_t>(most))
      return Error(at, absl::StrCat(what, " is ", count, ", not in [", least, ", ", most, "]"));
    return static_cast<int>(count);
  }

  absl::StatusOr<std::string> TakeString(absl::string_view what) {
    ASSIGN_OR_RETURN(const int length, TakeCount(absl::StrCat("length of ", what), 0, kMaxTraceNameBytes));
    ASSIGN_OR_RETURN(const absl::string_view text, Take(static_cast<uint64_t>(length), what));
    return std::string(text);
  }

  // num_groups groups of `width` expert ids in [-1, num_experts), distinct within a group but for -1.
  absl::StatusOr<std::vector<int16_t>> TakeExperts(uint64_t num_groups, int width, int num_experts,
                                                   absl::string_view what);

 private:
  absl::string_view bytes_;
  uint64_t position_;
  std::string where_;
};

absl::StatusOr<std::vector<int16_t>> Cursor::TakeExperts(uint64_t num_groups, int width, int num_experts,
                                                         absl::string_view what) {
  const uint64_t at = position_;
  const uint64_t num_ids = num_groups * static_cast<uint64_t>(width);
  ASSIGN_OR_RETURN(const absl::string_view taken, Take(num_ids * sizeof(int16_t), what));
  std::vector<int16_t> ids(num_ids);
  for (uint64_t i = 0; i < num_ids; ++i) {
    const auto id = LoadInt<int16_t>(taken.data() + i * sizeof(int16_t));
    if (id < -1 || id >= num_experts)
      return Error(at + i * sizeof(int16_t), absl::StrCat(what, ": expert ", id, " is not in [-1, ", num_experts, ")"));
    const uint64_t group = i - i % static_cast<uint64_t>(width);
    const auto first = ids.begin() + static_cast<int64_t>(group);
    const auto here = ids.begin() + static_cast<int64_t>(i);
    if (id >= 0 && std::find(first, here, id) != here)
      return Error(at + i * sizeof(int16_t), absl::StrCat(what, ": expert ", id, " twice for one token and layer"));
    *here = id;
  }
  return ids;
}

// What a token takes in a sequence.  Within the header's limits the sum stays below 2^48.
uint64_t BytesPerToken(const RoutingTrace& trace) {
  uint64_t ids = static_cast<uint64_t>(trace.shape.top_k);
  for (const TraceChannel& channel : trace.channels) ids += static_cast<uint64_t>(channel.num_predicted);
  return sizeof(int32_t) + static_cast<uint64_t>(trace.shape.num_layers) * ids * sizeof(int16_t);
}

absl::StatusOr<std::vector<int32_t>> TakeTokens(Cursor* cursor, uint64_t num_tokens) {
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

}  // namespace

void AppendTraceHeader(const RoutingTrace& trace, std::string* bytes) {
  TraceHead head = {.num_layers = trace.shape.num_layers,
                    .num_experts = trace.shape.num_experts,
                    .top_k = trace.shape.top_k,
                    .model = trace.model};
  for (const TraceChannel& channel : trace.channels) head.channels.push_back({channel.name, channel.num_predicted});
  AppendTraceHead(head, bytes);
}

void AppendTraceSequence(const RoutingTrace& trace, const TraceSequence& sequence, std::string* bytes) {
  const auto num_rows = static_cast<size_t>(sequence.num_tokens()) * static_cast<size_t>(trace.shape.num_layers);
  SY_CHECK_EQ(sequence.experts.size(), num_rows * static_cast<size_t>(trace.shape.top_k));
  SY_CHECK_EQ(sequence.predictions.size(), trace.channels.size());
  const std::string experts = TraceIds(sequence.experts);
  std::vector<std::string> predictions;
  for (size_t c = 0; c < trace.channels.size(); ++c) {
    SY_CHECK_EQ(sequence.predictions[c].size(), num_rows * static_cast<size_t>(trace.channels[c].num_predicted));
    predictions.push_back(TraceIds(sequence.predictions[c]));
  }
  AppendTraceBody({.label = sequence.label,
                   .num_prompt = sequence.num_prompt,
                   .token_ids = sequence.token_ids,
                   .experts = experts,
                   .predictions = {predictions.begin(), predictions.end()}},
                  bytes);
}

std::string SerializeTrace(const RoutingTrace& trace) {
  std::string bytes;
  AppendTraceHeader(trace, &bytes);
  for (const TraceSequence& sequence : trace.sequences) AppendTraceSequence(trace, sequence, &bytes);
  return bytes;
}

absl::StatusOr<TraceReader> TraceReader::Open(absl::string_view bytes) {
  Cursor cursor(bytes, 0, "header");
  ASSIGN_OR_RETURN(const absl::string_view magic, cursor.Take(kTraceMagic.size(), "the magic \"SYTRACE1\""));
  if (magic != kTraceMagic)
    return cursor.Error(0, absl::StrCat("starts with \"", absl::CHexEscape(magic), "\", not with \"", kTraceMagic,
                                        "\": no routing trace, or one of another version"));
  TraceReader reader(bytes);
  RoutingShape& shape = reader.header_.shape;
  ASSIGN_OR_RETURN(shape.num_layers, cursor.TakeCount("number of layers", 1, kMaxTraceLayers));
  ASSIGN_OR_RETURN(shape.num_experts, cursor.TakeCount("number of experts", 1, kMaxTraceExperts));
  ASSIGN_OR_RETURN(shape.top_k, cursor.TakeCount("top_k", 1, shape.num_experts));
  ASSIGN_OR_RETURN(const int num_channels, cursor.TakeCount("number of channels", 0, kMaxTraceChannels));
  ASSIGN_OR_RETURN(reader.header_.model, cursor.TakeString("model"));
  for (int c = 0; c < num_channels; ++c) {
    TraceChannel channel;
    ASSIGN_OR_RETURN(channel.name, cursor.TakeString(absl::StrCat("name of channel ", c)));
    ASSIGN_OR_RETURN(channel.num_predicted,
                     cursor.TakeCount(absl::StrCat("predictions of channel ", c), 1, shape.num_experts));
    reader.header_.channels.push_back(std::move(channel));
  }
  reader.position_ = cursor.position();
  return reader;
}

absl::StatusOr<TraceSequence> TraceReader::Next() {
  SY_CHECK(!AtEnd());
  Cursor cursor(bytes_, position_, absl::StrCat("sequence ", num_read_));
  ASSIGN_OR_RETURN(const auto marker, cursor.TakeInt<uint32_t>("marker"));
  if (marker != kTraceSequenceMarker)
    return cursor.Error(position_, absl::StrCat("marker is 0x", absl::Hex(marker, absl::kZeroPad8), ", not 0x",
                                                absl::Hex(kTraceSequenceMarker, absl::kZeroPad8), " (\"SEQ1\")"));
  TraceSequence sequence;
  ASSIGN_OR_RETURN(sequence.label, cursor.TakeString("label"));
  const uint64_t counts_at = cursor.position();
  ASSIGN_OR_RETURN(sequence.num_prompt, cursor.TakeCount("num_prompt", 0, std::numeric_limits<int32_t>::max()));
  ASSIGN_OR_RETURN(const int count, cursor.TakeCount("num_tokens", 0, std::numeric_limits<int32_t>::max()));
  const auto num_tokens = static_cast<uint64_t>(count);
  // Before any multiplication by what the bytes claim: more tokens than there are bytes for.
  const uint64_t left = bytes_.size() - cursor.position();
  if (const uint64_t each = BytesPerToken(header_); num_tokens > left / each)
    return cursor.Error(counts_at + sizeof(uint32_t),
                        absl::StrCat("truncated: ", num_tokens, " tokens of ", each, " bytes, ", left, " are left"));
  if (sequence.num_prompt > count)
    return cursor.Error(counts_at, absl::StrCat("num_prompt is ", sequence.num_prompt, " of ", count, " tokens"));
  const uint64_t body = cursor.position();
  const uint64_t num_rows = num_tokens * static_cast<uint64_t>(header_.shape.num_layers);
  // The checksum first: of bytes that were damaged, that is the true reason.
  Cursor end(bytes_, body + num_tokens * BytesPerToken(header_), absl::StrCat("sequence ", num_read_));
  const absl::string_view hashed = bytes_.substr(position_, end.position() - position_);
  ASSIGN_OR_RETURN(const auto wanted, end.TakeInt<uint64_t>("checksum"));
  if (const uint64_t actual = Fnv1a(hashed); actual != wanted)
    return cursor.Error(end.position() - sizeof(uint64_t),
                        absl::StrCat("checksum is 0x", absl::Hex(wanted, absl::kZeroPad16), ", its ", hashed.size(),
                                     " bytes have 0x", absl::Hex(actual, absl::kZeroPad16)));
  ASSIGN_OR_RETURN(sequence.token_ids, TakeTokens(&cursor, num_tokens));
  const int num_experts = header_.shape.num_experts;
  ASSIGN_OR_RETURN(sequence.experts, cursor.TakeExperts(num_rows, header_.shape.top_k, num_experts, "experts"));
  for (const TraceChannel& channel : header_.channels) {
    ASSIGN_OR_RETURN(std::vector<int16_t> predictions,
                     cursor.TakeExperts(num_rows, channel.num_predicted, num_experts,
                                        absl::StrCat("predictions of \"", absl::CHexEscape(channel.name), "\"")));
    sequence.predictions.push_back(std::move(predictions));
  }
  position_ = end.position();
  ++num_read_;
  return sequence;
}

absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes) {
  ASSIGN_OR_RETURN(TraceReader reader, TraceReader::Open(bytes));
  RoutingTrace trace = reader.header();
  while (!reader.AtEnd()) {
    ASSIGN_OR_RETURN(TraceSequence sequence, reader.Next());
    trace.sequences.push_back(std::move(sequence));
  }
  return trace;
}

}  // namespace switchyard
