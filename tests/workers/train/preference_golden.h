// Steps of direct preference optimization as PyTorch does them (tests/golden/preferences/make.py), and their pairs as
// rows for a group of ranks.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/io/model_dir.h"
#include "tests/workers/train/adapter_golden.h"
#include "tests/workers/train/training_group.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::train {

struct AnswerPair {
  std::vector<int32_t> chosen, rejected;  // each with its prompt
  int64_t prompt = 0;                     // tokens of it
};

struct PreferenceGolden {
  std::string dir;
  jobs::DpoSpec dpo = {};
  std::vector<std::vector<AnswerPair>> steps = {};
  std::vector<double> loss = {}, margin = {}, accuracy = {}, norm = {};  // [steps]
  model::AdapterDesc adapters = {};
  std::map<std::string, std::vector<double>> first = {};  // of the adapters
};

template <class Value>
std::vector<double> PreferenceNumbers(const checkpoint::WeightsFile& file, const checkpoint::TensorEntry& entry) {
  std::vector<Value> values(static_cast<size_t>(entry.bytes) / sizeof(Value));
  SY_CHECK_OK(file.Read(entry.begin, entry.bytes, values.data()));
  return {values.begin(), values.end()};
}

// The pairs of a step from their tokens, one behind the other.  shape: [pairs, 3].
inline std::vector<AnswerPair> PairsOfStep(const std::vector<double>& shape, std::vector<double>::const_iterator at) {
  std::vector<AnswerPair> pairs;
  for (size_t i = 0; i < shape.size(); i += 3) {
    AnswerPair& pair = pairs.emplace_back(AnswerPair{.prompt = static_cast<int64_t>(shape[i])});
    const auto chosen = static_cast<int64_t>(shape[i] + shape[i + 1]);
    const auto rejected = static_cast<int64_t>(shape[i] + shape[i + 2]);
    pair.chosen.assign(at, at + chosen);
    pair.rejected.assign(at + chosen, at + chosen + rejected);
    at += chosen + rejected;
  }
  return pairs;
}

inline PreferenceGolden LoadPreferenceGolden(const std::string& name) {
  absl::StatusOr<ModelDir> dir = ModelDir::Open("tests/golden/preferences");
  SY_CHECK_OK(dir.status());
  auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, name + ".safetensors");
  SY_CHECK_OK(file.status());
  PreferenceGolden golden;
  const bool adapted = absl::StartsWith(name, "lora-") || absl::StartsWith(name, "experts-");
  golden.dir = "tests/golden/models/" + (adapted ? name.substr(name.find('-') + 1) : name);
  std::map<std::string, std::vector<double>> all;
  for (const auto& [tensor, entry] : (*file)->tensors()) {
    all[tensor] =
        entry.dtype == "F64" ? PreferenceNumbers<double>(**file, entry) : PreferenceNumbers<int32_t>(**file, entry);
    absl::string_view key = tensor;
    if (absl::ConsumePrefix(&key, "first.")) golden.first[std::string(key)] = all[tensor];
  }
  golden.dpo = {.beta = all.at("beta")[0], .label_smoothing = all.at("label_smoothing")[0]};
  golden.loss = all.at("steps.loss");
  golden.margin = all.at("steps.margin");
  golden.accuracy = all.at("steps.accuracy");
  golden.norm = all.at("steps.norm");
  const std::vector<double>& tokens = all.at("steps.tokens");
  const size_t one = tokens.size() / golden.loss.size();
  for (size_t i = 0; i < tokens.size(); i += one) {
    golden.steps.push_back(PairsOfStep(all.at("pairs"), tokens.begin() + static_cast<int64_t>(i)));
  }
  if (all.count("rank") == 0) return golden;
  golden.adapters = {.rank = static_cast<int64_t>(all["rank"][0]),
                     .scale = all["alpha"][0] / all["rank"][0],
                     .targets = AdapterTargets(all["targets"])};
  golden.first = SplitFused(golden.first, golden.adapters, model::ReadModelConfig(golden.dir)->num_experts);
  return golden;
}

inline constexpr int64_t kPairsLength = 64;

// Rows of a micro-batch with these pairs, whose numbers begin with `first`.
inline TrainRows RowsOfPairs(absl::Span<const AnswerPair> pairs, int64_t first = 0) {
  TrainRows rows = {.length = kPairsLength, .packed = true};
  for (const AnswerPair& pair : pairs) {
    for (const std::vector<int32_t>* document : {&pair.chosen, &pair.rejected}) {
      if (!rows.tokens.empty()) rows.borders.push_back(static_cast<int32_t>(rows.tokens.size()));
      rows.tokens.insert(rows.tokens.end(), document->begin(), document->end() - 1);
      for (int64_t i = 1; i < std::ssize(*document); ++i) {
        rows.targets.push_back(i < pair.prompt ? -1 : (*document)[static_cast<size_t>(i)]);
      }
    }
    rows.pairs.push_back(first++);
  }
  return rows;
}

inline TrainingGroupOptions OptionsOfPairs(const PreferenceGolden& golden, DType dtype = DType::kF32, int world = 1) {
  TrainingGroupOptions options = {.dtype = dtype, .world = world};
  options.adapters = golden.adapters;
  options.trainer.dpo = golden.dpo;
  options.trainer.document_mask = true;
  options.trainer.max_sequences = 4;
  options.trainer.max_length = kPairsLength;
  return options;
}

// A group whose model is the reference.  With adapters it begins as PEFT began.
inline std::unique_ptr<TrainingGroup> BeginPairs(const PreferenceGolden& golden, const TrainingGroupOptions& options) {
  auto group = std::make_unique<TrainingGroup>(golden.dir, options);
  if (golden.adapters.rank == 0) return group;
  std::map<std::string, std::vector<double>> values = group->Masters();
  for (auto& [name, value] : values) {
    if (absl::EndsWith(name, "lora_A.weight")) value = golden.first.at(name);
  }
  group->SetMasters(values);
  return group;
}

// Micro-batches of each rank: micro-batch m has the m-th part of the pairs, and rank r of it the r-th part.
using RankRows = std::vector<std::vector<TrainRows>>;  // [ranks][micro-batches]
inline RankRows Deal(const std::vector<AnswerPair>& pairs, int world, int micro_batches) {
  RankRows ranks(static_cast<size_t>(world));
  const size_t part = pairs.size() / static_cast<size_t>(world * micro_batches);
  SY_CHECK(part > 0);
  size_t first = 0;
  for (int m = 0; m < micro_batches; ++m) {
    for (int r = 0; r < world; ++r, first += part) {
      ranks[static_cast<size_t>(r)].push_back(
          RowsOfPairs(absl::MakeConstSpan(pairs).subspan(first, part), static_cast<int64_t>(first)));
    }
  }
  return ranks;
}

// Sets what the group's model, which is the reference, says of the rows.
inline void Refer(TrainingGroup* group, RankRows* ranks) {
  const auto statuses = group->OnEach([&](int r) {
    for (TrainRows& rows : (*ranks)[static_cast<size_t>(r)]) {
      absl::StatusOr<std::vector<PairLogProbs>> said =
          group->trainer(r).LogProbs(rows, absl::Now() + absl::Seconds(60));
      if (!said.ok()) return said.status();
      rows.references = *std::move(said);
    }
    return absl::OkStatus();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
}

// Rank 0's report, which the others' must be.
inline StepReport RunPairs(TrainingGroup* group, const RankRows& ranks, double learning_rate, bool evaluate = false) {
  std::vector<StepReport> reports(ranks.size());
  const auto statuses = group->OnEach([&](int r) {
    Trainer& trainer = group->trainer(r);
    const auto i = static_cast<size_t>(r);
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    absl::StatusOr<StepReport> report =
        evaluate ? trainer.Evaluate(ranks[i], deadline) : trainer.Step(ranks[i], learning_rate, deadline);
    if (report.ok()) reports[i] = *report;
    return report.status();
  });
  for (const absl::Status& status : statuses) EXPECT_TRUE(status.ok()) << status;
  for (const StepReport& report : reports) {
    EXPECT_EQ(report.loss, reports[0].loss);
    EXPECT_EQ(report.preferences, reports[0].preferences);
    EXPECT_TRUE(report.preferences.has_value());
  }
  return reports[0];
}

}  // namespace switchyard::train
