#include "workers/train/job/setup/job_data.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/token_format.h"
#include "workers/train/data/token_file.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/step/train_outcome.h"

namespace switchyard::train {
namespace {

absl::StatusOr<std::vector<TokenFile>> OpenFiles(JobContext* context, const model::ModelConfig& config,
                                                 const std::vector<jobs::TrainFile>& files, absl::string_view what) {
  const TrainJobInput& input = context->input();
  ASSIGN_OR_RETURN(const RootDir checkpoints, RootDir::Open(input.checkpoint_root, kCheckpointRoot));
  ASSIGN_OR_RETURN(const RootDir datasets, RootDir::Open(input.dataset_root, "the dataset root"));
  std::vector<TokenFile> opened;
  for (const jobs::TrainFile& file : files) {
    absl::StatusOr<TokenFile> tokens = file.of_job
                                           ? TokenFile::Open(checkpoints, absl::StrCat(input.job_id, "/", file.name))
                                           : TokenFile::Open(datasets, file.name);
    if (!tokens.ok()) return In(what, tokens.status());
    // Reads all of it once, so that training reads checked files.
    if (context->leads()) {
      const absl::Status verified = tokens->Verify(config.vocab_size, [&](int64_t done, int64_t total) {
        return context->NotePart(absl::StrCat("checks ", file.name), done, total);
      });
      if (!verified.ok()) return In(what, verified);
    }
    opened.push_back(*std::move(tokens));
  }
  return opened;
}

// Rank 0 checks, as it does for the rest of the contents.
absl::Status CheckTargets(JobContext* context, const DataSource& source, size_t num_files, absl::string_view what) {
  if (!context->leads()) return absl::OkStatus();
  ASSIGN_OR_RETURN(const bool found, source.HasTarget([&](int64_t done, int64_t total) {
    return context->NotePart(absl::StrCat("looks for targets of ", what), done, total);
  }));
  if (found) return absl::OkStatus();
  return In(what, jobs::NoTargetError(num_files, source.num_tokens(), context->spec().sequence_length));
}

DataOptions OptionsOf(JobContext* context, int64_t vocab, absl::string_view what) {
  const jobs::JobSpec& spec = context->spec();
  return {.length = spec.sequence_length,
          .vocab = vocab,
          .seed = spec.seed,
          .document_mask = spec.document_mask,
          .packing = spec.packing,
          .progress = [context, what = std::string(what)](int64_t done, int64_t total) {
            return context->NotePart(absl::StrCat("looks for documents of ", what), done, total);
          }};
}

// Of a job of epochs.  From here on they are part of the job's spec, and of its checkpoints (ShapeOf).
absl::Status SetSteps(JobContext* context, int64_t windows) {
  const jobs::JobSpec& spec = context->spec();
  if (spec.epochs == 0) return absl::OkStatus();
  const double samples = spec.epochs * static_cast<double>(windows);
  // (3 * 0.1 of 10 sequences are 3, whatever the last bit of the product says.)
  const double steps = std::ceil(samples / static_cast<double>(spec.batch_sequences) * (1 - 1e-12));
  if (steps > static_cast<double>(jobs::kMaxTrainSteps)) {
    return absl::InvalidArgumentError(absl::StrCat("epochs: ", spec.epochs, " of ", windows, " sequences are ", steps,
                                                   " steps, at most ", jobs::kMaxTrainSteps));
  }
  context->set_steps(std::max<int64_t>(1, static_cast<int64_t>(steps)));
  const std::string are = absl::StrCat(spec.epochs, " epochs of ", windows, " sequences are ", spec.steps, " steps");
  if (const absl::Status fits = jobs::Validate(spec.optimizer.schedule); !fits.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("epochs: ", are, "; ", fits.message()));
  }
  if (context->leads()) context->notes().Stage(are);
  return absl::OkStatus();
}

// The files of an evaluation set.
struct SetFiles {
  std::string name;
  std::vector<jobs::TrainFile> files;
};

std::vector<SetFiles> SetsOf(const TrainJobInput& input) {
  std::vector<SetFiles> sets;
  if (input.evaluation.empty()) return sets;
  for (const jobs::EvaluationSet& set : jobs::EvaluationSetsOf(input.spec)) sets.push_back({set.name, {}});
  if (sets.empty()) sets.emplace_back();
  for (const jobs::TrainFile& file : input.evaluation) sets[static_cast<size_t>(file.set)].files.push_back(file);
  return sets;
}

}  // namespace

absl::Status OfData(const absl::Status& status, bool were_right) {
  if (status.ok() || OutcomeOf(status) != jobs::TrainOutcome::kFailed) return status;
  return were_right || absl::IsNotFound(status) ? Blocked(status) : status;
}

absl::StatusOr<JobData> OpenJobData(JobContext* context, const model::ModelConfig& config) {
  const TrainJobInput& input = context->input();
  JobData data;
  uint64_t seen = Fnv1a("");
  const auto open = [&](const std::vector<jobs::TrainFile>& files, absl::string_view what, bool in_order,
                        std::unique_ptr<DataSource>* source) -> absl::Status {
    ASSIGN_OR_RETURN(std::vector<TokenFile> tokens, OpenFiles(context, config, files, what));
    for (size_t i = 0; i < tokens.size(); ++i) {
      const jobs::TokenFileHeader& header = tokens[i].header();
      seen = Fnv1a(absl::StrCat(files[i].name, " ", header.num_tokens, " ", header.contents, "\n"), seen);
      if (!in_order) data.names.push_back({files[i].name, header});
    }
    DataOptions options = OptionsOf(context, config.vocab_size, what);
    options.in_order = in_order;
    if (!in_order) options.weights = context->spec().dataset_weights;
    ASSIGN_OR_RETURN(*source, In(what, DataSource::Create(std::move(tokens), options)));
    if ((*source)->of_pairs() != context->spec().has_pairs()) {
      return In(what, absl::InvalidArgumentError(absl::StrCat(
                          files[0].name, context->spec().has_pairs()
                                             ? ": has no pairs of answers, which a job with dpo wants"
                                             : ": has pairs of answers, which only a job with dpo trains on")));
    }
    seen = Fnv1a(absl::StrCat((*source)->num_windows(), "\n"), seen);
    if (context->leads()) context->notes().Stage(absl::StrCat(what, ": ", (*source)->ToString()));
    return CheckTargets(context, **source, files.size(), what);
  };
  context->notes().Stage("checks its data");
  absl::Status mine = open(input.data, "datasets", false, &data.training);
  if (mine.ok()) mine = SetSteps(context, data.training->num_windows());
  for (const SetFiles& set : SetsOf(input)) {
    if (!mine.ok()) break;
    EvaluationData& opened = data.evaluation.emplace_back(EvaluationData{.name = set.name});
    mine = open(set.files, set.name.empty() ? "evaluation" : absl::StrCat("evaluation set ", set.name), true,
                &opened.source);
  }
  const bool were_right = context->had_data();  // so they were valid
  RankWord word;
  word.SetStatus(OfData(mine, were_right));
  word.number = static_cast<int64_t>(seen);
  ASSIGN_OR_RETURN(std::vector<RankWord> words, ExchangeWords(context->comm(), word, input.disk_limit));
  absl::Status status = FirstError(words);
  for (size_t r = 1; r < words.size() && status.ok(); ++r) {
    if (words[r].number == words[0].number) continue;
    status = OfData(absl::FailedPreconditionError(absl::StrCat("datasets: rank ", r, " has other files than rank 0")),
                    were_right);
  }
  context->set_agreed(!status.ok());
  RETURN_IF_ERROR(status);
  return data;
}

}  // namespace switchyard::train
