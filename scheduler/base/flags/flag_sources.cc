#include "scheduler/base/flags/flag_sources.h"

#include <yaml-cpp/yaml.h>

#include <fstream>
#include <iterator>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/nearest_name.h"

namespace switchyard {
namespace {

constexpr absl::string_view kPrefix = "SWITCHYARD_";
constexpr size_t kNearlyTheName = 2;  // letters

// Calls visit(variable, name in lower case, value) for every variable of ours that has a value.
template <class Visit>
void ForEachVariable(const char* const* environment, Visit visit) {
  for (; *environment != nullptr; ++environment) {
    const absl::string_view entry = *environment;
    const size_t equals = entry.find('=');
    if (equals == absl::string_view::npos || equals + 1 == entry.size()) continue;
    absl::string_view name = entry.substr(0, equals);
    if (!absl::ConsumePrefix(&name, kPrefix)) continue;
    visit(entry.substr(0, equals), absl::AsciiStrToLower(name), entry.substr(equals + 1));
  }
}

class ConfigReader {
 public:
  explicit ConfigReader(std::string path) : path_(std::move(path)) {}

  absl::Status Read(const YAML::Node& root) {
    if (root.IsNull()) return absl::OkStatus();  // only comments
    if (!root.IsMap()) return Error(root.Mark(), "must be a map of flags, as in `model: DIR`");
    for (const auto& entry : root) RETURN_IF_ERROR(Take(entry.first, entry.second));
    return absl::OkStatus();
  }

  absl::Status Error(const YAML::Mark& mark, absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(Where(mark), ": ", what));
  }

  std::vector<FlagSetting> settings;

 private:
  std::string Where(const YAML::Mark& mark) const {
    return mark.is_null() ? path_ : absl::StrCat(path_, ":", mark.line + 1);
  }

  absl::Status Take(const YAML::Node& key, const YAML::Node& value) {
    if (!key.IsScalar()) return Error(key.Mark(), "must be the name of a flag");
    const std::string name = absl::StrReplaceAll(key.Scalar(), {{"-", "_"}});
    const auto [first, is_new] = line_of_.emplace(name, key.Mark().line + 1);
    if (!is_new) return Error(key.Mark(), absl::StrCat(name, ": is also on line ", first->second));
    if (!value.IsSequence()) return TakeValue(name, key, value);
    for (const auto& one : value) RETURN_IF_ERROR(TakeValue(name, key, one));
    return absl::OkStatus();
  }

  absl::Status TakeValue(const std::string& name, const YAML::Node& key, const YAML::Node& value) {
    if (value.IsNull()) return Error(key.Mark(), absl::StrCat(name, R"(: has no value (an empty one is ""))"));
    if (!value.IsScalar()) return Error(key.Mark(), absl::StrCat(name, ": must be a plain value; flags have no parts"));
    settings.push_back({.where = Where(key.Mark()), .name = key.Scalar(), .value = value.Scalar()});
    return absl::OkStatus();
  }

  const std::string path_;
  std::map<std::string, int> line_of_;
};

}  // namespace

std::string VariableOf(absl::string_view flag_name) { return absl::StrCat(kPrefix, absl::AsciiStrToUpper(flag_name)); }

std::vector<FlagSetting> EnvironmentSettings(const FlagSet& flags, const char* const* environment) {
  std::vector<FlagSetting> settings;
  ForEachVariable(environment, [&](absl::string_view variable, const std::string& name, absl::string_view value) {
    const Flag* const flag = flags.Find(name);
    if (flag == nullptr || flag->positional) return;
    settings.push_back({.where = std::string(variable), .name = name, .value = std::string(value)});
  });
  return settings;
}

std::vector<std::string> MisspelledVariables(const FlagSet& flags, const char* const* environment) {
  std::vector<std::string> lines;
  ForEachVariable(environment, [&](absl::string_view variable, const std::string& name, absl::string_view) {
    if (flags.Find(name) != nullptr) return;
    const std::string nearest = NearestName(name, flags.Names());
    if (nearest.empty() || EditDistance(name, nearest) > kNearlyTheName) return;
    lines.push_back(
        absl::StrCat("ignored environment variable ", variable, "; did you mean ", VariableOf(nearest), "?"));
  });
  return lines;
}

// yaml-cpp and streams throw; nothing of that leaves this function.
absl::StatusOr<std::vector<FlagSetting>> ReadConfigFile(const std::string& path) {
  ConfigReader reader(path);
  try {
    std::ifstream file(path);
    const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    if (!file.is_open() || file.bad()) return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
    RETURN_IF_ERROR(reader.Read(YAML::Load(text)));
  } catch (const YAML::Exception& error) {
    return reader.Error(error.mark, absl::StrCat("is not YAML: ", error.msg));
  } catch (const std::ios_base::failure&) {  // a folder, for one
    return absl::InvalidArgumentError(absl::StrCat(path, ": cannot be read"));
  }
  return std::move(reader.settings);
}

}  // namespace switchyard
