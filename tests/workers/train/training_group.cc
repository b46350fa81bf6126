#include "tests/workers/train/training_group.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/tensors/checkpoint.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/weights/loader.h"
#include "workers/train/packing/repack.h"

namespace switchyard::train {
namespace {

constexpr char kGoldens[] = "tests/golden/training";
constexpr absl::Duration kPatience = absl::Seconds(60);

std::unique_ptr<checkpoint::WeightsFile> OpenGolden(const std::string& name) {
  absl::StatusOr<ModelDir> dir = ModelDir::Open(kGoldens);
  SY_CHECK_OK(dir.status());
  auto file = checkpoint::WeightsFile::OpenSafetensors(*dir, name + ".safetensors");
  SY_CHECK_OK(file.status());
  return *std::move(file);
}

template <class Value>
std::vector<Value> ReadAll(const checkpoint::WeightsFile& file, const checkpoint::TensorEntry& entry) {
  std::vector<Value> values(entry.bytes / sizeof(Value));
  SY_CHECK_OK(file.Read(entry.begin, entry.bytes, values.data()));
  return values;
}

// Neighbouring sequences, as jobs deal them out (TrainJob::LoadStep); where they cannot be dealt out in equal parts the
// first ranks have more.
TrainRows ShareOf(const TrainRows& rows, int rank, int world) {
  if (world == 1) return rows;
  TrainRows share = {.length = rows.length, .tokens = {}, .targets = {}, .borders = {}};
  const int64_t sequences = static_cast<int64_t>(rows.tokens.size()) / rows.length;
  const int64_t even = sequences / world, more = sequences % world;
  const int64_t first = rank * even + std::min<int64_t>(rank, more);
  share.first_sequence = rows.first_sequence + first;
  for (int64_t s = first; s < first + even + (rank < more ? 1 : 0); ++s) {
    const auto append = [&](const std::vector<int32_t>& from, std::vector<int32_t>* to) {
      to->insert(to->end(), from.begin() + s * rows.length, from.begin() + (s + 1) * rows.length);
    };
    append(rows.tokens, &share.tokens);
    append(rows.targets, &share.targets);
    for (const int32_t border : rows.borders) {
      if (border / rows.length == s) share.borders.push_back(static_cast<int32_t>(border - first * rows.length));
    }
  }
  return share;
}

}  // namespace

std::vector<std::string> TrainingGoldenNames() {
  return {"gpt2-top1", "gpt2-top2", "mixtral-window", "olmoe-clip", "qwen2-shared", "qwen3-qknorm"};
}

TrainingGolden LoadTrainingGolden(const std::string& name) {
  TrainingGolden golden = {.name = name,
                           .dir = absl::StrCat("tests/golden/models/",
                                               absl::StripSuffix(absl::StripSuffix(name, "-capacity"), "-documents"))};
  const std::unique_ptr<checkpoint::WeightsFile> file = OpenGolden(name);
  for (const auto& [tensor, entry] : file->tensors()) {
    absl::string_view parameter = tensor;
    if (absl::ConsumePrefix(&parameter, "gradient.")) {
      golden.gradients[std::string(parameter)] = ReadAll<float>(*file, entry);
    } else if (tensor == "tokens") {
      golden.sequences = entry.shape[0];
      golden.length = entry.shape[1];
      golden.tokens = ReadAll<int32_t>(*file, entry);
    } else if (tensor == "labels") {
      golden.targets = ReadAll<int32_t>(*file, entry);
    } else if (tensor == "borders") {
      golden.borders = ReadAll<int32_t>(*file, entry);
    } else if (tensor == "loss") {
      golden.loss = ReadAll<double>(*file, entry)[0];
    } else if (tensor == "aux") {
      golden.aux = ReadAll<double>(*file, entry)[0];
    } else if (tensor == "steps.tokens") {
      const std::vector<int32_t> all = ReadAll<int32_t>(*file, entry);
      const int64_t one = entry.shape[1] * entry.shape[2];
      for (int64_t i = 0; i < entry.shape[0]; ++i) {
        golden.step_tokens.emplace_back(all.begin() + i * one, all.begin() + (i + 1) * one);
      }
    } else if (tensor == "steps.loss") {
      golden.step_loss = ReadAll<double>(*file, entry);
    } else if (tensor == "steps.norm") {
      golden.step_norm = ReadAll<double>(*file, entry);
    } else if (tensor == "capacity_factor") {
      golden.capacity_factor = ReadAll<double>(*file, entry)[0];
    } else if (tensor == "dropped") {
      golden.dropped = ReadAll<int32_t>(*file, entry)[0];
    } else if (tensor == "steps.dropped") {
      golden.step_dropped = ReadAll<int32_t>(*file, entry);
    } else if (tensor == "bias_rate") {
      golden.bias_rate = ReadAll<double>(*file, entry)[0];
    } else if (tensor == "steps.bias") {
      golden.step_bias = ReadAll<double>(*file, entry);
    }
  }
  SY_CHECK(!golden.gradients.empty() && golden.step_loss.size() == golden.step_tokens.size());
  return golden;
}

TrainRows RowsOfStep(const TrainingGolden& golden, size_t step) {
  TrainRows rows = {.length = golden.length, .tokens = {}, .targets = {}, .borders = {}};
  for (int64_t s = 0; s < golden.sequences; ++s) {
    const auto begin = golden.step_tokens[step].begin() + s * (golden.length + 1);
    rows.tokens.insert(rows.tokens.end(), begin, begin + golden.length);
    rows.targets.insert(rows.targets.end(), begin + 1, begin + golden.length + 1);
  }
  return rows;
}

struct TrainingGroup::Rank {
  Rank(int threads, std::unique_ptr<comm::Communicator> communicator)
      : pool(threads), stream(Stream::OnCpu(&pool)), comm(std::move(communicator)) {}

  ThreadPool pool;
  Stream stream;
  std::unique_ptr<comm::Communicator> comm;
  std::unique_ptr<ExpertGroups> groups;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Trainer> trainer;
};

TrainingGroup::TrainingGroup(const std::string& dir, const TrainingGroupOptions& options) : options_(options) {
  absl::StatusOr<model::ModelConfig> config = model::ReadModelConfig(dir);
  SY_CHECK_OK(config.status());
  absl::StatusOr<checkpoint::Checkpoint> checkpoint = checkpoint::Checkpoint::Open(dir);
  SY_CHECK_OK(checkpoint.status());
  const int num_experts = static_cast<int>(config->num_experts);
  std::vector<std::unique_ptr<comm::Communicator>> comms =
      options.form ? options.form(options.world) : comm::MakeLocalGroup(options.world);
  for (int r = 0; r < options.world; ++r) {
    if (options.wrap) comms[r] = options.wrap(std::move(comms[r]));
    Rank& rank = *ranks_.emplace_back(std::make_unique<Rank>(options.threads, std::move(comms[r])));
    absl::StatusOr<model::ModelWeights> weights =
        model::AllocateWeights(*config, options.dtype, PackedResidents(num_experts, options.world, options.packing, r));
    SY_CHECK_OK(weights.status());
    SY_CHECK_OK(model::AllocateAdapters(*config, options.dtype, options.adapters, &*weights));
    absl::StatusOr<std::unique_ptr<model::Model>> model =
        model::Model::Create(rank.stream, *config, options.dtype, *std::move(weights), config->context);
    SY_CHECK_OK(model.status());
    rank.model = *std::move(model);
    absl::StatusOr<std::unique_ptr<Parameters>> parameters =
        Parameters::Create(rank.stream, rank.model.get(), options.offload ? options.offload(r) : nullptr, options.rules,
                           options.zero ? ShardPlace{r, options.world, options.gather_bytes} : ShardPlace());
    SY_CHECK_OK(parameters.status());
    rank.parameters = *std::move(parameters);
    SY_CHECK_OK(rank.parameters->Load(*checkpoint, 1));
    if (rank.parameters->adapted()) SY_CHECK_OK(rank.parameters->InitialiseAdapters(/*seed=*/1));
    TrainerOptions trainer = options.trainer;
    if (trainer.max_sequences == 0) trainer.max_sequences = 16;
    if (trainer.max_length == 0) trainer.max_length = 64;
    auto made = Trainer::Create(rank.stream, rank.model.get(), rank.parameters.get(), trainer);
    SY_CHECK_OK(made.status());
    rank.trainer = *std::move(made);
  }
  for (const absl::Status& status : OnEach([&](int r) {
         auto groups = ExpertGroups::Make(ranks_[r]->comm.get(), num_experts, options.packing, absl::Now() + kPatience);
         SY_CHECK_OK(groups.status());
         ranks_[r]->groups = *std::move(groups);
         SY_CHECK_OK(Publish(r));
         return ranks_[r]->trainer->SetGroup(ranks_[r]->groups->group());
       })) {
    SY_CHECK_OK(status);
  }
}

TrainingGroup::~TrainingGroup() = default;

std::vector<absl::StatusOr<StepReport>> TrainingGroup::OnRanks(
    const std::vector<TrainRows>& micro_batches,
    const std::function<absl::StatusOr<StepReport>(Trainer*, const std::vector<TrainRows>&)>& run) {
  std::vector<absl::StatusOr<StepReport>> reports(ranks_.size(), absl::UnknownError("has not run"));
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([&, r] {
      std::vector<TrainRows> mine;
      for (const TrainRows& rows : micro_batches) {
        mine.push_back(ShareOf(rows, static_cast<int>(r), static_cast<int>(ranks_.size())));
      }
      reports[r] = run(ranks_[r]->trainer.get(), mine);
    });
  }
  for (std::thread& thread : threads) thread.join();
  return reports;
}

namespace {

absl::StatusOr<StepReport> TheSameOfAll(const std::vector<absl::StatusOr<StepReport>>& reports) {
  for (const absl::StatusOr<StepReport>& report : reports) {
    if (!report.ok()) return report.status();
    EXPECT_EQ(report->loss, reports[0]->loss);
    EXPECT_EQ(report->balance_loss, reports[0]->balance_loss);
    EXPECT_EQ(report->z_loss, reports[0]->z_loss);
    EXPECT_EQ(report->gradient_norm, reports[0]->gradient_norm);
    EXPECT_EQ(report->tokens, reports[0]->tokens);
    EXPECT_EQ(report->skipped, reports[0]->skipped);
    EXPECT_EQ(report->dead_experts, reports[0]->dead_experts);
    EXPECT_EQ(report->dropped_rows, reports[0]->dropped_rows);
  }
  return reports[0];
}

}  // namespace

std::vector<absl::StatusOr<StepReport>> TrainingGroup::StepEach(const std::vector<TrainRows>& micro_batches,
                                                                double learning_rate) {
  return OnRanks(micro_batches, [&](Trainer* trainer, const std::vector<TrainRows>& mine) {
    return trainer->Step(mine, learning_rate, absl::Now() + kPatience);
  });
}

absl::StatusOr<StepReport> TrainingGroup::TryStep(const std::vector<TrainRows>& micro_batches, double learning_rate) {
  return TheSameOfAll(StepEach(micro_batches, learning_rate));
}

StepReport TrainingGroup::Step(const std::vector<TrainRows>& micro_batches, double learning_rate) {
  const absl::StatusOr<StepReport> report = TryStep(micro_batches, learning_rate);
  SY_CHECK_OK(report.status());
  return *report;
}

StepReport TrainingGroup::Evaluate(const std::vector<TrainRows>& micro_batches) {
  const absl::StatusOr<StepReport> report =
      TheSameOfAll(OnRanks(micro_batches, [](Trainer* trainer, const std::vector<TrainRows>& mine) {
        return trainer->Evaluate(mine, absl::Now() + kPatience);
      }));
  SY_CHECK_OK(report.status());
  return *report;
}

std::map<std::string, std::vector<double>> TrainingGroup::Collect(Tensor ParameterBlock::*values) const {
  std::map<std::string, std::vector<double>> all;
  const bool gradients = values == &ParameterBlock::gradient;
  const auto take = [&](const ParameterBlock& block, const model::Param& part) {
    const ElementRange whole = {part.first_row * part.columns, part.rows * part.columns};
    const ElementRange here = Intersect(whole, block.own());
    std::vector<double>& to = all[part.name];
    if (!to.empty() && !block.is_sharded()) return;  // replicated: of the first rank
    to.resize(static_cast<size_t>(whole.count));
    const TensorView from = gradients ? block.GradientAt(here) : block.StateAt(values, here);
    VisitDType(from.dtype(), [&]<class Elem>() {
      std::transform(from.data<Elem>(), from.data<Elem>() + here.count, to.begin() + (here.begin - whole.begin),
                     [](Elem value) { return static_cast<double>(static_cast<Acc<Elem>>(value)); });
    });
  };
  ForEachBlock([&](const ParameterBlock& block) {
    if ((block.*values).shape().rank == 0) return;  // frozen
    for (const model::Param& part : block.parts) take(block, part);
  });
  return all;
}

void TrainingGroup::ForEachBlock(absl::FunctionRef<void(const ParameterBlock&)> use) const {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    SY_CHECK_OK(rank->parameters->ForEachGroup(StateAccess::kRead, [&](absl::Span<ParameterBlock* const> group) {
      for (const ParameterBlock* block : group) use(*block);
      return absl::OkStatus();
    }));
  }
}

std::map<std::string, std::vector<double>> TrainingGroup::Gradients() const {
  return Collect(&ParameterBlock::gradient);
}
std::map<std::string, std::vector<double>> TrainingGroup::Masters() const { return Collect(&ParameterBlock::master); }
std::map<std::string, std::vector<double>> TrainingGroup::Moments() const {
  std::map<std::string, std::vector<double>> all = Collect(&ParameterBlock::mean);
  for (const auto& [name, values] : Collect(&ParameterBlock::mean_squares)) {
    all[name].insert(all[name].end(), values.begin(), values.end());
  }
  return all;
}

void TrainingGroup::ExpectReplicasAlike() const {
  std::map<std::string, std::string> first;
  ForEachBlock([&](const ParameterBlock& block) {
    std::string bytes;
    const auto append = [&](const void* from, int64_t count) {
      bytes.append(static_cast<const char*>(from), static_cast<size_t>(count));
    };
    if (!block.is_sharded()) {
      for (const auto values : StateOf(block)) append((block.*values).view().raw(), (block.*values).bytes());
      append(block.gradient.view().raw(), block.gradient.bytes());
    }
    if (block.tensor != nullptr) append(block.tensor->view().raw(), block.tensor->bytes());
    if (block.weight != nullptr) {
      append(block.weight->data(), block.weight->bytes());
      append(block.transposed.data(), block.transposed.bytes());
    }
    const std::string& name = block.parts[0].name;
    EXPECT_TRUE(first.try_emplace(name, bytes).first->second == bytes) << name;
  });
}

std::vector<absl::Status> TrainingGroup::OnEach(const std::function<absl::Status(int rank)>& run) {
  std::vector<absl::Status> statuses(ranks_.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks_.size(); ++r) {
    threads.emplace_back([&, r] { statuses[r] = run(static_cast<int>(r)); });
  }
  for (std::thread& thread : threads) thread.join();
  return statuses;
}

std::vector<absl::Status> TrainingGroup::TryRepack(int packing,
                                                   const std::function<OpenStateFileFn(int rank)>& offload) {
  return OnEach([&](int r) -> absl::Status {
    Rank& rank = *ranks_[r];
    const absl::Time deadline = absl::Now() + kPatience;
    RepackOptions options = {.packing = packing, .open_offload = offload ? offload(r) : nullptr, .offloads = true};
    std::unique_ptr<Repack> repack;
    ASSIGN_OR_RETURN(repack, Repack::Prepare(*rank.groups, rank.parameters.get(), options, deadline));
    EXPECT_EQ(repack->refusal(), absl::OkStatus());
    std::unique_ptr<ExpertGroups> groups;
    ASSIGN_OR_RETURN(groups, repack->Run(deadline));
    RETURN_IF_ERROR(rank.trainer->SetGroup(groups->group()));
    rank.groups = std::move(groups);
    return absl::OkStatus();
  });
}

void TrainingGroup::SetMasters(const std::map<std::string, std::vector<double>>& values) {
  for (const std::unique_ptr<Rank>& rank : ranks_) {
    SY_CHECK_OK(rank->parameters->ForEachGroup(StateAccess::kUpdate, [&](absl::Span<ParameterBlock* const> group) {
      for (ParameterBlock* block : group) {
        for (const model::Param& part : block->parts) {
          const ElementRange whole = {part.first_row * part.columns, part.rows * part.columns};
          const ElementRange here = Intersect(whole, block->own());
          const auto from = values.at(part.name).begin() + (here.begin - whole.begin);
          VisitDType(block->master.dtype(), [&]<class Elem>() {
            std::transform(from, from + here.count, block->StateAt(&ParameterBlock::master, here).data<Elem>(),
                           [](double value) { return static_cast<Elem>(value); });
          });
        }
      }
      return absl::OkStatus();
    }));
  }
  for (const absl::Status& status : OnEach([&](int r) { return Publish(r); })) SY_CHECK_OK(status);
}

absl::Status TrainingGroup::Publish(int rank) {
  return ranks_[rank]->parameters->Publish({.comm = ranks_[rank]->comm.get(), .deadline = absl::Now() + kPatience});
}

comm::Communicator* TrainingGroup::comm(int rank) { return ranks_[rank]->comm.get(); }
ExpertGroups& TrainingGroup::groups(int rank) { return *ranks_[rank]->groups; }
Trainer& TrainingGroup::trainer(int rank) { return *ranks_[rank]->trainer; }
Parameters& TrainingGroup::parameters(int rank) { return *ranks_[rank]->parameters; }
model::Model& TrainingGroup::model(int rank) { return *ranks_[rank]->model; }

}  // namespace switchyard::train
