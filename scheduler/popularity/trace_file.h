// A routing trace as bytes: the file that `switchyard trace record` writes, and that profiles, the simulator and the
// benchmarks read.
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
// So a file grows by appending sequences, and of one that was cut short every whole sequence can still be read.  A
// header without sequences is a whole file.
// Does not do: files (bytes in, bytes out), compression.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/popularity/routing_trace.h"

namespace switchyard {

// What the format can say, whatever a header claims.
inline constexpr int kMaxTraceLayers = 4096;
inline constexpr int kMaxTraceExperts = 32767;  // ids are int16
inline constexpr int kMaxTraceChannels = 64;
inline constexpr int kMaxTraceNameBytes = 4096;  // model, label, name of a channel

// The file's beginning: everything of `trace` but its sequences.  REQUIRES: within the limits above; 1 <= K, M <= E.
void AppendTraceHeader(const RoutingTrace& trace, std::string* bytes);
// One more sequence.  REQUIRES: its arrays have the sizes that `trace`'s shape and channels say.
void AppendTraceSequence(const RoutingTrace& trace, const TraceSequence& sequence, std::string* bytes);
// All of it.
std::string SerializeTrace(const RoutingTrace& trace);

// Reads one sequence after the other, so that a file is never held twice.  Borrows the bytes.  Thread-compatible.
// Errors are InvalidArgument and name the sequence (from 0), the byte, what was wanted and what was there.  Nothing is
// allocated that the bytes do not back, whatever counts they claim.
class TraceReader {
 public:
  // Reads the header.
  static absl::StatusOr<TraceReader> Open(absl::string_view bytes);

  // The trace without its sequences.
  const RoutingTrace& header() const { return header_; }
  // No sequence is left.
  bool AtEnd() const { return position_ == bytes_.size(); }
  // How many sequences were read, and bytes passed.
  int64_t num_read() const { return num_read_; }
  uint64_t position() const { return position_; }
  // The next sequence.  After an error the reader stays before the sequence that has it.  REQUIRES: !AtEnd().
  absl::StatusOr<TraceSequence> Next();

 private:
  explicit TraceReader(absl::string_view bytes) : bytes_(bytes) {}

  absl::string_view bytes_;
  RoutingTrace header_;
  uint64_t position_ = 0;
  int64_t num_read_ = 0;
};

// All of it.
absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes);

}  // namespace switchyard
