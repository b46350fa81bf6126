// A trainer's losses, of tokens and of pairs of answers, and its passes that train nothing: evaluation, log
// probabilities of answers, and layers that are timed.
#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/copy.h"
#include "workers/train/reduce/gradient_norm.h"
#include "workers/train/step/preference_loss.h"
#include "workers/train/step/trainer.h"

namespace switchyard::train {
namespace {

// One by itself does not show what ranks that wait for each other lose from layer to layer (tests/bench/training.md).
constexpr int64_t kTimedLayers = 4;

}  // namespace

absl::StatusOr<std::vector<model::LossSegment>> Trainer::DocumentLosses(const TrainRows& rows,
                                                                        const TensorView& residual) {
  std::vector<model::LossSegment> documents;
  int64_t begin = 0;
  for (const int32_t border : rows.borders) {
    documents.push_back({.rows = border - begin});
    begin = border;
  }
  const auto end = static_cast<int64_t>(rows.tokens.size());
  if (end > begin) documents.push_back({.rows = end - begin});
  SY_CHECK_EQ(documents.size(), 2 * rows.pairs.size());
  RETURN_IF_ERROR(head_.EvaluateSegments(stream_, residual, rows.targets, absl::MakeSpan(documents)));
  return documents;
}

absl::Status Trainer::RunHead(const TrainRows& rows, const GlobalCounts& counts, const TensorView& residual,
                              const TensorView& d_residual, StepReport* report) {
  if (!of_pairs()) {
    ASSIGN_OR_RETURN(const model::LossSum sum,
                     head_.Run(stream_, residual, rows.targets, 1.0 / static_cast<double>(counts.tokens),
                               parameters_->gradients(), d_residual));
    report->loss += sum.loss;
    return absl::OkStatus();
  }
  // A pair's loss is a function of two log probabilities, so its gradient is that of its tokens' cross-entropy with a
  // weight for each answer, which follows from both.
  ASSIGN_OR_RETURN(std::vector<model::LossSegment> documents, DocumentLosses(rows, residual));
  for (size_t i = 0; i < rows.pairs.size(); ++i) {
    model::LossSegment &chosen = documents[2 * i], &rejected = documents[2 * i + 1];
    const PairLoss pair = PairLossOf(options_.dpo, {-chosen.loss, -rejected.loss}, rows.references[i]);
    preferences_.Add(pair);
    rejected.scale = pair.slope / static_cast<double>(counts.pairs);
    chosen.scale = -rejected.scale;
  }
  return head_.RunSegments(stream_, residual, rows.targets, parameters_->gradients(), d_residual,
                           absl::MakeSpan(documents));
}

absl::Status Trainer::EvaluateHead(const TrainRows& rows, const TensorView& residual, StepReport* report) {
  if (!of_pairs()) {
    ASSIGN_OR_RETURN(const model::LossSum sum, head_.Evaluate(stream_, residual, rows.targets));
    report->loss += sum.loss;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const std::vector<model::LossSegment> documents, DocumentLosses(rows, residual));
  for (size_t i = 0; i < rows.pairs.size(); ++i) {
    preferences_.Add(
        PairLossOf(options_.dpo, {-documents[2 * i].loss, -documents[2 * i + 1].loss}, rows.references[i]));
  }
  return absl::OkStatus();
}

absl::Status Trainer::FinishLoss(const GlobalCounts& counts, absl::Time deadline, StepReport* report) {
  double sums[] = {of_pairs() ? preferences_.loss : report->loss, static_cast<double>(dropped_), preferences_.margin,
                   preferences_.accurate};
  RETURN_IF_ERROR(SumOver(stream_, group_.world, TensorView(sums, DType::kF64, {of_pairs() ? 4 : 2}), deadline));
  report->loss = sums[0] / static_cast<double>(std::max<int64_t>(of_pairs() ? counts.pairs : counts.tokens, 1));
  report->dropped_rows = static_cast<int64_t>(sums[1]);
  if (of_pairs()) {
    report->preferences = PreferenceSums{.margin = sums[2], .accurate = sums[3]}.Mean(counts.pairs);
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorView> Trainer::ForwardOnly(const TrainRows& rows, int64_t all_rows, absl::Time deadline) {
  ChooseSchedule(all_rows, false);
  BuildBatch(rows);
  moe::MoeStats stats;
  const moe::MoeContext moe = ContextOf(/*capacity=*/{}, deadline, &stats);
  ASSIGN_OR_RETURN(model::StageOut out,
                   model_->Forward({.batch = &batch_, .moe = &moe}, model_->all_layers(), &cache_, nullptr));
  return out.hidden;
}

absl::StatusOr<StepReport> Trainer::Evaluate(absl::Span<const TrainRows> micro_batches, absl::Time deadline) {
  return EndingGroup(RunEvaluation(micro_batches, deadline));
}

absl::StatusOr<StepReport> Trainer::RunEvaluation(absl::Span<const TrainRows> micro_batches, absl::Time deadline) {
  SY_CHECK(group_.world != nullptr);
  RETURN_IF_ERROR(CheckMicroBatches(options_, model_->config().vocab_size, micro_batches));
  if (of_pairs()) RETURN_IF_ERROR(CheckPairs(micro_batches, /*referred=*/true));
  ASSIGN_OR_RETURN(GlobalCounts counts, CountAll(micro_batches, /*trains=*/false, deadline));
  StepReport report = {.tokens = counts.tokens};
  dropped_ = 0;
  preferences_ = {};
  for (size_t i = 0; i < micro_batches.size(); ++i) {
    ASSIGN_OR_RETURN(const TensorView residual, ForwardOnly(micro_batches[i], counts.rows[i], deadline));
    RETURN_IF_ERROR(EvaluateHead(micro_batches[i], residual, &report));
  }
  RETURN_IF_ERROR(FinishLoss(counts, deadline, &report));
  if (std::isfinite(report.loss)) return report;
  return absl::DataLossError(absl::StrCat("loss is not finite: ", report.loss, " of an evaluation"));
}

absl::StatusOr<std::vector<PairLogProbs>> Trainer::RunLogProbs(const TrainRows& rows, absl::Time deadline) {
  SY_CHECK(group_.world != nullptr);
  const absl::Span<const TrainRows> one = absl::MakeConstSpan(&rows, 1);
  RETURN_IF_ERROR(CheckMicroBatches(options_, model_->config().vocab_size, one));
  RETURN_IF_ERROR(CheckPairs(one, /*referred=*/false));
  ASSIGN_OR_RETURN(const GlobalCounts counts, CountAll(one, /*trains=*/false, deadline));
  ASSIGN_OR_RETURN(const TensorView residual, ForwardOnly(rows, counts.rows[0], deadline));
  ASSIGN_OR_RETURN(const std::vector<model::LossSegment> documents, DocumentLosses(rows, residual));
  std::vector<PairLogProbs> pairs;
  for (size_t i = 0; i < documents.size(); i += 2) {
    pairs.push_back({-documents[i].loss, -documents[i + 1].loss});
  }
  return pairs;
}

absl::StatusOr<std::vector<PairLogProbs>> Trainer::LogProbs(const TrainRows& rows, absl::Time deadline) {
  return EndingGroup(RunLogProbs(rows, deadline));
}

absl::Status Trainer::RunLayers(int32_t chunks, absl::Time deadline) {
  const absl::Status status = RunTimedLayers(chunks, deadline);
  if (!status.ok()) EndGroup(status);
  return status;
}

// What it adds to gradients the next step sets to zero.
absl::Status Trainer::RunTimedLayers(int32_t chunks, absl::Time deadline) {
  SY_CHECK(group_.world != nullptr && model_->config().num_moe_layers() > 0);
  int64_t layer = 0;
  while (model_->moe_layer(layer) == nullptr) ++layer;
  const int64_t end = std::min(layer + kTimedLayers, model_->config().num_layers());
  TrainRows rows = {.length = options_.max_length, .tokens = {}, .targets = {}};
  for (int64_t i = 0; i < options_.max_sequences * options_.max_length; ++i) {
    const uint64_t drawn = SplitMix(static_cast<uint64_t>(group_.world->rank()) << 32 | static_cast<uint64_t>(i));
    rows.tokens.push_back(static_cast<int32_t>(drawn % static_cast<uint64_t>(model_->config().vocab_size)));
  }
  SetSchedule(chunks, /*trains=*/true);
  BuildBatch(rows);
  saved_->Begin(NumRows(rows));
  moe::MoeStats stats;
  const moe::MoeContext moe = ContextOf(/*capacity=*/{}, deadline, &stats);
  const model::StageIn forward = {.batch = &batch_, .moe = &moe};
  RETURN_IF_ERROR(model_->Forward(forward, {0, end}, &cache_, &*saved_).status());
  const TensorView d_residual = d_residual_.Rows(NumRows(rows));
  RETURN_IF_ERROR(FillZero(stream_, d_residual));
  return backward_->Run(
      {.forward = forward, .cache = &cache_, .saved = &*saved_, .gradients = &parameters_->gradients()}, {layer, end},
      d_residual);
}

}  // namespace switchyard::train
