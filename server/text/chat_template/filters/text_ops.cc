#include "server/text/chat_template/filters/text_ops.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::jinja {
namespace {

bool SpaceAt(absl::string_view text, size_t pos, size_t* len) {
  const auto [c, length] = DecodeAt(text, pos);
  *len = length;
  return IsSpace(c);
}

std::vector<absl::string_view> SplitRightAtSpace(absl::string_view text, size_t limit) {
  // Cuts at every space first, then joins the leftmost words beyond the limit again.
  std::vector<absl::string_view> words = SplitAtSpace(text, kNone, false);
  if (words.size() <= limit || words.empty()) return words;
  const size_t merged = words.size() - limit;  // words in the first piece
  const char* begin = text.data();
  const char* end = words[merged - 1].data() + words[merged - 1].size();
  std::vector<absl::string_view> out = {absl::string_view(begin, static_cast<size_t>(end - begin))};
  out.insert(out.end(), words.begin() + static_cast<ptrdiff_t>(merged), words.end());
  return out;
}

// Searching from the right is searching the mirror image from the left: linear, which comparing at each place is not.
std::string Reversed(absl::string_view text) { return std::string(text.rbegin(), text.rend()); }

std::vector<absl::string_view> SplitRightAt(absl::string_view text, absl::string_view separator, size_t limit) {
  const std::string mirror = Reversed(text);
  const std::vector<absl::string_view> pieces = SplitAt(mirror, Reversed(separator), limit, false);
  std::vector<absl::string_view> out;
  for (auto piece = pieces.rbegin(); piece != pieces.rend(); ++piece) {
    const size_t end = static_cast<size_t>(piece->data() - mirror.data()) + piece->size();
    out.push_back(text.substr(text.size() - end, piece->size()));
  }
  return out;
}

}  // namespace

std::vector<absl::string_view> SplitAtSpace(absl::string_view text, size_t limit, bool from_right) {
  if (from_right) return SplitRightAtSpace(text, limit);
  std::vector<absl::string_view> out;
  size_t pos = 0, len = 0;
  while (true) {
    while (pos < text.size() && SpaceAt(text, pos, &len)) pos += len;
    if (pos >= text.size()) return out;
    const size_t begin = pos;
    if (out.size() >= limit) {
      out.push_back(text.substr(begin));
      return out;
    }
    while (pos < text.size() && !SpaceAt(text, pos, &len)) pos += len;
    out.push_back(text.substr(begin, pos - begin));
  }
}

std::vector<absl::string_view> SplitAt(absl::string_view text, absl::string_view separator, size_t limit,
                                       bool from_right) {
  if (from_right) return SplitRightAt(text, separator, limit);
  std::vector<absl::string_view> out;
  size_t begin = 0;
  while (out.size() < limit) {
    const size_t at = FindText(text, separator, begin);
    if (at == kNone) break;
    out.push_back(text.substr(begin, at - begin));
    begin = at + separator.size();
  }
  out.push_back(text.substr(begin));
  return out;
}

absl::StatusOr<Value> NewStringList(Runtime& runtime, const std::vector<absl::string_view>& pieces) {
  RETURN_IF_ERROR(runtime.Allocate(pieces.size() * 64));
  std::vector<Value> items;
  items.reserve(pieces.size());
  for (absl::string_view piece : pieces) items.push_back(Value::String(std::string(piece)));
  return runtime.NewList(std::move(items));
}

size_t FindLastText(absl::string_view text, absl::string_view needle) {
  const std::string reversed = Reversed(text), reversed_needle = Reversed(needle);
  const size_t at = FindText(reversed, reversed_needle, 0);
  return at == kNone ? kNone : text.size() - at - needle.size();
}

absl::StatusOr<Value> ReplaceText(Runtime& runtime, absl::string_view text, const Replacement& r) {
  RETURN_IF_ERROR(runtime.StepsForBytes(text.size() + r.from.size()));
  std::string out;
  int64_t left = r.count < 0 ? static_cast<int64_t>(text.size()) + 1 : r.count;
  size_t pos = 0;
  while (left-- > 0) {
    const size_t at = FindText(text, r.from, pos);
    if (at == kNone) break;
    RETURN_IF_ERROR(runtime.Steps());
    out.append(std::string(text.substr(pos, at - pos)));
    out.append(r.to.data(), r.to.size());
    pos = at + r.from.size();
    if (r.from.empty()) {  // before every character and at the end
      if (pos >= text.size()) break;
      const size_t len = DecodeAt(text, pos).second;
      out.append(text.data() + pos, len);
      pos += len;
    }
    if (out.size() > runtime.limits().max_value_bytes) RETURN_IF_ERROR(runtime.Allocate(out.size()));
  }
  out.append(std::string(text.substr(pos)));
  return runtime.NewString(std::move(out));
}

absl::StatusOr<Value> Justify(Runtime& runtime, absl::string_view text, const Justification& how) {
  RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
  const auto length = static_cast<int64_t>(CountCodePoints(text));
  if (how.width <= length) return runtime.NewString(text);
  const auto missing = static_cast<size_t>(how.width - length);
  RETURN_IF_ERROR(runtime.Allocate(missing));
  RETURN_IF_ERROR(runtime.Allocate(missing * how.fill.size() + text.size()));
  RETURN_IF_ERROR(runtime.StepsForCharacters(missing));
  // CPython's rule for where the odd space of a centered text goes.
  const size_t centered = missing / 2 + (missing & static_cast<size_t>(how.width) & 1);
  const size_t left = how.side == Side::kLeft ? 0 : how.side == Side::kRight ? missing : centered;
  std::string out;
  for (size_t i = 0; i < left; ++i) absl::StrAppend(&out, how.fill);
  absl::StrAppend(&out, text);
  for (size_t i = left; i < missing; ++i) absl::StrAppend(&out, how.fill);
  return runtime.NewString(std::move(out));
}

bool IsAlnum(int32_t c) { return IsAlpha(c) || IsDigit(c); }

bool HasCase(absl::string_view text, bool upper) {
  bool has_upper = false, has_lower = false;
  ForEachCodePoint(text, [&](int32_t c, absl::string_view) {
    has_upper |= IsUpper(c);
    has_lower |= IsLower(c);
  });
  return upper ? has_upper && !has_lower : has_lower && !has_upper;
}

}  // namespace switchyard::jinja
