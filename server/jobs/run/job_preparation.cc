#include "server/jobs/run/job_preparation.h"

#include <algorithm>
#include <iterator>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/base/text/quote.h"
#include "scheduler/jobs/token_format.h"

namespace switchyard::server {
namespace {

// One call of the host's packer, and its place in the spec.
struct PackStep {
  bool evaluation = false;
  std::vector<std::string> inputs = {};  // may be none: nothing is packed
  std::string output = {};               // in the job's folder
  int dataset = -1;                      // the only input's index among those with weights
  size_t set = 0;                        // of evaluation
};

std::vector<std::string> NamesOf(const std::vector<std::string>& files, bool text) {
  std::vector<std::string> names;
  for (const std::string& name : files) {
    if (jobs::IsText(name) == text) names.push_back(name);
  }
  return names;
}

std::string WeightedOutput(size_t dataset) { return absl::StrCat("dataset-", dataset, ".bin"); }
constexpr char kDatasetsOutput[] = "datasets.bin", kEvaluationOutput[] = "evaluation.bin";

// One set has the name that it had before there were several.
std::string SetOutput(size_t set, size_t num_sets) {
  return num_sets > 1 ? absl::StrCat("evaluation-", set, ".bin") : kEvaluationOutput;
}

std::vector<std::string> FilesOf(const jobs::JobSpec& spec, const jobs::EvaluationSet& set) {
  std::vector<std::string> files;
  for (const size_t file : set.files) files.push_back(spec.evaluation[file]);
  return files;
}

// Text of datasets with weights stays apart, and that of each set of evaluation.  Job::files_ready counts these, in
// this order.
std::vector<PackStep> StepsToPack(const jobs::JobSpec& spec) {
  std::vector<PackStep> steps;
  if (spec.dataset_weights.empty()) {
    steps.push_back({.inputs = NamesOf(spec.datasets, /*text=*/true), .output = kDatasetsOutput});
  } else {
    for (size_t i = 0; i < spec.datasets.size(); ++i) {
      if (!jobs::IsText(spec.datasets[i])) continue;
      steps.push_back({.inputs = {spec.datasets[i]}, .output = WeightedOutput(i), .dataset = static_cast<int>(i)});
    }
  }
  const std::vector<jobs::EvaluationSet> sets = jobs::EvaluationSetsOf(spec);
  if (sets.empty()) steps.push_back({.evaluation = true});
  for (size_t i = 0; i < sets.size(); ++i) {
    steps.push_back({.evaluation = true,
                     .inputs = NamesOf(FilesOf(spec, sets[i]), /*text=*/true),
                     .output = SetOutput(i, sets.size()),
                     .set = i});
  }
  return steps;
}

// Token files first, then all text as one.
std::vector<jobs::TrainFile> Together(const std::vector<std::string>& files, const std::string& output) {
  std::vector<jobs::TrainFile> data;
  for (const std::string& name : NamesOf(files, /*text=*/false)) data.push_back({.of_job = false, .name = name});
  if (data.size() < files.size()) data.push_back({.of_job = true, .name = output});
  return data;
}

}  // namespace

std::vector<jobs::TrainFile> JobPreparation::Training(const jobs::JobSpec& spec) {
  if (spec.dataset_weights.empty()) return Together(spec.datasets, kDatasetsOutput);
  std::vector<jobs::TrainFile> data;
  for (size_t i = 0; i < spec.datasets.size(); ++i) {
    const bool text = jobs::IsText(spec.datasets[i]);
    data.push_back({.of_job = text, .name = text ? WeightedOutput(i) : spec.datasets[i]});
  }
  return data;
}

std::vector<jobs::TrainFile> JobPreparation::Evaluation(const jobs::JobSpec& spec) {
  std::vector<jobs::TrainFile> data;
  const std::vector<jobs::EvaluationSet> sets = jobs::EvaluationSetsOf(spec);
  for (size_t i = 0; i < sets.size(); ++i) {
    for (jobs::TrainFile& file : Together(FilesOf(spec, sets[i]), SetOutput(i, sets.size()))) {
      file.set = static_cast<int32_t>(i);
      data.push_back(std::move(file));
    }
  }
  return data;
}

size_t JobPreparation::NumDatasetOutputs(const jobs::JobSpec& spec) {
  const std::vector<PackStep> steps = StepsToPack(spec);
  return static_cast<size_t>(
      std::count_if(steps.begin(), steps.end(), [](const PackStep& step) { return !step.evaluation; }));
}

std::vector<std::string> JobPreparation::Outputs(const jobs::JobSpec& spec) {
  std::vector<std::string> outputs;
  for (const PackStep& step : StepsToPack(spec)) outputs.push_back(step.inputs.empty() ? "" : step.output);
  return outputs;
}

bool JobPreparation::HasText(const Job& job) {
  const std::vector<std::string> outputs = Outputs(job.spec);
  return std::any_of(outputs.begin(), outputs.end(), [](const std::string& name) { return !name.empty(); });
}

bool JobPreparation::IsNeeded(const Job& job) {
  const std::vector<PackStep> steps = StepsToPack(job.spec);
  const auto has_text = [](const PackStep& step) { return !step.inputs.empty(); };
  return std::any_of(steps.begin() + std::min<std::ptrdiff_t>(job.files_ready, std::ssize(steps)), steps.end(),
                     has_text);
}

bool JobPreparation::StartNext() {
  const jobs::JobSpec& spec = job_->spec;
  const std::vector<PackStep> steps = StepsToPack(spec);
  for (; job_->files_ready < static_cast<int32_t>(steps.size()); ++job_->files_ready) {
    const PackStep& step = steps[static_cast<size_t>(job_->files_ready)];
    if (step.inputs.empty()) continue;
    PackRequest request;
    request.inputs = step.inputs;
    if (!step.evaluation) request.counted = NamesOf(spec.datasets, /*text=*/false);
    request.output_root = PackRoot::kCheckpoints;
    request.output = absl::StrCat(job_->id, "/", step.output);
    request.replace = true;  // an earlier try may have left an incomplete file
    request.pairs = spec.has_pairs();
    request.tokenizer = jobs::ModelFolder(spec);
    packing_ = true;
    context_.book->Note(job_, absl::StrCat("turns text into tokens: ", step.output));
    context_.host->Prepare(job_->id, std::move(request));
    return true;
  }
  return false;
}

// Whether the datasets' tokens in all must fill a batch: windows of whole documents may have few.
bool JobPreparation::NeedsBatch(bool evaluation) const {
  const jobs::JobSpec& spec = job_->spec;
  return !evaluation && spec.packing == jobs::WindowPacking::kConcatenate && spec.dataset_weights.empty();
}

void JobPreparation::OnProgress(int64_t done, int64_t total) {
  if (!packing_) return;
  job_->prepared_bytes = done;
  job_->prepare_bytes = total;
  context_.book->Report(*job_);
}

absl::Status JobPreparation::Check(const PackedData& packed) const {
  const std::vector<PackStep> steps = StepsToPack(job_->spec);
  const PackStep& step = steps[static_cast<size_t>(job_->files_ready)];
  if (NeedsBatch(step.evaluation)) RETURN_IF_ERROR(CheckBatch(packed));
  if (step.dataset >= 0) RETURN_IF_ERROR(CheckWindow(packed, step.dataset));
  if (!step.evaluation) return CheckTargets(packed, false, job_->spec.datasets);
  return CheckTargets(packed, true, FilesOf(job_->spec, jobs::EvaluationSetsOf(job_->spec)[step.set]));
}

absl::Status JobPreparation::CheckBatch(const PackedData& packed) const {
  const int64_t tokens = packed.tokens + packed.counted_tokens;
  const int64_t batch = job_->spec.batch_sequences * job_->spec.sequence_length + 1;
  if (tokens >= batch) return absl::OkStatus();
  return rpc::MakeError(absl::StatusCode::kInvalidArgument, v1::BAD_FILE,
                        absl::StrCat("datasets: dataset has ", tokens, " tokens, batch needs ", batch),
                        {{"field", "spec.datasets"}, {"limit", absl::StrCat(batch)}, {"actual", absl::StrCat(tokens)}});
}

absl::Status JobPreparation::CheckWindow(const PackedData& packed, int dataset) const {
  const jobs::JobSpec& spec = job_->spec;
  if (jobs::HasWindow(spec, packed.tokens, packed.documents)) return absl::OkStatus();
  const std::string field = absl::StrCat("datasets[", dataset, "]");
  const std::string& name = spec.datasets[static_cast<size_t>(dataset)];
  const absl::Status none = jobs::NoWindowError(Quote(name), packed.tokens, spec.sequence_length);
  return rpc::MakeError(none.code(), v1::BAD_FILE, absl::StrCat(field, ": ", none.message()),
                        {{"field", absl::StrCat("spec.", field)}});
}

// Other files of the list may have targets; workers check before step 1 whether a window has one.
absl::Status JobPreparation::CheckTargets(const PackedData& packed, bool evaluation,
                                          const std::vector<std::string>& files) const {
  const bool others = !NamesOf(files, /*text=*/false).empty() || (!evaluation && !job_->spec.dataset_weights.empty());
  if (packed.trained_tokens > 0 || others) return absl::OkStatus();
  const char* const field = evaluation ? "evaluation" : "datasets";
  const absl::Status none = jobs::NoTargetError(files.size(), packed.tokens, job_->spec.sequence_length);
  const bool several = evaluation && files.size() < job_->spec.evaluation.size();
  return rpc::MakeError(
      none.code(), v1::BAD_FILE,
      absl::StrCat(field, several ? absl::StrCat(", set of ", Quote(files[0])) : "", ": ", none.message()),
      {{"field", absl::StrCat("spec.", field)}});
}

}  // namespace switchyard::server
