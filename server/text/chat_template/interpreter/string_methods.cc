// str's methods.  `find` and its relatives count in code points; the rest works on bytes, which UTF-8 allows.
#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/filters/format.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/filters/text_ops.h"
#include "server/text/chat_template/interpreter/methods.h"
#include "server/text/chat_template/interpreter/operators.h"

namespace switchyard::jinja {
namespace {

template <std::string (*kMap)(absl::string_view)>
absl::StatusOr<Value> MapMethod(Runtime& runtime, const Value& self, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind("str method", args, {}).status());
  RETURN_IF_ERROR(runtime.StepsForCharacters(self.AsString().size()));
  return runtime.NewString(kMap(self.AsString()));
}

template <Side kSide>
absl::StatusOr<Value> StripMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("strip", args, {"chars"}));
  RETURN_IF_ERROR(runtime.StepsForCharacters(self.AsString().size()));
  if (!bound.Has(0) || bound.Get(0).IsNone()) return runtime.NewString(Strip(self.AsString(), kSide));
  ASSIGN_OR_RETURN(const absl::string_view chars, bound.Text(0, ""));
  RETURN_IF_ERROR(runtime.StepsForCharacters(chars.size()));
  return runtime.NewString(StripChars(self.AsString(), chars, kSide));
}

template <bool kFromRight>
absl::StatusOr<Value> SplitMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("split", args, {"sep", "maxsplit"}));
  ASSIGN_OR_RETURN(const int64_t max_splits, bound.Int(1, -1));
  const size_t limit = max_splits < 0 ? std::numeric_limits<size_t>::max() : static_cast<size_t>(max_splits);
  const bool by_space = !bound.Has(0) || bound.Get(0).IsNone();
  ASSIGN_OR_RETURN(const absl::string_view separator, bound.Text(0, ""));
  if (!by_space && separator.empty()) return Error("split: empty separator");
  const std::string& text = self.AsString();
  RETURN_IF_ERROR(runtime.Allocate(text.size()));
  RETURN_IF_ERROR(by_space ? runtime.StepsForCharacters(text.size())
                           : runtime.StepsForBytes(text.size() + separator.size()));
  const auto pieces = by_space ? SplitAtSpace(text, limit, kFromRight) : SplitAt(text, separator, limit, kFromRight);
  return NewStringList(runtime, pieces);
}

absl::StatusOr<Value> SplitLinesMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("splitlines", args, {"keepends"}));
  RETURN_IF_ERROR(runtime.Allocate(self.AsString().size()));
  RETURN_IF_ERROR(runtime.StepsForCharacters(self.AsString().size()));
  return NewStringList(runtime, SplitLines(self.AsString(), bound.Flag(0, false)));
}

// Text between the optional code-point bounds of arguments 1 and 2, and the code points before it.
absl::StatusOr<std::pair<absl::string_view, int64_t>> Window(Runtime& runtime, const Value& self, const Bound& bound) {
  const absl::string_view text = self.AsString();
  if (!bound.Has(1) && !bound.Has(2)) return std::make_pair(text, int64_t{0});
  RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
  const auto characters = SplitCodePoints(text);
  const auto length = static_cast<int64_t>(characters.size());
  ASSIGN_OR_RETURN(const SliceIndices at, ResolveSlice(bound.Get(1), bound.Get(2), Value::None(), length));
  const auto byte_at = [&](int64_t i) {
    return i >= length ? text.size() : static_cast<size_t>(characters[static_cast<size_t>(i)].data() - text.data());
  };
  const size_t begin = byte_at(at.begin);
  return std::make_pair(text.substr(begin, byte_at(at.begin + at.count) - begin), at.begin);
}

template <bool kPrefix>
absl::StatusOr<Value> AffixMethod(Runtime& runtime, const Value& self, const Args& args) {
  const absl::string_view callee = kPrefix ? "startswith" : "endswith";
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind(callee, args, {"affix", "start", "end"}, 1));
  ASSIGN_OR_RETURN(const auto window, Window(runtime, self, bound));
  const absl::string_view text = window.first;
  const Value affixes = bound.Get(0);
  const std::vector<Value> one = {affixes};
  for (const Value& affix : affixes.IsTuple() ? affixes.sequence()->items : one) {
    RETURN_IF_ERROR(runtime.Steps());
    if (!affix.IsString()) return Error(callee, " takes a str or a tuple of str, not ", affix.TypeName());
    const absl::string_view a = affix.AsString();
    if (a.size() > text.size()) continue;
    RETURN_IF_ERROR(runtime.StepsForBytes(a.size()));
    if (text.substr(kPrefix ? 0 : text.size() - a.size(), a.size()) == a) return Value::Bool(true);
  }
  return Value::Bool(false);
}

// find, rfind, index and rindex.
template <bool kLast, bool kMustBeThere>
absl::StatusOr<Value> FindMethodOf(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("find", args, {"sub", "start", "end"}, 1));
  ASSIGN_OR_RETURN(const absl::string_view needle, bound.Text(0, ""));
  RETURN_IF_ERROR(runtime.StepsForBytes(self.AsString().size() + needle.size()));
  ASSIGN_OR_RETURN(const auto window, Window(runtime, self, bound));
  const size_t at = kLast ? FindLastText(window.first, needle) : FindText(window.first, needle, 0);
  if (at != kNone) {
    return Value::Int(window.second + static_cast<int64_t>(CountCodePoints(window.first.substr(0, at))));
  }
  if (kMustBeThere) return Error("substring not found");
  return Value::Int(-1);
}

absl::StatusOr<Value> CountMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("count", args, {"sub", "start", "end"}, 1));
  ASSIGN_OR_RETURN(const absl::string_view needle, bound.Text(0, ""));
  RETURN_IF_ERROR(runtime.StepsForBytes(self.AsString().size()));
  ASSIGN_OR_RETURN(const auto window, Window(runtime, self, bound));
  if (needle.empty()) return Value::Int(static_cast<int64_t>(CountCodePoints(window.first)) + 1);
  int64_t count = 0;
  for (size_t at = FindText(window.first, needle, 0); at != kNone;
       at = FindText(window.first, needle, at + needle.size())) {
    RETURN_IF_ERROR(runtime.Steps());
    ++count;
  }
  return Value::Int(count);
}

absl::StatusOr<Value> ReplaceMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("replace", args, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(const absl::string_view from, bound.Text(0, ""));
  ASSIGN_OR_RETURN(const absl::string_view to, bound.Text(1, ""));
  ASSIGN_OR_RETURN(const int64_t count, bound.Int(2, -1));
  return ReplaceText(runtime, self.AsString(), {from, to, count});
}

absl::StatusOr<Value> JoinMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("join", args, {"iterable"}, 1));
  ASSIGN_OR_RETURN(const SequencePtr items, Iterate(runtime, bound.Get(0)));
  RETURN_IF_ERROR(runtime.Steps(static_cast<int64_t>(items->items.size())));
  std::string out;
  for (const Value& item : items->items) {
    if (!item.IsString()) return Error("join: expected str, not ", item.TypeName());
    if (&item != &items->items.front()) out += self.AsString();
    out += item.AsString();
    if (out.size() > runtime.limits().max_value_bytes) RETURN_IF_ERROR(runtime.Allocate(out.size()));
  }
  return runtime.NewString(std::move(out));
}

absl::StatusOr<Value> FormatMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(std::string text, FormatBraces(runtime, self.AsString(), args));
  return runtime.NewString(std::move(text));
}

template <bool kPrefix>
absl::StatusOr<Value> RemoveAffixMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind(kPrefix ? "removeprefix" : "removesuffix", args, {"affix"}, 1));
  ASSIGN_OR_RETURN(const absl::string_view affix, bound.Text(0, ""));
  absl::string_view text = self.AsString();
  RETURN_IF_ERROR(runtime.StepsForBytes(std::min(text.size(), affix.size())));
  if (text.size() >= affix.size() && text.substr(kPrefix ? 0 : text.size() - affix.size(), affix.size()) == affix) {
    kPrefix ? text.remove_prefix(affix.size()) : text.remove_suffix(affix.size());
  }
  return runtime.NewString(text);
}

template <bool (*kTest)(int32_t)>
absl::StatusOr<Value> AllMethod(Runtime& runtime, const Value& self, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind("str method", args, {}).status());
  RETURN_IF_ERROR(runtime.StepsForCharacters(self.AsString().size()));
  const absl::string_view text = self.AsString();
  bool all = !text.empty();
  ForEachCodePoint(text, [&](int32_t c, absl::string_view) { all = all && kTest(c); });
  return Value::Bool(all);
}

template <bool kUpper>
absl::StatusOr<Value> CaseMethod(Runtime& runtime, const Value& self, const Args&) {
  RETURN_IF_ERROR(runtime.StepsForCharacters(self.AsString().size()));
  return Value::Bool(HasCase(self.AsString(), kUpper));
}

// ljust, rjust and center.
template <Side kSide>
absl::StatusOr<Value> JustifyMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("justify", args, {"width", "fillchar"}, 1));
  ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  ASSIGN_OR_RETURN(const absl::string_view fill, bound.Text(1, " "));
  if (CountCodePoints(fill) != 1) return Error("the fill character must be exactly one character long");
  return Justify(runtime, self.AsString(), {width, fill, kSide});
}

absl::StatusOr<Value> ZfillMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("zfill", args, {"width"}, 1));
  ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 0));
  const std::string& text = self.AsString();
  const bool has_sign = !text.empty() && (text[0] == '-' || text[0] == '+');
  const absl::string_view sign = absl::string_view(text).substr(0, has_sign ? 1 : 0);
  const absl::string_view digits = absl::string_view(text).substr(sign.size());
  const int64_t rest = width - static_cast<int64_t>(sign.size());
  ASSIGN_OR_RETURN(const Value padded, Justify(runtime, digits, {rest, "0", Side::kRight}));
  return runtime.NewString(absl::StrCat(sign, padded.AsString()));
}

template <bool kFromRight>
absl::StatusOr<Value> PartitionMethod(Runtime& runtime, const Value& self, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("partition", args, {"sep"}, 1));
  ASSIGN_OR_RETURN(const absl::string_view separator, bound.Text(0, ""));
  if (separator.empty()) return Error("partition: empty separator");
  const absl::string_view text = self.AsString();
  RETURN_IF_ERROR(runtime.Allocate(text.size() + 128));
  RETURN_IF_ERROR(runtime.StepsForBytes(text.size() + separator.size()));
  const size_t at = kFromRight ? FindLastText(text, separator) : FindText(text, separator, 0);
  std::string parts[3];
  if (at == kNone) {
    parts[kFromRight ? 2 : 0] = std::string(text);
  } else {
    parts[0] = std::string(text.substr(0, at));
    parts[1] = std::string(separator);
    parts[2] = std::string(text.substr(at + separator.size()));
  }
  return runtime.NewTuple({Value::String(parts[0]), Value::String(parts[1]), Value::String(parts[2])});
}

constexpr Named<Method> kStringMethods[] = {
    {"capitalize", MapMethod<Capitalize>},
    {"casefold", MapMethod<ToLower>},
    {"center", JustifyMethod<Side::kBoth>},
    {"count", CountMethod},
    {"endswith", AffixMethod<false>},
    {"find", FindMethodOf<false, false>},
    {"format", FormatMethod},
    {"index", FindMethodOf<false, true>},
    {"isalnum", AllMethod<IsAlnum>},
    {"isalpha", AllMethod<IsAlpha>},
    {"isdecimal", AllMethod<IsDigit>},
    {"isdigit", AllMethod<IsDigit>},
    {"islower", CaseMethod<false>},
    {"isnumeric", AllMethod<IsDigit>},
    {"isspace", AllMethod<IsSpace>},
    {"isupper", CaseMethod<true>},
    {"join", JoinMethod},
    {"ljust", JustifyMethod<Side::kLeft>},
    {"lower", MapMethod<ToLower>},
    {"lstrip", StripMethod<Side::kLeft>},
    {"partition", PartitionMethod<false>},
    {"removeprefix", RemoveAffixMethod<true>},
    {"removesuffix", RemoveAffixMethod<false>},
    {"replace", ReplaceMethod},
    {"rfind", FindMethodOf<true, false>},
    {"rindex", FindMethodOf<true, true>},
    {"rjust", JustifyMethod<Side::kRight>},
    {"rpartition", PartitionMethod<true>},
    {"rsplit", SplitMethod<true>},
    {"rstrip", StripMethod<Side::kRight>},
    {"split", SplitMethod<false>},
    {"splitlines", SplitLinesMethod},
    {"startswith", AffixMethod<true>},
    {"strip", StripMethod<Side::kBoth>},
    {"title", MapMethod<TitleCase>},
    {"upper", MapMethod<ToUpper>},
    {"zfill", ZfillMethod},
};

}  // namespace

Method FindStringMethod(absl::string_view name) { return FindNamed(kStringMethods, name); }

}  // namespace switchyard::jinja
