// One rank of a group that trains with the modes of communication in turns, for training_trainers.py: weights and
// tokens are drawn, so only the shapes of a config.json are needed.  Prints a line of JSON for each step: mode and
// seconds.
//
//   training_rank_bench --config=DIR --store=DIR --rank=N --world=N --address=IP [--modes=fair,ar_last,…]
//                       [--rounds=N] [--sequences=N] [--length=N] [--piece_bytes=N] [--threads=N]
//
// A mode may have a granularity, preempt@4, preempt@auto, and behind it a number of replicas of each expert,
// preempt/2, full@4/2 (scheduler/jobs/comm_spec.h); without one it has 1, and preempt cuts nothing.
// sequences: of a rank.  Modes take turns, one step each, in every round; the first round is not printed.  All modes
// with the same number of replicas train the same parameters.
#include <cstdint>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/reduce_policy.h"
#include "tests/bench/bench_ranks.h"
#include "tests/bench/job_choices.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/packing/expert_groups.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/step/trainer.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);

struct Flags {
  bench::RankFlags ranks = {};
  std::string config, modes = "fair,fixed,ar_last,priority,partition,preempt";
  int threads = 1;
  int64_t rounds = 5, sequences = 1, length = 128, piece_bytes = jobs::kPiecesByLink;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (bench::TakeRankFlag(arg, &flags.ranks)) continue;
    const bool ok = absl::ConsumePrefix(&arg, "--config=")        ? (flags.config = std::string(arg), true)
                    : absl::ConsumePrefix(&arg, "--modes=")       ? (flags.modes = std::string(arg), true)
                    : absl::ConsumePrefix(&arg, "--threads=")     ? absl::SimpleAtoi(arg, &flags.threads)
                    : absl::ConsumePrefix(&arg, "--rounds=")      ? absl::SimpleAtoi(arg, &flags.rounds)
                    : absl::ConsumePrefix(&arg, "--sequences=")   ? absl::SimpleAtoi(arg, &flags.sequences)
                    : absl::ConsumePrefix(&arg, "--length=")      ? absl::SimpleAtoi(arg, &flags.length)
                    : absl::ConsumePrefix(&arg, "--piece_bytes=") ? absl::SimpleAtoi(arg, &flags.piece_bytes)
                                                                  : false;
    if (!ok) return absl::InvalidArgumentError(absl::StrCat("cannot take ", argv[i]));
  }
  if (flags.threads < 1 || flags.rounds < 1 || flags.sequences < 1 || flags.length < 1) {
    return absl::InvalidArgumentError("--threads, --rounds, --sequences, --length: at least 1");
  }
  return flags;
}

train::TrainRows DrawRows(const Flags& flags, int64_t vocab, int64_t step) {
  train::TrainRows rows = {.length = flags.length, .tokens = {}, .targets = {}};
  for (int64_t i = 0; i < flags.sequences * flags.length; ++i) {
    const uint64_t drawn = SplitMix(static_cast<uint64_t>((step * flags.ranks.world + flags.ranks.rank) << 32 | i));
    rows.tokens.push_back(static_cast<int32_t>(drawn % static_cast<uint64_t>(vocab)));
    rows.targets.push_back(static_cast<int32_t>(drawn / 7 % static_cast<uint64_t>(vocab)));
  }
  return rows;
}

void Print(absl::string_view mode, const train::StepReport& report) {
  const train::RankStepSeconds& s = report.seconds;
  std::cout << absl::StrCat("{\"mode\": \"", mode, "\", \"chunks\": ", report.chunks, ", \"total\": ", s.total,
                            ", \"forward\": ", s.forward, ", \"backward\": ", s.backward,
                            ", \"all_to_all\": ", s.all_to_all, ", \"backward_all_to_all\": ", s.backward_all_to_all,
                            ", \"all_reduce\": ", s.all_reduce, ", \"optimizer\": ", s.optimizer,
                            absl::StrFormat(", \"loss\": %.17g", report.loss),
                            absl::StrFormat(", \"gradient_norm\": %.17g}", report.gradient_norm))
            << std::endl;
}

// "preempt@4/2"
absl::StatusOr<jobs::CommunicationSpec> ParseMode(const std::string& name, int64_t piece_bytes) {
  const std::vector<std::string> packed = absl::StrSplit(name, absl::MaxSplits('/', 1));
  const std::vector<std::string> parts = absl::StrSplit(packed[0], absl::MaxSplits('@', 1));
  jobs::CommunicationSpec spec = {.piece_bytes = piece_bytes};
  ASSIGN_OR_RETURN(spec.packing, jobs::ParsePackingChoice(packed.size() > 1 ? packed[1] : "1"));
  ASSIGN_OR_RETURN(spec.mode, jobs::ParseCommMode(parts[0]));
  if (parts.size() > 1) {
    ASSIGN_OR_RETURN(spec.granularity, jobs::ParseGranularity(parts[1]));
  }
  return spec;
}

// What modes with the same number of replicas train.
struct PackedModel {
  std::unique_ptr<model::Model> model;
  std::unique_ptr<train::Parameters> parameters;
  std::map<comm::Communicator*, std::unique_ptr<train::ExpertGroups>> groups;
};

absl::StatusOr<PackedModel> MakeModel(const Flags& flags, const Stream& stream, const model::ModelConfig& config,
                                      int32_t packing) {
  PackedModel made;
  RETURN_IF_ERROR(train::CheckPacking(flags.ranks.world, packing));
  std::vector<int32_t> residents =
      train::PackedResidents(static_cast<int>(config.num_experts), flags.ranks.world, packing, flags.ranks.rank);
  ASSIGN_OR_RETURN(model::ModelWeights weights, model::AllocateWeights(config, DType::kF32, std::move(residents)));
  ASSIGN_OR_RETURN(made.model, model::Model::Create(stream, config, DType::kF32, std::move(weights), flags.length));
  ASSIGN_OR_RETURN(made.parameters, train::Parameters::Create(stream, made.model.get()));
  RETURN_IF_ERROR(made.parameters->Initialise({.seed = 1}));
  RETURN_IF_ERROR(made.parameters->Publish(train::GatherCall()));
  return made;
}

absl::Status Main(int argc, char** argv) {
  ASSIGN_OR_RETURN(const Flags flags, ParseFlags(argc, argv));
  ThreadPool pool(flags.threads);
  const Stream stream = Stream::OnCpu(&pool);
  ASSIGN_OR_RETURN(const model::ModelConfig config, model::ReadModelConfig(flags.config));
  ASSIGN_OR_RETURN(const bench::BenchGroups groups,
                   bench::FormBenchGroups(flags.ranks, {.framing = comm::kOvertakingFrames, .socket = {}}, kPatience));
  const std::vector<std::string> modes = absl::StrSplit(flags.modes, ',');
  std::map<int32_t, PackedModel> models;  // by replicas
  std::vector<std::unique_ptr<train::Trainer>> trainers;
  int64_t piece_bytes = flags.piece_bytes;
  if (piece_bytes == jobs::kPiecesByLink) {
    ASSIGN_OR_RETURN(piece_bytes, bench::ChoosePieceBytes(groups.overtaking.get(), kPatience));
  }
  for (const std::string& name : modes) {
    ASSIGN_OR_RETURN(const jobs::CommunicationSpec spec, ParseMode(name, piece_bytes));
    const bool measured = absl::StrContains(name, "@auto");
    const int32_t packing = jobs::FirstPacking(spec);
    if (!models.contains(packing)) {
      ASSIGN_OR_RETURN(models[packing], MakeModel(flags, stream, config, packing));
    }
    PackedModel& packed = models[packing];
    ASSIGN_OR_RETURN(std::unique_ptr<train::Trainer> trainer,
                     train::Trainer::Create(stream, packed.model.get(), packed.parameters.get(),
                                            {.max_sequences = flags.sequences,
                                             .max_length = flags.length,
                                             .step_tokens = flags.sequences * flags.length * flags.ranks.world,
                                             .communication = spec}));
    comm::Communicator* const comm =
        jobs::OvertakesOnTheSocket(spec.mode) ? groups.overtaking.get() : groups.turns.get();
    std::unique_ptr<train::ExpertGroups>& group = packed.groups[comm];
    if (group == nullptr) {
      ASSIGN_OR_RETURN(group, train::ExpertGroups::Make(comm, static_cast<int>(config.num_experts), packing,
                                                        MonotonicNow() + kPatience));
    }
    RETURN_IF_ERROR(trainer->SetGroup(group->group()));
    if (measured && group->group().experts->world() > 1) {
      RETURN_IF_ERROR(bench::ChooseChunks(comm, trainer.get(), kPatience));
    }
    trainers.push_back(std::move(trainer));
  }
  for (int64_t round = 0; round <= flags.rounds; ++round) {
    const train::TrainRows rows = DrawRows(flags, config.vocab_size, round);
    for (size_t i = 0; i < modes.size(); ++i) {
      // Another one begins each time.
      const size_t mode = (i + static_cast<size_t>(round)) % modes.size();
      ASSIGN_OR_RETURN(const train::StepReport report,
                       trainers[mode]->Step({&rows, 1}, /*learning_rate=*/1e-5, MonotonicNow() + kPatience));
      if (round > 0) Print(modes[mode], report);
    }
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const absl::Status status = switchyard::Main(argc, argv);
  if (!status.ok()) std::cerr << "training_rank_bench: " << status.message() << "\n";
  return status.ok() ? 0 : 2;
}
