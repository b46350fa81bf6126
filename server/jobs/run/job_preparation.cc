#include "server/jobs/run/job_preparation.h"

#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {
namespace {

// Names of the packed files in the job's folder.
constexpr const char* kPackedNames[] = {"datasets.bin", "evaluation.bin"};
constexpr int kPackedFiles = 2;
constexpr int kDatasets = 0, kEvaluation = 1;  // indexes of kPackedNames

const std::vector<std::string>& FilesOf(const jobs::JobSpec& spec, int kind) {
  return kind == kDatasets ? spec.datasets : spec.evaluation;
}

std::vector<std::string> NamesOf(const jobs::JobSpec& spec, int kind, bool text) {
  std::vector<std::string> names;
  for (const std::string& name : FilesOf(spec, kind)) {
    if (absl::EndsWith(name, ".jsonl") == text) names.push_back(name);
  }
  return names;
}

std::vector<jobs::TrainFile> DataOf(const jobs::JobSpec& spec, int kind) {
  std::vector<jobs::TrainFile> data;
  for (const std::string& name : NamesOf(spec, kind, /*text=*/false)) data.push_back({.of_job = false, .name = name});
  if (data.size() < FilesOf(spec, kind).size()) data.push_back({.of_job = true, .name = kPackedNames[kind]});
  return data;
}

}  // namespace

std::vector<jobs::TrainFile> JobPreparation::Training(const jobs::JobSpec& spec) { return DataOf(spec, kDatasets); }

std::vector<jobs::TrainFile> JobPreparation::Evaluation(const jobs::JobSpec& spec) { return DataOf(spec, kEvaluation); }

bool JobPreparation::StartNext() {
  for (; job_->files_ready < kPackedFiles; ++job_->files_ready) {
    const int kind = job_->files_ready;
    const jobs::JobSpec& spec = job_->spec;
    PackRequest request;
    request.inputs = NamesOf(spec, kind, /*text=*/true);
    if (request.inputs.empty()) continue;
    if (kind == kDatasets) request.counted = NamesOf(spec, kind, /*text=*/false);
    request.output_root = PackRoot::kCheckpoints;
    request.output = absl::StrCat(job_->id, "/", kPackedNames[kind]);
    request.replace = true;  // an earlier try may have left an incomplete file
    request.tokenizer = spec.base_checkpoint.empty() ? spec.architecture : spec.base_checkpoint;
    packing_ = true;
    context_.book->Note(job_, absl::StrCat("turns text into tokens: ", kPackedNames[kind]));
    context_.host->Prepare(job_->id, std::move(request));
    return true;
  }
  return false;
}

void JobPreparation::OnProgress(int64_t done, int64_t total) {
  if (!packing_) return;
  job_->prepared_bytes = done;
  job_->prepare_bytes = total;
  context_.book->Report(*job_);
}

absl::Status JobPreparation::Check(const PackedData& packed) const {
  if (job_->files_ready == kDatasets) RETURN_IF_ERROR(CheckBatch(packed));
  return CheckTargets(packed);
}

absl::Status JobPreparation::CheckBatch(const PackedData& packed) const {
  const int64_t tokens = packed.tokens + packed.counted_tokens;
  const int64_t batch = job_->spec.batch_sequences * job_->spec.sequence_length + 1;
  if (tokens >= batch) return absl::OkStatus();
  return rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FILE,
                        absl::StrCat("datasets: dataset has ", tokens, " tokens, batch needs ", batch),
                        {{"field", "spec.datasets"}, {"limit", absl::StrCat(batch)}, {"actual", absl::StrCat(tokens)}});
}

// Token files beside the text may have targets; workers check before step 1 whether a window has one.
absl::Status JobPreparation::CheckTargets(const PackedData& packed) const {
  const int kind = job_->files_ready;
  if (packed.trained_tokens > 0 || !NamesOf(job_->spec, kind, /*text=*/false).empty()) return absl::OkStatus();
  const char* const field = kind == kDatasets ? "datasets" : "evaluation";
  const absl::Status none =
      jobs::NoTargetError(FilesOf(job_->spec, kind).size(), packed.tokens, job_->spec.sequence_length);
  return rpc::MakeError(none.code(), v1::BAD_FILE, absl::StrCat(field, ": ", none.message()),
                        {{"field", absl::StrCat("spec.", field)}});
}

}  // namespace switchyard::server
