#include "server/observe/trace_context.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"

namespace switchyard::server {
namespace {

// "00-<trace id>-<parent id>-<flags>"
constexpr size_t kVersionDigits = 2, kTraceDigits = 32, kSpanDigits = 16, kFlagDigits = 2;
constexpr size_t kVersion0Length = kVersionDigits + kTraceDigits + kSpanDigits + kFlagDigits + 3;
constexpr size_t kMostMembers = 32;
constexpr size_t kMostKeyBytes = 256;

bool IsLowerHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isdigit(c) || (c >= 'a' && c <= 'f'); });
}
bool IsZero(absl::string_view digits) {
  return std::all_of(digits.begin(), digits.end(), [](char c) { return c == '0'; });
}
int HexDigit(char c) { return absl::ascii_isdigit(c) ? c - '0' : c - 'a' + 10; }

// KEY=VALUE of a tracestate.  A key has lower-case letters, digits and _-*/@; a value is printable ASCII without commas
// and equals signs.
bool IsStateMember(absl::string_view member) {
  const size_t equals = member.find('=');
  if (equals == absl::string_view::npos || equals == 0 || equals > kMostKeyBytes) return false;
  const absl::string_view key = member.substr(0, equals), value = member.substr(equals + 1);
  const bool key_is_good = std::all_of(key.begin(), key.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || absl::string_view("_-*/@").find(c) != std::string::npos;
  });
  const bool value_is_good =
      !value.empty() && value.size() <= kMostKeyBytes &&
      std::all_of(value.begin(), value.end(), [](char c) { return c >= ' ' && c <= '~' && c != ',' && c != '='; });
  return key_is_good && value_is_good && (absl::ascii_islower(key[0]) || absl::ascii_isdigit(key[0]));
}

// Returns the list as it may go on; empty: there is none, or it is bad.
std::string ParseState(absl::Span<const absl::string_view> values) {
  std::vector<std::string> members;
  for (const absl::string_view value : values) {
    for (absl::string_view member : absl::StrSplit(value, ',')) {
      member = absl::StripAsciiWhitespace(member);
      if (member.empty()) continue;  // allowed
      if (!IsStateMember(member)) return "";
      members.emplace_back(member);
    }
  }
  std::string state = members.size() > kMostMembers ? std::string() : absl::StrJoin(members, ",");
  if (state.size() > kMostTracestateBytes) state.clear();
  return state;
}

// Whether the trace is among the `ratio` of all that are sampled; by its last 56 bits, which are random in any case.
bool IsAmong(absl::string_view trace_id, double ratio) {
  constexpr size_t kRandomDigits = 14;
  uint64_t at = 0;
  for (const char c : trace_id.substr(kTraceDigits - kRandomDigits)) at = at * 16 + static_cast<uint64_t>(HexDigit(c));
  return at < static_cast<uint64_t>(ratio * static_cast<double>(uint64_t{1} << (4 * kRandomDigits)));
}

}  // namespace

std::optional<TraceContext> ParseTraceContext(absl::Span<const absl::string_view> traceparents,
                                              absl::Span<const absl::string_view> tracestates) {
  if (traceparents.size() != 1) return std::nullopt;
  const absl::string_view text = absl::StripAsciiWhitespace(traceparents.front());
  if (text.size() < kVersion0Length) return std::nullopt;
  const absl::string_view version = text.substr(0, kVersionDigits);
  const absl::string_view trace = text.substr(3, kTraceDigits);
  const absl::string_view span = text.substr(4 + kTraceDigits, kSpanDigits);
  const absl::string_view flags = text.substr(5 + kTraceDigits + kSpanDigits, kFlagDigits);
  const bool dashes = text[2] == '-' && text[3 + kTraceDigits] == '-' && text[4 + kTraceDigits + kSpanDigits] == '-';
  if (!dashes || !IsLowerHex(version) || !IsLowerHex(trace) || !IsLowerHex(span) || !IsLowerHex(flags))
    return std::nullopt;
  if (version == "ff" || IsZero(trace) || IsZero(span)) return std::nullopt;
  if (text.size() > kVersion0Length && (version == "00" || text[kVersion0Length] != '-')) return std::nullopt;
  return TraceContext{.trace_id = std::string(trace),
                      .parent_span_id = std::string(span),
                      .sampled = (HexDigit(flags[1]) & 1) != 0,
                      .state = ParseState(tracestates)};
}

TraceContext BeginSpan(std::optional<TraceContext> parent, double ratio, const RandomBits& random) {
  TraceContext context;
  if (parent.has_value()) {
    context = *std::move(parent);
  } else {
    context.trace_id = DrawSpanId(random);
    context.trace_id += DrawSpanId(random);
    context.sampled = IsAmong(context.trace_id, ratio);
  }
  context.span_id = DrawSpanId(random);
  return context;
}

std::string DrawSpanId(const RandomBits& random) {
  uint64_t bits = random();
  while (bits == 0) bits = random();
  return absl::StrCat(absl::Hex(bits, absl::kZeroPad16));
}

}  // namespace switchyard::server
