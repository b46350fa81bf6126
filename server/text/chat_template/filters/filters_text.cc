// Filters that make text.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "scheduler/base/status_macros.h"
#include "server/text/chat_template/filters/code_points.h"
#include "server/text/chat_template/filters/filters.h"
#include "server/text/chat_template/filters/format.h"
#include "server/text/chat_template/filters/python_text.h"
#include "server/text/chat_template/filters/text_ops.h"
#include "server/text/chat_template/value_json.h"

namespace switchyard::jinja {
namespace {

template <std::string (*kMap)(absl::string_view)>
absl::StatusOr<Value> MapText(Runtime& runtime, const Value& input, const Args& args) {
  RETURN_IF_ERROR(Bound::Bind("filter", args, {}).status());
  ASSIGN_OR_RETURN(const std::string text, Str(runtime, input));
  RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
  return runtime.NewString(kMap(text));
}

std::string Identity(absl::string_view text) { return std::string(text); }

std::string EscapeHtml(absl::string_view text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&#34;"}, {"'", "&#39;"}});
}

// Jinja's own title: words begin after whitespace or one of -({[<.
std::string FilterTitle(absl::string_view text) {
  std::string out;
  absl::string_view word;
  const auto flush = [&] {
    out += Capitalize(word);
    word = {};
  };
  for (absl::string_view c : SplitCodePoints(text)) {
    const bool breaks = IsSpace(DecodeAt(c, 0).first) || absl::string_view("-({[<").find(c) != kNone;
    if (breaks) {
      flush();
      absl::StrAppend(&out, c);
    } else {
      word = word.empty() ? c : absl::string_view(word.data(), word.size() + c.size());
    }
  }
  flush();
  return out;
}

std::string StripTags(absl::string_view text) {
  std::string plain;
  while (!text.empty()) {
    const size_t open = text.find('<');
    const size_t close = open == kNone ? open : text.find('>', open);
    absl::StrAppend(&plain, text.substr(0, close == kNone ? text.size() : open));
    text.remove_prefix(close == kNone ? text.size() : close + 1);
  }
  std::string out;
  for (absl::string_view word : SplitAtSpace(plain, kNone, false)) {
    absl::StrAppend(&out, out.empty() ? "" : " ", word);
  }
  return absl::StrReplaceAll(
      out, {{"&lt;", "<"}, {"&gt;", ">"}, {"&#34;", "\""}, {"&quot;", "\""}, {"&#39;", "'"}, {"&amp;", "&"}});
}

std::string UrlEncode(absl::string_view text) {
  std::string out;
  for (const char c : text) {
    const bool plain =
        absl::ascii_isalnum(static_cast<unsigned char>(c)) || absl::string_view("_.-~/").find(c) != kNone;
    if (plain) {
      out.push_back(c);
    } else {
      constexpr char kHex[] = "0123456789ABCDEF";
      out.append({'%', kHex[static_cast<unsigned char>(c) / 16], kHex[static_cast<unsigned char>(c) % 16]});
    }
  }
  return out;
}

absl::StatusOr<Value> Trim(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("trim", args, {"chars"}));
  ASSIGN_OR_RETURN(const std::string text, Str(runtime, input));
  RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
  if (!bound.Has(0) || bound.Get(0).IsNone()) return runtime.NewString(Strip(text, Side::kBoth));
  ASSIGN_OR_RETURN(const absl::string_view chars, bound.Text(0, ""));
  RETURN_IF_ERROR(runtime.StepsForCharacters(chars.size()));
  return runtime.NewString(StripChars(text, chars, Side::kBoth));
}

absl::StatusOr<Value> Replace(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("replace", args, {"old", "new", "count"}, 2));
  ASSIGN_OR_RETURN(const std::string text, Str(runtime, input));
  ASSIGN_OR_RETURN(const std::string from, Str(runtime, bound.Get(0)));
  ASSIGN_OR_RETURN(const std::string to, Str(runtime, bound.Get(1)));
  int64_t count = -1;
  if (!bound.Get(2).IsNone()) {
    ASSIGN_OR_RETURN(count, bound.Int(2, -1));
  }
  return ReplaceText(runtime, text, {from, to, count});
}

absl::StatusOr<Value> Indent(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("indent", args, {"width", "first", "blank"}));
  if (!input.IsString()) return Error("indent: expected str, not ", input.TypeName());
  std::string indention;
  if (bound.Has(0) && bound.Get(0).IsString()) {
    indention = bound.Get(0).AsString();
  } else {
    ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 4));
    RETURN_IF_ERROR(runtime.Allocate(static_cast<size_t>(std::max<int64_t>(width, 0))));
    indention.assign(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  RETURN_IF_ERROR(runtime.StepsForCharacters(input.AsString().size()));
  const std::string text = input.AsString() + "\n";
  const auto lines = SplitLines(text, false);
  RETURN_IF_ERROR(runtime.Allocate(text.size() + lines.size() * (indention.size() + 1)));
  RETURN_IF_ERROR(runtime.StepsForBytes(lines.size() * (indention.size() + 1)));
  std::string out = bound.Flag(1, false) ? indention : "";
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out.push_back('\n');
    if (i > 0 && (bound.Flag(2, false) || !lines[i].empty())) out += indention;
    absl::StrAppend(&out, lines[i]);
  }
  return Value::String(std::move(out));
}

absl::StatusOr<Value> Truncate(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("truncate", args, {"length", "killwords", "end", "leeway"}));
  if (!input.IsString()) return Error("truncate: expected str, not ", input.TypeName());
  ASSIGN_OR_RETURN(const int64_t length, bound.Int(0, 255));
  ASSIGN_OR_RETURN(const absl::string_view end, bound.Text(2, "..."));
  ASSIGN_OR_RETURN(const int64_t leeway, bound.Get(3).IsNone() ? absl::StatusOr<int64_t>(5) : bound.Int(3, 5));
  RETURN_IF_ERROR(runtime.StepsForCharacters(input.AsString().size() + end.size()));
  const auto end_length = static_cast<int64_t>(CountCodePoints(end));
  if (length < end_length) return Error("truncate: expected length >= ", end_length, ", got ", length);
  if (leeway < 0) return Error("truncate: expected leeway >= 0, got ", leeway);
  const auto characters = SplitCodePoints(input.AsString());
  if (static_cast<int64_t>(characters.size()) - leeway <= length) return input;
  const size_t kept = static_cast<size_t>(length - end_length);
  const size_t bytes = static_cast<size_t>(characters[kept].data() - input.AsString().data());
  absl::string_view text = absl::string_view(input.AsString()).substr(0, bytes);
  if (!bound.Flag(1, false)) {
    const size_t space = text.rfind(' ');
    if (space != kNone) text = text.substr(0, space);
  }
  return runtime.NewString(absl::StrCat(text, end));
}

absl::StatusOr<Value> Center(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound, Bound::Bind("center", args, {"width"}));
  ASSIGN_OR_RETURN(const int64_t width, bound.Int(0, 80));
  ASSIGN_OR_RETURN(const std::string text, Str(runtime, input));
  return Justify(runtime, text, {width, " ", Side::kBoth});
}

absl::StatusOr<Value> WordCount(Runtime& runtime, const Value& input, const Args&) {
  ASSIGN_OR_RETURN(const std::string text, Str(runtime, input));
  RETURN_IF_ERROR(runtime.StepsForCharacters(text.size()));
  int64_t words = 0;
  bool in_word = false;
  ForEachCodePoint(text, [&](int32_t c, absl::string_view) {
    const bool is_word = IsAlnum(c) || c == '_';
    words += is_word && !in_word ? 1 : 0;
    in_word = is_word;
  });
  return Value::Int(words);
}

absl::StatusOr<Value> FormatFilter(Runtime& runtime, const Value& input, const Args& args) {
  if (!args.positional.empty() && !args.named.empty())
    return Error("format takes positional or named arguments, not both");
  ASSIGN_OR_RETURN(const std::string text, Str(runtime, input));
  Dict named;
  for (const auto& [name, value] : args.named) (void)named.Set(Value::String(name), value);  // strings always hash
  ASSIGN_OR_RETURN(const Value values,
                   named.size() > 0 ? runtime.NewDict(std::move(named)) : runtime.NewTuple(args.positional));
  ASSIGN_OR_RETURN(std::string out, FormatPercent(runtime, text, values));
  return runtime.NewString(std::move(out));
}

absl::StatusOr<Value> ToJson(Runtime& runtime, const Value& input, const Args& args) {
  ASSIGN_OR_RETURN(const Bound bound,
                   Bound::Bind("tojson", args, {"ensure_ascii", "indent", "separators", "sort_keys"}));
  DumpOptions options;
  options.ensure_ascii = bound.Flag(0, false);
  options.sort_keys = bound.Flag(3, false);
  const Value indent = bound.Get(1);
  if (indent.IsString()) {
    options.indent = indent.AsString();
  } else if (!indent.IsNone()) {
    ASSIGN_OR_RETURN(const int64_t width, bound.Int(1, 0));
    RETURN_IF_ERROR(runtime.Allocate(static_cast<size_t>(std::max<int64_t>(width, 0))));
    options.indent.emplace(static_cast<size_t>(std::max<int64_t>(width, 0)), ' ');
  }
  if (options.indent.has_value()) options.item_separator.assign(1, ',');  // (g++ 12 warns of the plain assignment)
  if (const Value separators = bound.Get(2); !separators.IsNone()) {
    const Sequence* pair = separators.sequence();
    if (pair == nullptr || pair->items.size() != 2 || !pair->items[0].IsString() || !pair->items[1].IsString()) {
      return Error("tojson: separators must be a pair of strings");
    }
    options.item_separator = pair->items[0].AsString();
    options.key_separator = pair->items[1].AsString();
  }
  ASSIGN_OR_RETURN(std::string out, DumpJson(runtime, input, options));
  return runtime.NewString(std::move(out));
}

constexpr Named<Filter> kTextFilters[] = {
    {"capitalize", MapText<Capitalize>},
    {"center", Center},
    {"e", MapText<EscapeHtml>},
    {"escape", MapText<EscapeHtml>},
    {"forceescape", MapText<EscapeHtml>},
    {"format", FormatFilter},
    {"indent", Indent},
    {"lower", MapText<ToLower>},
    {"replace", Replace},
    {"safe", MapText<Identity>},
    {"string", MapText<Identity>},
    {"striptags", MapText<StripTags>},
    {"title", MapText<FilterTitle>},
    {"tojson", ToJson},
    {"trim", Trim},
    {"truncate", Truncate},
    {"upper", MapText<ToUpper>},
    {"urlencode", MapText<UrlEncode>},
    {"wordcount", WordCount},
};

}  // namespace

Filter FindTextFilter(absl::string_view name) { return FindNamed(kTextFilters, name); }

}  // namespace switchyard::jinja
