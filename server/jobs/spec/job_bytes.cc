#include "server/jobs/spec/job_bytes.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/status/statusor.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/jobs/token_format.h"
#include "server/jobs/pack/token_header.h"

namespace switchyard::server {
namespace {

constexpr int64_t kTwoByteVocab = 65536;  // up to this a packed token has two bytes, beyond it four
constexpr double kBytesOfToken = 4;       // of text, for the number of steps

double SizeOfFile(const RootDir& root, const std::string& name) {
  const absl::StatusOr<int> fd = root.OpenFile(name);
  if (!fd.ok()) return 0;
  const UniqueFd open(*fd);
  struct stat file = {};
  return fstat(*fd, &file) == 0 ? static_cast<double>(file.st_size) : 0;
}

double OneCheckpointBytes(const jobs::JobSpec& spec, const TrainedModelFacts& facts) {
  // Weights, those of adapters in fp32, and for each trained parameter its master and two moments, for a frozen one its
  // master.  (Without an answer of the workers' program there are no adapters, and nothing is frozen.)
  const bool adapted = spec.lora.rank > 0;
  const double state = spec.dtype == jobs::TrainDType::kF64 ? 8 : 4;
  const double weight = adapted || spec.dtype == jobs::TrainDType::kF32 ? 4
                        : spec.dtype == jobs::TrainDType::kF64          ? 8
                                                                        : 2;
  const double saved = adapted ? facts.adapters : facts.parameters;
  const double moments = adapted ? saved : std::max(0.0, saved - facts.frozen);
  return saved * (weight + state) + moments * 2 * state;
}

// How many checkpoints keep_every_steps keeps: of those that are saved, the ones at its multiples.
double KeptForEver(const jobs::JobSpec& spec, const DataBytes& data) {
  const int64_t every = spec.checkpoints.every_steps, kept = spec.checkpoints.keep_every_steps;
  if (every <= 0 || kept <= 0) return 0;
  double steps = static_cast<double>(spec.steps);
  if (spec.epochs > 0) {
    const double of_step = static_cast<double>(spec.sequence_length) * static_cast<double>(spec.batch_sequences);
    steps = spec.epochs * (data.tokens + data.text / kBytesOfToken) / std::max(1.0, of_step);
  }
  const double apart = static_cast<double>(every / std::gcd(every, kept)) * static_cast<double>(kept);
  return std::floor(steps / apart);
}

}  // namespace

double CheckpointBytes(const jobs::JobSpec& spec, const TrainedModelFacts& facts) {
  return OneCheckpointBytes(spec, facts) * (spec.checkpoints.keep_last + (spec.checkpoints.keep_best ? 2 : 1));
}

DataBytes ReadDataBytes(const jobs::JobSpec& spec, const RootDir& datasets, bool datasets_packed,
                        bool evaluation_packed) {
  DataBytes data;
  for (const std::string& name : spec.datasets) {
    if (jobs::IsText(name)) {
      data.text += SizeOfFile(datasets, name);
    } else if (const absl::StatusOr<jobs::TokenFileHeader> header = ReadTokenHeader(datasets, name); header.ok()) {
      data.tokens += static_cast<double>(header->num_tokens);
    }
  }
  if (!datasets_packed) data.text_to_pack = data.text;
  for (const std::string& name : spec.evaluation) {
    if (jobs::IsText(name) && !evaluation_packed) data.text_to_pack += SizeOfFile(datasets, name);
  }
  return data;
}

double JobBytes(const jobs::JobSpec& spec, const TrainedModelFacts& facts, const DataBytes& data) {
  // (Of a pair both documents have the prompt.)
  const double token = (facts.vocab <= kTwoByteVocab ? 2 : 4) * (spec.has_pairs() ? 2 : 1);
  return CheckpointBytes(spec, facts) + KeptForEver(spec, data) * OneCheckpointBytes(spec, facts) +
         data.text_to_pack * token;
}

}  // namespace switchyard::server
