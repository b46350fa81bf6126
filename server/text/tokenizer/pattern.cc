#include "server/text/tokenizer/pattern.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"

namespace switchyard::tokenizer {
namespace {

// A hostile file can make text grow (a short pattern, a long content); real files never come near this limit.
constexpr size_t kMaxReplacedBytes = size_t{1} << 30;

}  // namespace

absl::StatusOr<Pattern> Pattern::Parse(const Field& field) {
  RETURN_IF_ERROR(field.CheckObject());
  const Field text = field["String"];
  const Field regex = field["Regex"];
  if (text.present() == regex.present()) return field.Expected("an object with either String or Regex");
  Pattern pattern;
  if (text.present()) {
    ASSIGN_OR_RETURN(pattern.literal_, text.String());
    if (!pattern.literal_.empty()) return pattern;
  }
  std::string source;
  if (regex.present()) {
    ASSIGN_OR_RETURN(source, regex.String());
  }
  absl::StatusOr<Regex> compiled = Regex::Compile(source);
  if (!compiled.ok()) return regex.Error(compiled.status().message());
  pattern.regex_ = *std::move(compiled);
  return pattern;
}

absl::Status Pattern::ForEachMatch(absl::string_view text, absl::FunctionRef<absl::Status(Match)> visit) const {
  if (regex_.has_value()) return regex_->ForEachMatch(text, visit);
  // std::string_view's find is memchr-based; absl::string_view's is a plain loop.
  const std::string_view haystack(text.data(), text.size());
  for (size_t at = haystack.find(literal_); at != std::string_view::npos;
       at = haystack.find(literal_, at + literal_.size())) {
    RETURN_IF_ERROR(visit({at, at + literal_.size()}));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> Pattern::ReplaceAll(absl::string_view text, absl::string_view content) const {
  std::string out;
  size_t copied = 0;
  RETURN_IF_ERROR(ForEachMatch(text, [&](Match match) -> absl::Status {
    out.append(text.data() + copied, match.begin - copied);
    out.append(content.data(), content.size());
    copied = match.end;
    if (out.size() > kMaxReplacedBytes) {
      return absl::ResourceExhaustedError(absl::StrCat("Replace: the text grew beyond ", kMaxReplacedBytes, " bytes"));
    }
    return absl::OkStatus();
  }));
  out.append(text.data() + copied, text.size() - copied);
  return out;
}

}  // namespace switchyard::tokenizer
