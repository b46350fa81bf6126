#include "scheduler/popularity/trace/trace_file.h"

#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/trace_bytes.h"

namespace switchyard::popularity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Two layers of four experts, top-2, one channel of one prediction; 3 and 1 tokens.
RoutingTrace SmallTrace() {
  RoutingTrace trace;
  trace.model = "hash";
  trace.shape = {.num_layers = 2, .num_experts = 4, .top_k = 2};
  trace.channels = {{.name = "probe", .num_predicted = 1}};
  trace.sequences.resize(2);
  trace.sequences[0] = {.label = "prose",
                        .num_prompt = 2,
                        .token_ids = {5, 0, 70000},
                        .experts = {0, 1, 2, 3, 3, 0, 1, -1, -1, -1, 2, 1},
                        .predictions = {{-1, 2, -1, 0, -1, 3}}};
  trace.sequences[1] = {
      .label = "", .num_prompt = 0, .token_ids = {9}, .experts = {1, 0, 2, 0}, .predictions = {{-1, 1}}};
  return trace;
}

bool operator==(const TraceSequence& a, const TraceSequence& b) {
  return a.label == b.label && a.num_prompt == b.num_prompt && a.token_ids == b.token_ids && a.experts == b.experts &&
         a.predictions == b.predictions;
}

// The writer that the reader is tried with; the program writes from messages (proto/support/trace_writer.h).
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

// The error that parsing `bytes` ends with.
std::string ErrorOf(absl::string_view bytes) {
  const absl::StatusOr<RoutingTrace> trace = ParseTrace(bytes);
  EXPECT_EQ(trace.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(trace.status().message());
}

// `value` as int of `width` bytes at `position`, and the checksum of the (only) sequence made right again.
std::string Patched(std::string bytes, size_t position, int64_t value, int width, size_t sequence_begin) {
  for (int i = 0; i < width; ++i) bytes[position + static_cast<size_t>(i)] = static_cast<char>(value >> (8 * i));
  const size_t end = bytes.size() - 8;
  const uint64_t hash = Fnv1a(absl::string_view(bytes).substr(sequence_begin, end - sequence_begin));
  for (size_t i = 0; i < 8; ++i) bytes[end + i] = static_cast<char>(hash >> (8 * i));
  return bytes;
}

TEST(TraceFileTest, IsWhatTheHeaderOfTheFileSaysByteForByte) {
  RoutingTrace trace;
  trace.model = "m";
  trace.shape = {.num_layers = 1, .num_experts = 300, .top_k = 1};
  trace.sequences.resize(1);
  trace.sequences[0].label = "ab";
  trace.sequences[0].num_prompt = 1;
  trace.sequences[0].token_ids = {0x01020304};
  trace.sequences[0].experts = {258};
  const std::string sequence(
      "SEQ1"
      "\2\0\0\0ab\1\0\0\0\1\0\0\0\4\3\2\1\2\1",
      24);
  std::string wanted(
      "SYTRACE1"
      "\1\0\0\0\x2c\1\0\0\1\0\0\0\0\0\0\0\1\0\0\0m",
      29);
  wanted += sequence;
  const uint64_t hash = Fnv1a(sequence);
  for (int i = 0; i < 8; ++i) wanted.push_back(static_cast<char>(hash >> (8 * i)));
  EXPECT_EQ(SerializeTrace(trace), wanted);
}

TEST(TraceFileTest, ComesBackAsItWent) {
  const RoutingTrace trace = SmallTrace();
  const absl::StatusOr<RoutingTrace> parsed = ParseTrace(SerializeTrace(trace));
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->model, "hash");
  EXPECT_EQ(parsed->shape, trace.shape);
  ASSERT_EQ(parsed->channels.size(), 1u);
  EXPECT_EQ(parsed->channels[0].name, "probe");
  EXPECT_EQ(parsed->channels[0].num_predicted, 1);
  ASSERT_EQ(parsed->sequences.size(), 2u);
  EXPECT_TRUE(parsed->sequences[0] == trace.sequences[0]);
  EXPECT_TRUE(parsed->sequences[1] == trace.sequences[1]);
}

TEST(TraceFileTest, GrowsByAppending) {
  const RoutingTrace trace = SmallTrace();
  std::string bytes;
  AppendTraceHeader(trace, &bytes);
  for (size_t read = 0; read <= trace.sequences.size(); ++read) {  // a header alone is a file
    const absl::StatusOr<RoutingTrace> parsed = ParseTrace(bytes);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_EQ(parsed->sequences.size(), read);
    for (size_t i = 0; i < read; ++i) EXPECT_TRUE(parsed->sequences[i] == trace.sequences[i]);
    if (read < trace.sequences.size()) AppendTraceSequence(trace, trace.sequences[read], &bytes);
  }
}

TEST(TraceFileTest, OfATornFileWhatIsWholeIsRead) {
  const std::string bytes = SerializeTrace(SmallTrace());
  absl::Status torn;
  const absl::StatusOr<RoutingTrace> trace = ParseTrace(absl::string_view(bytes).substr(0, bytes.size() - 1), &torn);
  ASSERT_TRUE(trace.ok()) << trace.status();
  EXPECT_EQ(trace->sequences.size(), 1u);
  EXPECT_THAT(std::string(torn.message()), HasSubstr("sequence 1"));
}

TEST(TraceFileTest, NamesWhatIsWrongWithTheHeader) {
  std::string bytes = SerializeTrace(SmallTrace());
  EXPECT_THAT(ErrorOf("SYT"), HasSubstr("the magic \"SYTRACE1\" wants 8 bytes, 3 are left"));
  std::string other = bytes;
  other[7] = '2';
  EXPECT_THAT(ErrorOf(other), HasSubstr("starts with \"SYTRACE2\", not with \"SYTRACE1\""));
  const auto with = [&](size_t at, char value) {
    std::string copy = bytes;
    copy[at] = value;
    return ErrorOf(copy);
  };
  EXPECT_THAT(with(8, 0), HasSubstr("byte 8: number of layers is 0, not in [1, 4096]"));
  EXPECT_THAT(with(14, 1), HasSubstr("number of experts is 65540, not in [1, 32767]"));
  EXPECT_THAT(with(16, 5), HasSubstr("top_k is 5, not in [1, 4]"));
  EXPECT_THAT(with(20, 65), HasSubstr("number of channels is 65, not in [0, 64]"));
  EXPECT_THAT(with(26, 1), HasSubstr("length of model is 65540, not in [0, 4096]"));
  EXPECT_THAT(with(25, 4), HasSubstr("byte 28: truncated: model wants 1028 bytes, "));
  EXPECT_THAT(with(41, 5), HasSubstr("predictions of channel 0 is 5, not in [1, 4]"));
}

TEST(TraceFileTest, NamesWhatIsWrongWithASequence) {
  RoutingTrace trace = SmallTrace();
  trace.sequences.resize(1);
  const std::string bytes = SerializeTrace(trace);
  std::string header;
  AppendTraceHeader(trace, &header);
  const size_t begin = header.size();
  const size_t tokens = begin + 4 + 4 + 5 + 8;
  const size_t experts = tokens + 3 * 4;
  const size_t predictions = experts + 12 * 2;
  const auto error = [&](size_t at, int64_t value, int width) {
    return ErrorOf(Patched(bytes, at, value, width, begin));
  };
  EXPECT_THAT(error(begin, 'T', 1), HasSubstr("sequence 0: byte 45: marker is 0x31514554, not 0x31514553"));
  EXPECT_THAT(error(begin + 4, -1, 4), HasSubstr("length of label is 4294967295, not in [0, 4096]"));
  EXPECT_THAT(error(tokens - 8, 4, 4), HasSubstr("num_prompt is 4 of 3 tokens"));
  EXPECT_THAT(error(tokens - 4, -1, 4), HasSubstr("num_tokens is 4294967295, not in [0, 2147483647]"));
  EXPECT_THAT(error(tokens - 4, 0x7fffffff, 4), HasSubstr("truncated: 2147483647 tokens of 16 bytes, 56 are left"));
  EXPECT_THAT(error(tokens + 4, -7, 4), HasSubstr("byte 70: token id -7 is negative"));
  EXPECT_THAT(error(experts, 4, 2), HasSubstr("experts: expert 4 is not in [-1, 4)"));
  EXPECT_THAT(error(experts, -2, 2), HasSubstr("experts: expert -2 is not in [-1, 4)"));
  EXPECT_THAT(error(experts + 2, 0, 2), HasSubstr("experts: expert 0 twice for one token and layer"));
  EXPECT_THAT(error(predictions, 9, 2), HasSubstr("predictions of \"probe\": expert 9 is not in [-1, 4)"));
  std::string damaged = bytes;
  damaged[experts] = 9;  // not even an expert, but above all not what was written
  EXPECT_THAT(ErrorOf(damaged), HasSubstr("checksum is 0x"));
}

TEST(TraceFileTest, NoPrefixIsTakenForTheWhole) {
  const std::string bytes = SerializeTrace(SmallTrace());
  std::string header;
  AppendTraceHeader(SmallTrace(), &header);
  for (size_t length = 0; length < bytes.size(); ++length) {
    const absl::StatusOr<RoutingTrace> trace = ParseTrace(absl::string_view(bytes).substr(0, length));
    if (trace.ok()) {
      EXPECT_LT(trace->sequences.size(), 2u);  // cut between sequences
      EXPECT_TRUE(length == header.size() || trace->sequences.size() == 1) << length;
    } else {
      EXPECT_THAT(std::string(trace.status().message()), HasSubstr("truncated: ")) << length;
    }
  }
}

TEST(TraceFileTest, RandomDamageIsAnErrorOrAWholeTrace) {
  const std::string bytes = SerializeTrace(SmallTrace());
  std::string header;
  AppendTraceHeader(SmallTrace(), &header);
  std::mt19937_64 random(7);
  for (int round = 0; round < 20000; ++round) {
    std::string damaged = bytes;
    const bool in_sequences = round % 2 == 0;
    const size_t from = in_sequences ? header.size() : 0;
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips)
      damaged[from + random() % (damaged.size() - from)] ^= static_cast<char>(1 + random() % 255);
    const absl::StatusOr<RoutingTrace> trace = ParseTrace(damaged);
    if (damaged == bytes) continue;  // a flip undone by another
    if (in_sequences) {              // the checksum sees every damage of a sequence
      EXPECT_FALSE(trace.ok());
    } else if (trace.ok()) {
      EXPECT_EQ(SerializeTrace(*trace), damaged);
    }
  }
}

}  // namespace
}  // namespace switchyard::popularity
