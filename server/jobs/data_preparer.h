// Interface that packs text into tokens (scheduler/jobs/token_format.h), before a job starts and for the RPC PackData.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

namespace switchyard::server {

enum class PackRoot : uint8_t {
  kDatasets,     // the dataset root, for PackData
  kCheckpoints,  // the checkpoint root: a file in a job's folder
};

struct PackRequest {
  std::vector<std::string> inputs;  // .jsonl, beneath the dataset root
  PackRoot output_root = PackRoot::kDatasets;
  std::string output;  // .bin, beneath output_root; missing folders are made
  // Whether an existing output is replaced; false: it stays, and Pack returns AlreadyExists.
  bool replace = false;
  // .bin files beneath the dataset root, used together with the output: Pack only counts their tokens.
  std::vector<std::string> counted = {};
  // Whether lines are pairs of answers (pack/document.h); unset: as the first one is.
  std::optional<bool> pairs = {};
  std::string tokenizer;  // folder of a tokenizer.json, beneath the checkpoint root; empty: the served model's
};

struct PackedData {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t trained_tokens = 0;  // tokens that are targets
  int64_t bytes = 0;           // of the inputs
  int64_t counted_tokens = 0;  // of the request's `counted`
};

// Thread-safe: several callers may pack at a time.
class DataPreparer {
 public:
  virtual ~DataPreparer() = default;

  // Blocks until `output` is complete and durable.  Opens nothing outside the roots.  Calls `progress(bytes_done,
  // bytes_total)` of the inputs at least once a second; if that returns false, Pack removes its files and returns
  // Cancelled.  Errors: InvalidArgument "datasets[I] or file:line: what is wrong", NotFound, FailedPrecondition (no
  // tokenizer; DATASET_CHANGED: a counted file is not a token file), AlreadyExists, ResourceExhausted (a full disk).
  virtual absl::StatusOr<PackedData> Pack(const PackRequest& request,
                                          absl::FunctionRef<bool(int64_t, int64_t)> progress) = 0;
};

}  // namespace switchyard::server
