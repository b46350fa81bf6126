#include "server/jobs/fork/seed_fork.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/checkpoint_names.h"
#include "server/jobs/fork/fork_folder.h"
#include "server/jobs/run/job_preparation.h"

namespace switchyard::server {
namespace {

constexpr int kMostTries = 20;  // the parent may remove a checkpoint that was just chosen
constexpr size_t kMostShown = 16;
// Decisions that change bits, which a job repeats at their steps (workers/train/job/decision_log.h).
constexpr const char* kDecisionLogs[] = {"packing.log", "chunks.log"};

absl::StatusOr<int64_t> ChooseStep(const RootDir& root, const Job& parent, const std::optional<int64_t>& wanted) {
  ASSIGN_OR_RETURN(const std::vector<int64_t> steps, ListCheckpoints(root, parent.id));
  if (steps.empty()) {
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::JOB_STATE,
                          absl::StrCat(parent.id, " has no checkpoint to fork"),
                          {{"field", "id"}, {"actual", std::string(jobs::JobStateName(parent.state))}});
  }
  if (!wanted.has_value()) return steps.front();
  if (std::find(steps.begin(), steps.end(), *wanted) != steps.end()) return *wanted;
  const size_t shown = std::min(steps.size(), kMostShown);
  const std::string there =
      absl::StrCat(absl::StrJoin(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                   shown < steps.size() ? absl::StrCat(" and ", steps.size() - shown, " older ones") : "");
  return rpc::MakeError(absl::StatusCode::kNotFound, v1::BAD_FIELD,
                        absl::StrCat("step: ", parent.id, " has no checkpoint of step ", *wanted, ", it has ", there),
                        {{"field", "step"}, {"limit", there}, {"actual", absl::StrCat(*wanted)}});
}

// The packed outputs of the parent that hold for the fork, in their order; "" where there is no text.
std::vector<std::string> OutputsOfParent(const Job& parent, const jobs::JobSpec& spec) {
  const jobs::JobSpec& was = parent.spec;
  // (With other batches the check of their number is to run again.)
  if (spec.datasets != was.datasets || spec.dataset_weights.empty() != was.dataset_weights.empty() ||
      spec.packing != was.packing || spec.batch_sequences != was.batch_sequences ||
      spec.sequence_length != was.sequence_length) {
    return {};
  }
  std::vector<std::string> outputs = JobPreparation::Outputs(spec);
  size_t ready = static_cast<size_t>(parent.files_ready);
  if (spec.evaluation != was.evaluation || spec.evaluation_names != was.evaluation_names) {
    ready = std::min(ready, JobPreparation::NumDatasetOutputs(spec));
  }
  outputs.resize(std::min(ready, outputs.size()));
  return outputs;
}

// Whether ranks would decide on the same grounds.
bool HaveSameDecisions(const jobs::JobSpec& a, const jobs::JobSpec& b) {
  return a.workers == b.workers && a.communication.granularity == b.communication.granularity &&
         a.communication.packing == b.communication.packing && a.batch_sequences == b.batch_sequences &&
         a.micro_batch_sequences == b.micro_batch_sequences && a.sequence_length == b.sequence_length &&
         a.restore == b.restore && a.recompute == b.recompute;
}

absl::Status OfFork(const absl::Status& status) {
  if (!absl::IsResourceExhausted(status)) return status;
  return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DISK_FULL,
                        absl::StrCat(status.message(), "; make room beneath the checkpoint root, then try again"));
}

// A packed output that the spec has, but that is no longer there, is to be packed again, and those after it.
int32_t FilesReady(const std::vector<std::string>& outputs, const std::vector<std::string>& found) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!outputs[i].empty() && std::find(found.begin(), found.end(), outputs[i]) == found.end())
      return static_cast<int32_t>(i);
  }
  return static_cast<int32_t>(outputs.size());
}

}  // namespace

int32_t PackedForFork(const RootDir& root, const Job& parent, const jobs::JobSpec& spec) {
  const std::vector<std::string> outputs = OutputsOfParent(parent, spec);
  std::vector<std::string> found;
  for (const std::string& output : outputs) {
    if (!output.empty() && root.HasFile(absl::StrCat(parent.id, "/", output))) found.push_back(output);
  }
  return FilesReady(outputs, found);
}

absl::StatusOr<ForkedJob> SeedFork(const RootDir& root, const Job& parent, const ForkRequest& request,
                                   const jobs::JobSpec& spec, const std::string& id, int64_t unix_ms,
                                   const std::function<bool()>& give_up) {
  ForkFiles files = {.parent = parent.id, .fork = id, .give_up = give_up};
  const std::vector<std::string> outputs = OutputsOfParent(parent, spec);
  for (const std::string& output : outputs) {
    if (!output.empty()) files.also.push_back(output);
  }
  if (HaveSameDecisions(spec, parent.spec)) {
    files.also.insert(files.also.end(), std::begin(kDecisionLogs), std::end(kDecisionLogs));
  }
  // (They are by the data's contents, so any that the fork does not need stays unused.)
  if (spec.has_pairs()) {
    ASSIGN_OR_RETURN(const std::vector<std::string> references, ListReferences(root, parent.id));
    files.also.insert(files.also.end(), references.begin(), references.end());
  }
  for (int tries = 1;; ++tries) {
    const absl::StatusOr<int64_t> step = ChooseStep(root, parent, request.step);
    // The parent may have removed the only one of a list that was read before it saved the next.
    const bool has_saved = parent.checkpoint.has_value() && !request.step.has_value();
    if (absl::IsFailedPrecondition(step.status()) && has_saved && tries < kMostTries) continue;
    RETURN_IF_ERROR(step.status());
    files.step = *step;
    RETURN_IF_ERROR(CheckStepsLeft(spec, files.step));
    RETURN_IF_ERROR(CheckEpochs(parent, spec, files.step, request.skip_batches));
    const absl::StatusOr<ForkFolder> made = MakeForkFolder(root, files);
    if (absl::IsNotFound(made.status()) && tries < kMostTries) continue;
    if (!made.ok()) return OfFork(made.status());
    ForkedJob forked = {.id = id, .spec = spec, .origin = ForkOriginOf(parent, spec, files.step, request.skip_batches)};
    forked.checkpoint = {.step = files.step,
                         .folder = absl::StrCat(id, "/", jobs::StepFolder(files.step)),
                         .bytes = made->checkpoint_bytes,
                         .saved_unix_ms = unix_ms};
    forked.files_ready = FilesReady(outputs, made->also);
    return forked;
  }
}

}  // namespace switchyard::server
