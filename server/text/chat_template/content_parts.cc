#include "server/text/chat_template/content_parts.h"

#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "scheduler/base/text/utf8.h"

namespace switchyard::text {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kProbe[] = "Switchyard-probes-content";

// One user's message with that content; empty where the template fails on it.
std::string Try(const ChatTemplate& chat, Json variables, Json content) {
  variables["messages"] = Json::array({{{"role", "user"}, {"content", std::move(content)}}});
  const absl::StatusOr<std::string> text = chat.Render(variables, {absl::UnixEpoch(), absl::UTCTimeZone()});
  return text.ok() ? *text : std::string();
}

}  // namespace

bool KnowsTextOnly(const ChatTemplate& chat, const Json& variables) {
  if (!absl::StrContains(Try(chat, variables, kProbe), kProbe)) return false;
  const std::string parts = Try(chat, variables, Json::array({{{"type", "text"}, {"text", kProbe}}}));
  // As Python's repr and as JSON prints the part's last item.
  const bool printed = absl::StrContains(parts, absl::StrCat("'text': '", kProbe)) ||
                       absl::StrContains(parts, absl::StrCat("\"text\": \"", kProbe));
  return printed || !absl::StrContains(parts, kProbe);
}

absl::Status JoinContentParts(Json* messages) {
  for (size_t m = 0; m < messages->size(); ++m) {
    const auto content = (*messages)[m].find("content");
    if (content == (*messages)[m].end() || !content->is_array()) continue;
    std::string joined;
    for (size_t p = 0; p < content->size(); ++p) {
      const Json& part = (*content)[p];
      const Json text = part.is_object() ? part.value("text", Json()) : part;
      const Json type = part.is_object() ? part.value("type", Json("text")) : Json("text");
      if (type != "text" || !text.is_string()) {
        const std::string what =
            type.is_string() && type != "text"
                ? absl::StrCat("has type \"", absl::CHexEscape(CutText(type.get_ref<const std::string&>(), 64)), "\"")
                : std::string("has no text");
        return absl::InvalidArgumentError(
            absl::StrCat("content[", p, "] of message ", m, " ", what, ": this model's chat template takes text only"));
      }
      absl::StrAppend(&joined, p > 0 ? "\n" : "", text.get_ref<const std::string&>());
    }
    *content = std::move(joined);
  }
  return absl::OkStatus();
}

}  // namespace switchyard::text
