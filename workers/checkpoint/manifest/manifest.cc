#include "workers/checkpoint/manifest/manifest.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "scheduler/base/io/crc32c.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/json_value.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/base/text/strict_json.h"
#include "scheduler/jobs/checkpoint_names.h"

namespace switchyard::checkpoint {
namespace {

using Json = nlohmann::json;
using OrderedJson = nlohmann::ordered_json;

constexpr char kFormat[] = "switchyard-checkpoint";
// The manifest ends in kSeal, 64 digits and kEnd.  The digits are the SHA-256 of all before kSeal.
constexpr absl::string_view kSeal = ",\"manifest_sha256\":\"", kEnd = "\"}\n";
constexpr int64_t kMaxJsonValues = 4'000'000;

bool IsHex(absl::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

OrderedJson RecordsJson(absl::Span<const FileRecord> records) {
  OrderedJson list = OrderedJson::array();
  for (const FileRecord& record : records) {
    OrderedJson one;
    one["name"] = record.name;
    one["bytes"] = record.sums.bytes;
    one["sha256"] = record.sums.sha256;
    std::string blocks;
    for (const uint32_t crc : record.sums.crc32c) blocks += CrcHex(crc);
    one["crc32c"] = blocks;
    list.push_back(std::move(one));
  }
  return list;
}

absl::StatusOr<std::string> Text(const Json& object, const char* key) {
  if (!object.is_object() || !object.contains(key) || !object[key].is_string()) {
    return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing or no string"));
  }
  return object[key].get<std::string>();
}

absl::StatusOr<int64_t> Count(const Json& object, const char* key) {
  const std::optional<int64_t> count = CountAt(object, key);
  if (!count) return absl::InvalidArgumentError(absl::StrCat("\"", key, "\" is missing or no integer from 0 on"));
  return *count;
}

absl::StatusOr<FileRecord> ReadRecord(const Json& json) {
  FileRecord record;
  ASSIGN_OR_RETURN(record.name, Text(json, "name"));
  RETURN_IF_ERROR(CheckPlainName(record.name));
  FileSums& sums = record.sums;
  ASSIGN_OR_RETURN(sums.bytes, Count(json, "bytes"));
  ASSIGN_OR_RETURN(sums.sha256, Text(json, "sha256"));
  ASSIGN_OR_RETURN(std::string blocks, Text(json, "crc32c"));
  const auto wanted = static_cast<uint64_t>(sums.bytes / kSummedBlockBytes + (sums.bytes % kSummedBlockBytes != 0));
  if (sums.sha256.size() != 64 || !IsHex(sums.sha256) || blocks.size() != 8 * wanted || !IsHex(blocks)) {
    return absl::InvalidArgumentError(
        absl::StrCat("file ", Excerpt(record.name), ": its sums do not have the digits of ", sums.bytes, " bytes"));
  }
  for (size_t i = 0; i < blocks.size(); i += 8) {
    uint32_t crc = 0;
    (void)absl::SimpleHexAtoi(absl::string_view(blocks).substr(i, 8), &crc);  // IsHex
    sums.crc32c.push_back(crc);
  }
  return record;
}

absl::StatusOr<std::vector<FileRecord>> ReadRecords(const Json& list) {
  if (!list.is_array()) return absl::InvalidArgumentError("the list of files is missing");
  std::vector<FileRecord> records;
  for (const Json& json : list) {
    ASSIGN_OR_RETURN(FileRecord record, ReadRecord(json));
    records.push_back(std::move(record));
  }
  return records;
}

absl::StatusOr<SavedBy> ReadSavedBy(const Json& root) {
  SavedBy by;
  ASSIGN_OR_RETURN(by.world, Count(root, "world"));
  ASSIGN_OR_RETURN(by.threads, Count(root, "threads"));
  ASSIGN_OR_RETURN(by.isa, Text(root, "isa"));
  ASSIGN_OR_RETURN(by.software, Text(root, "software"));
  ASSIGN_OR_RETURN(by.data_type, Text(root, "data_type"));
  return by;
}

}  // namespace

std::string EncodeFileRecords(absl::Span<const FileRecord> records) { return JsonText(RecordsJson(records)); }

absl::StatusOr<std::vector<FileRecord>> DecodeFileRecords(absl::string_view text) {
  ASSIGN_OR_RETURN(Json list, ParseStrictJson("file records", text, {.max_depth = 4, .max_values = kMaxJsonValues}));
  return ReadRecords(list);
}

std::string EncodeManifest(const Manifest& manifest) {
  OrderedJson root;
  root["format"] = kFormat;
  root["version"] = kCheckpointVersion;
  root["step"] = manifest.step;
  root["attempt"] = manifest.attempt;
  root["world"] = manifest.saved_by.world;
  root["threads"] = manifest.saved_by.threads;
  root["isa"] = manifest.saved_by.isa;
  root["software"] = manifest.saved_by.software;
  root["data_type"] = manifest.saved_by.data_type;
  root["files"] = RecordsJson(manifest.files);
  std::string text = JsonText(root);
  text.pop_back();  // kEnd has the '}'
  return absl::StrCat(text, kSeal, Sha256Hex(text), kEnd);
}

absl::StatusOr<Manifest> DecodeManifest(absl::string_view text) {
  const size_t tail = kSeal.size() + 64 + kEnd.size();
  const absl::string_view body = text.substr(0, text.size() < tail ? 0 : text.size() - tail);
  if (text.size() < tail || text.substr(body.size()) != absl::StrCat(kSeal, Sha256Hex(body), kEnd)) {
    return absl::DataLossError("damaged: it does not end in its own checksum");
  }
  ASSIGN_OR_RETURN(Json root, ParseStrictJson("manifest", text, {.max_depth = 4, .max_values = kMaxJsonValues}));
  ASSIGN_OR_RETURN(std::string format, Text(root, "format"));
  if (format != kFormat) return absl::InvalidArgumentError(absl::StrCat("format \"", Excerpt(format), "\""));
  ASSIGN_OR_RETURN(int64_t version, Count(root, "version"));
  if (version != kCheckpointVersion) {
    return absl::FailedPreconditionError(
        absl::StrCat("format version ", version, ", this program reads version ", kCheckpointVersion));
  }
  Manifest manifest;
  ASSIGN_OR_RETURN(manifest.step, Count(root, "step"));
  ASSIGN_OR_RETURN(manifest.attempt, Count(root, "attempt"));
  ASSIGN_OR_RETURN(manifest.saved_by, ReadSavedBy(root));
  ASSIGN_OR_RETURN(manifest.files, ReadRecords(root.contains("files") ? root["files"] : Json()));
  for (size_t i = 1; i < manifest.files.size(); ++i) {
    if (manifest.files[i - 1].name >= manifest.files[i].name) {
      return absl::InvalidArgumentError(absl::StrCat("file ", Excerpt(manifest.files[i].name), ": not in order"));
    }
  }
  return manifest;
}

std::string EncodeLatest(const Latest& latest) {
  const std::string text = absl::StrCat(latest.folder, " ", latest.manifest_sha256, " ");
  return absl::StrCat(text, CrcHex(Crc32c(text)), "\n");
}

absl::StatusOr<Latest> DecodeLatest(absl::string_view text) {
  const std::vector<std::string> parts = absl::StrSplit(text, ' ');
  if (parts.size() == 3 && StepOfFolder(parts[0]) >= 0) {
    Latest latest = {parts[0], parts[1]};
    if (text == EncodeLatest(latest)) return latest;
  }
  return absl::DataLossError("damaged: it does not end in its own checksum");
}

std::string StepFolder(int64_t step) { return jobs::StepFolder(step); }

int64_t StepOfFolder(absl::string_view name) { return jobs::StepOfFolder(name); }

}  // namespace switchyard::checkpoint
