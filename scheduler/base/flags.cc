#include "scheduler/base/flags.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include "absl/flags/commandlineflag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/env.h"

namespace switchyard {
namespace {

constexpr int kBadCommandLine = 2;
constexpr size_t kHelpColumns = 110;

using Flags = std::map<absl::string_view, absl::CommandLineFlag*>;

Flags OwnFlags(absl::string_view file) {
  Flags own;
  for (const auto& [name, flag] : absl::GetAllFlags()) {
    if (absl::EndsWith(flag->Filename(), file)) own.emplace(name, flag);
  }
  return own;
}

// `text` broken at blanks, continued lines indented.
std::string Wrapped(absl::string_view text, size_t indent) {
  std::string out;
  size_t column = indent;
  for (absl::string_view word : absl::StrSplit(text, ' ')) {
    if (column > indent && column + word.size() + 1 > kHelpColumns) {
      absl::StrAppend(&out, "\n", std::string(indent, ' '));
      column = indent;
    } else if (column > indent) {
      out += ' ';
      ++column;
    }
    absl::StrAppend(&out, word);
    column += word.size();
  }
  return out;
}

void PrintHelp(const ProgramHelp& help, const Flags& flags) {
  std::string out = absl::StrCat(help.name, " ", help.version, ": ", help.summary, "\n\nFlags:\n");
  for (const auto& [name, flag] : flags) {
    const std::string value = flag->DefaultValue();
    absl::StrAppend(&out, "  --", name, value.empty() ? "" : absl::StrCat("=", value), "\n      ",
                    Wrapped(flag->Help(), 6), "\n");
  }
  absl::StrAppend(&out, "\n", EnvHelp());
  std::fputs(out.c_str(), stdout);
}

size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

class Parser {
 public:
  explicit Parser(const Flags& flags) : flags_(flags) {}

  // Takes argv[*i], and the next one where it is the value.
  void Take(int argc, char** argv, int* i) {
    absl::string_view arg = argv[*i];
    if (!absl::ConsumePrefix(&arg, "--"))
      return Complain(absl::StrCat("unexpected argument ", arg, "; flags look like --name=value"));
    const size_t equals = arg.find('=');
    const absl::string_view name = arg.substr(0, equals);
    const bool has_value = equals != absl::string_view::npos;
    if (const auto it = flags_.find(name); it != flags_.end()) {
      if (has_value) return Set(it->second, arg.substr(equals + 1));
      if (it->second->IsOfType<bool>()) return Set(it->second, "true");
      if (*i + 1 >= argc) return Complain(absl::StrCat("--", name, ": needs a value"));
      return Set(it->second, argv[++*i]);
    }
    if (!has_value && absl::StartsWith(name, "no")) {
      const auto it = flags_.find(name.substr(2));
      if (it != flags_.end() && it->second->IsOfType<bool>()) return Set(it->second, "false");
    }
    std::vector<absl::string_view> names;
    for (const auto& [known, flag] : flags_) names.push_back(known);
    const absl::string_view nearest = NearestName(name, names.data(), names.data() + names.size());
    Complain(
        absl::StrCat("unknown flag --", name, nearest.empty() ? "" : absl::StrCat("; did you mean --", nearest, "?")));
  }

  const std::vector<std::string>& problems() const { return problems_; }

 private:
  void Set(absl::CommandLineFlag* flag, absl::string_view value) {
    std::string error;
    if (!flag->ParseFrom(value, &error)) Complain(error);
  }
  void Complain(std::string problem) { problems_.push_back(std::move(problem)); }

  const Flags& flags_;
  std::vector<std::string> problems_;
};

}  // namespace

absl::string_view NearestName(absl::string_view name, const absl::string_view* begin, const absl::string_view* end) {
  absl::string_view nearest;
  size_t best = std::max<size_t>(2, name.size() / 3) + 1;
  for (const absl::string_view* candidate = begin; candidate != end; ++candidate) {
    const size_t distance = EditDistance(name, *candidate);
    if (distance < best) {
      best = distance;
      nearest = *candidate;
    }
  }
  return nearest;
}

void ParseFlagsOrExit(int argc, char** argv, const ProgramHelp& help) {
  const Flags flags = OwnFlags(help.file);
  Parser parser(flags);
  for (int i = 1; i < argc; ++i) {
    const absl::string_view arg = argv[i];
    if (arg == "--help" || arg == "-h") {
      PrintHelp(help, flags);
      std::exit(0);
    }
    if (arg == "--version") {
      std::printf("%s %s\n", std::string(help.name).c_str(), std::string(help.version).c_str());
      std::exit(0);
    }
    parser.Take(argc, argv, &i);
  }
  if (parser.problems().empty()) return;
  for (const std::string& problem : parser.problems()) {
    std::fprintf(stderr, "%s: %s\n", std::string(help.name).c_str(), problem.c_str());
  }
  std::fprintf(stderr, "see %s --help\n", std::string(help.name).c_str());
  std::exit(kBadCommandLine);
}

}  // namespace switchyard
