#include "scheduler/base/flags/help_text.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace switchyard {
namespace {

constexpr size_t kFewestColumns = 60, kMostColumns = 120, kUnknownColumns = 100;
constexpr size_t kWidestLeft = 36;

// "--model=DIR", "--insecure", "--cuda_graphs=BOOL", "--stop=TEXT ...", "files ..."
std::string NameText(const Flag& flag) {
  const std::string more = flag.is_list ? " ..." : "";
  if (flag.positional) return absl::StrCat(flag.name, more);
  if (flag.is_bool) return absl::StrCat("--", flag.name, flag.default_text == "false" ? "" : "=BOOL");
  return absl::StrCat("--", flag.name, "=", flag.placeholder, more);
}

// The help of a flag, with its default where it says something.
std::string Described(const Flag& flag) {
  const bool is_off = flag.is_bool && flag.default_text == "false";
  const std::string value = is_off || !flag.shows_default ? "" : flag.default_text;
  return absl::StrCat(flag.help, value.empty() ? "" : absl::StrCat(" (default ", value, ")"));
}

}  // namespace

size_t HelpColumns() {
  winsize size = {};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return kUnknownColumns;
  return std::clamp<size_t>(size.ws_col, kFewestColumns, kMostColumns);
}

std::string HelpEntry(absl::string_view name, absl::string_view text, size_t left, size_t columns) {
  std::string out = absl::StrCat("  ", name);
  size_t column = out.size();
  const auto new_line = [&] {
    absl::StrAppend(&out, "\n", std::string(left, ' '));
    column = left;
  };
  if (column + 2 > left) {
    new_line();
  } else {
    out.append(left - column, ' ');
    column = left;
  }
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > left && column + 1 + word.size() > columns) {
      new_line();
    } else if (column > left) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out + "\n";
}

std::string FlagsHelp(const FlagSet& flags, size_t columns) {
  size_t left = 0;
  for (const auto& flag : flags.flags()) left = std::max(left, NameText(*flag).size() + 4);
  left = std::min({left, kWidestLeft, columns / 3});
  std::string out;
  for (const std::string& group : flags.groups()) {
    std::string entries;
    for (const auto& flag : flags.flags()) {
      if (flag->group == group) entries += HelpEntry(NameText(*flag), Described(*flag), left, columns);
    }
    if (group.empty() || entries.empty()) continue;
    absl::StrAppend(&out, out.empty() ? "" : "\n", group, ":\n", entries);
  }
  return out;
}

}  // namespace switchyard
