#include "clients/cli/request_lines.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include "clients/cli/json.h"

namespace switchyard::cli {

void LineFlags::AddTo(FlagSet* flags) {
  flags->BeginGroup("Input and output");
  flags->Add("input=FILE", &input,
             "file of JSON lines with a request each, - = standard input; keys are the flags' names, and flags are the "
             "lines' defaults");
  flags
      ->Add("concurrency", &concurrency,
            "with --input: requests under way at once; those that a full server refuses are retried for up to a minute")
      .Range(1, 1024);
  flags->Add("json", &json, "print a line of JSON per request, in the order of the input");
}

absl::StatusOr<std::shared_ptr<std::istream>> OpenInput(Console& console, const std::string& path) {
  if (path == "-") return std::shared_ptr<std::istream>(std::shared_ptr<void>(), &console.in);  // owns nothing
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) return BadInput(absl::StrCat("--input=", path, ": is a directory"));
  auto file = std::make_shared<std::ifstream>(path, std::ios::binary);
  if (!*file) return BadInput(absl::StrCat("--input=", path, ": ", std::strerror(errno)));
  return file;
}

absl::StatusOr<Json> ParseLine(const std::string& line) {
  absl::StatusOr<Json> object = ParseJson(line);
  if (object.ok() && !object->is_object()) return absl::InvalidArgumentError("a line must be a JSON object");
  return object;
}

LineAnswer AsLine(const absl::Status& status, Json answer) {
  if (!status.ok()) {
    if (!answer.is_object()) answer = Json::object();
    answer["error"] = ErrorJson(status);
  }
  return {Dump(answer), status.ok()};
}

}  // namespace switchyard::cli
