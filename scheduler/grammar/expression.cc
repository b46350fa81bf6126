#include "scheduler/grammar/expression.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_format.h"

namespace switchyard::grammar {
namespace {

constexpr uint32_t kFirstPrintable = 0x20;

// How a character must be escaped in a JSON string; empty: it need not.
std::string JsonEscape(uint32_t c) {
  constexpr absl::string_view kShort = "\"\\\b\f\n\r\t", kLetters = "\"\\bfnrt";
  if (c < 0x80) {
    if (const size_t at = kShort.find(static_cast<char>(c)); at != absl::string_view::npos) return {'\\', kLetters[at]};
  }
  return c < kFirstPrintable ? absl::StrFormat("\\u%04x", c) : std::string();
}

StateId EmitChars(const CharClass& chars, Spelling spelling, StateId from, Grammar* grammar) {
  if (spelling == Spelling::kPlain) return grammar->OneOf(from, chars);
  static const CharClass escaped = {{0, kFirstPrintable - 1}, {'"', '"'}, {'\\', '\\'}};
  const StateId to = grammar->OneOf(from, chars.Without(escaped));
  for (const CharClass::Range& range : escaped.ranges()) {
    for (uint32_t c = range.low; c <= range.high; ++c) {
      if (chars.Contains(c)) grammar->Empty(grammar->Literal(from, JsonEscape(c)), to);
    }
  }
  return to;
}

bool IsOneByte(const Expression& e) {
  return e.kind == Expression::Kind::kChars && !e.chars.empty() && e.chars.ranges().back().high < 0x80;
}

StateId EmitRepeat(const Expression& e, Spelling spelling, StateId from, Grammar* grammar) {
  const Expression& part = e.parts[0];
  if (e.max == 0) return from;
  if (e.max == 1 || (e.max == kNoMaximum && e.min <= 1 && IsOneByte(part))) {
    // The loop has states of its own, so that nothing else that begins at `from` may follow it.
    const StateId begin = grammar->NewState(), end = grammar->NewState();
    grammar->Empty(from, begin);
    if (e.min == 0) grammar->Empty(begin, end);
    const StateId behind = Emit(part, spelling, begin, grammar);
    grammar->Empty(behind, end);
    if (e.max == kNoMaximum) grammar->Empty(behind, begin);
    return end;
  }
  const RuleId rule = grammar->AddRule("repetition");
  grammar->Define(rule, [&](StateId start) { return Emit(part, spelling, start, grammar); });
  return grammar->Repeat(from, e.min, e.max, rule);
}

}  // namespace

Expression Expression::Text(absl::string_view utf8) {
  Expression out;
  for (size_t i = 0; i < utf8.size();) {
    const auto lead = static_cast<uint8_t>(utf8[i]);
    const int length = lead < 0x80 ? 1 : lead < 0xc0 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    if (length == 0 || i + static_cast<size_t>(length) > utf8.size()) {
      ++i;
      continue;
    }
    uint32_t c = length == 1 ? lead : lead & (0x7fu >> length);
    for (int k = 1; k < length; ++k) c = (c << 6) | (static_cast<uint8_t>(utf8[i + k]) & 0x3fu);
    out.parts.push_back(Chars({{c, c}}));
    i += static_cast<size_t>(length);
  }
  return out;
}

Expression Expression::Times(Expression part, int32_t min, int32_t max) {
  Expression out{.kind = Kind::kRepeat, .min = min, .max = max};
  out.parts.push_back(std::move(part));
  return out;
}

StateId Emit(const Expression& e, Spelling spelling, StateId from, Grammar* grammar) {
  switch (e.kind) {
    case Expression::Kind::kChars:
      return EmitChars(e.chars, spelling, from, grammar);
    case Expression::Kind::kSequence:
      for (const Expression& part : e.parts) from = Emit(part, spelling, from, grammar);
      return from;
    case Expression::Kind::kChoice: {
      const StateId to = grammar->NewState();
      for (const Expression& part : e.parts) {
        const StateId begin = grammar->NewState();
        grammar->Empty(from, begin);
        grammar->Empty(Emit(part, spelling, begin, grammar), to);
      }
      return to;
    }
    case Expression::Kind::kRepeat:
      return EmitRepeat(e, spelling, from, grammar);
    case Expression::Kind::kRule:
      return grammar->Call(from, e.rule);
  }
  return from;
}

LengthRange LengthOf(const Expression& e) {
  const auto capped = [](int64_t length) { return std::min<int64_t>(length, kNoMaximum); };
  LengthRange out;
  switch (e.kind) {
    case Expression::Kind::kChars:
      return {1, 1};
    case Expression::Kind::kSequence:
      for (const Expression& part : e.parts) {
        const LengthRange length = LengthOf(part);
        out = {capped(out.min + length.min), capped(out.max + length.max)};
      }
      return out;
    case Expression::Kind::kChoice:
      out.min = kNoMaximum;
      for (const Expression& part : e.parts) {
        const LengthRange length = LengthOf(part);
        out = {std::min(out.min, length.min), std::max(out.max, length.max)};
      }
      return out;
    case Expression::Kind::kRepeat: {
      const LengthRange length = LengthOf(e.parts[0]);
      out.min = capped(length.min * e.min);
      out.max = length.max == 0 ? 0 : e.max == kNoMaximum ? kNoMaximum : capped(length.max * e.max);
      return out;
    }
    case Expression::Kind::kRule:
      return {0, kNoMaximum};
  }
  return out;
}

}  // namespace switchyard::grammar
