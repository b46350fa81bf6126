// A routing trace as bytes: the file that `switchyard trace record` writes, and that profiles, the simulator and the
// benchmarks read.
//
// The format is described byte by byte in scheduler/base/io/trace_bytes.h.
// Does not do: files (bytes in, bytes out), compression.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/byte_io.h"
#include "scheduler/popularity/trace/routing_trace.h"

namespace switchyard::popularity {

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
  // Whether the bytes ended within the last sequence that was asked for: who wrote them was interrupted.
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

// All of it.
absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes);
// The same of a file whose writer was interrupted: what comes before a last sequence that is cut off, if anything does,
// and *torn says what is missing; OK = nothing is.
absl::StatusOr<RoutingTrace> ParseTrace(absl::string_view bytes, absl::Status* torn);

}  // namespace switchyard::popularity
