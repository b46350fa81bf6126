// The place of a request in a distributed trace: W3C Trace Context, https://www.w3.org/TR/trace-context/ (level 2).
//
// Values; pure functions, so thread-safe.  Randomness is a parameter.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace switchyard::server {

// Draws 64 random bits.
using RandomBits = std::function<uint64_t()>;

struct TraceContext {
  std::string trace_id = {};        // 32 lower-case hex digits, not all zero; empty: the request is in no trace
  std::string parent_span_id = {};  // 16 of them: the caller's span; empty: the trace begins here
  std::string span_id = {};         // 16 of them: the request's own span; empty: there is none, as nothing is traced
  bool sampled = false;             // whether its spans are exported
  std::string state = {};           // of `tracestate`, as it came

  bool operator==(const TraceContext& other) const = default;
};

inline constexpr char kTraceparent[] = "traceparent";
inline constexpr char kTracestate[] = "tracestate";
// A longer tracestate may be dropped, says the specification; a shorter one not.
inline constexpr size_t kMostTracestateBytes = 512;

// Reads the values of a call's two headers.  Nothing if there is not exactly one traceparent that the specification
// allows: version ff, upper-case digits, ids of zeros, and other lengths are refused, but of a version after 00 what
// follows the flags behind a dash is ignored.  A bad tracestate is dropped alone; several are joined by commas.
std::optional<TraceContext> ParseTraceContext(absl::Span<const absl::string_view> traceparents,
                                              absl::Span<const absl::string_view> tracestates);

// Completes what came with a request, for a server that exports spans: a span id of its own; where nothing came also a
// new trace, which is sampled if its id falls into `ratio` of all ids.  A parent's choice stays.
TraceContext BeginSpan(std::optional<TraceContext> parent, double ratio, const RandomBits& random);

// Returns a new span's id: 16 lower-case hex digits, not all zero.
std::string DrawSpanId(const RandomBits& random);

}  // namespace switchyard::server
