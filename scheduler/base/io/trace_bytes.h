// Routing-trace files: their bytes, written piece by piece.
//
// Everything is little-endian and unaligned; a string is u32 length, then its bytes.  L, E, K, M as in RoutingTrace.
//
//   bytes          what
//   8              "SYTRACE1"
//   4 x u32        L (MoE layers), E (experts), K (top_k), number of channels C
//   string         model: hash of the weights that routed (may be empty: unknown)
//   C times        string name of the channel, u32 M
//   then sequences until the end of the file, each:
//   u32            0x31514553 ("SEQ1")
//   string         label
//   u32            num_prompt, <= T
//   u32            T (tokens)
//   T x i32        token ids, >= 0
//   T*L*K x i16    experts: token by token, layer by layer, best first; in [-1, E), -1 = dropped, else distinct
//   C times        T*L*M x i16 predictions of that channel; in [-1, E), -1 = none, else distinct
//   u64            FNV-1a of the sequence's bytes from its marker up to here
//
// A file grows by appending sequences; of one that was cut short every whole sequence can be read.  A header alone is a
// whole file.  scheduler/popularity/trace/trace_file.h reads them.  Pure: bytes, no files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard {

inline constexpr absl::string_view kTraceMagic = "SYTRACE1";
inline constexpr uint32_t kTraceSequenceMarker = 0x31514553;

// The limits of the format, whatever a header claims.
inline constexpr int kMaxTraceLayers = 4096;
inline constexpr int kMaxTraceExperts = 32767;  // ids are int16
inline constexpr int kMaxTraceChannels = 64;
inline constexpr int kMaxTraceNameBytes = 4096;  // model, label, name of a channel

// `values` as the format has them: little-endian.
std::string TraceIds(absl::Span<const int16_t> values);

// A file's beginning.
struct TraceHead {
  int num_layers = 0;   // L, [1, kMaxTraceLayers]
  int num_experts = 0;  // E, [1, kMaxTraceExperts]
  int top_k = 0;        // K, [1, E]
  absl::string_view model;
  struct Channel {
    absl::string_view name;
    int num_predicted = 0;  // M, [1, E]
  };
  std::vector<Channel> channels = {};
};
// REQUIRES: within those limits.
void AppendTraceHead(const TraceHead& head, std::string* bytes);

// One sequence behind it.  Sizes are as the head says: of T token ids, T * L * K experts.
struct TraceBody {
  absl::string_view label;
  int32_t num_prompt = 0;                           // [0, T]
  absl::Span<const int32_t> token_ids = {};         // [T]
  absl::string_view experts;                        // [T, L, K] as TraceIds
  std::vector<absl::string_view> predictions = {};  // by channel: [T, L, M] as TraceIds
};
void AppendTraceBody(const TraceBody& body, std::string* bytes);

}  // namespace switchyard
