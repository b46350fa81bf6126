// One rank of a group that trains with the modes of communication in turns, for training_trainers.py: weights and
// tokens are drawn, so only the shapes of a config.json are needed.  Prints a line of JSON for each step: mode and
// seconds.
//
//   training_rank_bench --config=DIR --store=DIR --rank=N --world=N --address=IP [--modes=fair,ar_last,…]
//                       [--rounds=N] [--sequences=N] [--length=N] [--piece_bytes=N] [--threads=N]
//
// sequences: of a rank.  Modes take turns, one step each, in every round; the first round is not printed.  All modes
// train the same parameters.
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "absl/time/clock.h"
#include "scheduler/base/split_mix.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/reduce_policy.h"
#include "tests/bench/bench_ranks.h"
#include "workers/model/forward/model.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/step/trainer.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);

struct Flags {
  bench::RankFlags ranks = {};
  std::string config, modes = "fair,fixed,ar_last,priority,partition,preempt";
  int threads = 1;
  int64_t rounds = 5, sequences = 1, length = 128, piece_bytes = int64_t{30} << 20;
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
  std::cout << absl::StrCat("{\"mode\": \"", mode, "\", \"total\": ", s.total, ", \"forward\": ", s.forward,
                            ", \"backward\": ", s.backward, ", \"all_to_all\": ", s.all_to_all,
                            ", \"backward_all_to_all\": ", s.backward_all_to_all, ", \"all_reduce\": ", s.all_reduce,
                            ", \"optimizer\": ", s.optimizer, absl::StrFormat(", \"loss\": %.17g", report.loss),
                            absl::StrFormat(", \"gradient_norm\": %.17g}", report.gradient_norm))
            << std::endl;
}

absl::Status Main(int argc, char** argv) {
  ASSIGN_OR_RETURN(const Flags flags, ParseFlags(argc, argv));
  ThreadPool pool(flags.threads);
  const Stream stream = Stream::OnCpu(&pool);
  ASSIGN_OR_RETURN(const model::ModelConfig config, model::ReadModelConfig(flags.config));
  const moe::ExpertLayout layout =
      moe::ExpertLayout::Contiguous(static_cast<int>(config.num_experts), flags.ranks.world);
  const absl::Span<const int32_t> residents = layout.Residents(flags.ranks.rank);
  ASSIGN_OR_RETURN(model::ModelWeights weights,
                   model::AllocateWeights(config, DType::kF32, {residents.begin(), residents.end()}));
  ASSIGN_OR_RETURN(std::unique_ptr<model::Model> model,
                   model::Model::Create(stream, config, DType::kF32, std::move(weights), flags.length));
  ASSIGN_OR_RETURN(std::unique_ptr<train::Parameters> parameters, train::Parameters::Create(stream, model.get()));
  RETURN_IF_ERROR(parameters->Initialise({.seed = 1}));
  RETURN_IF_ERROR(parameters->Publish());

  ASSIGN_OR_RETURN(const bench::BenchGroups groups,
                   bench::FormBenchGroups(flags.ranks, {.framing = comm::kOvertakingFrames, .socket = {}}, kPatience));
  const std::vector<std::string> modes = absl::StrSplit(flags.modes, ',');
  std::vector<std::unique_ptr<train::Trainer>> trainers;
  for (const std::string& name : modes) {
    ASSIGN_OR_RETURN(const jobs::CommMode mode, jobs::ParseCommMode(name));
    ASSIGN_OR_RETURN(std::unique_ptr<train::Trainer> trainer,
                     train::Trainer::Create(stream, model.get(), parameters.get(),
                                            {.max_sequences = flags.sequences,
                                             .max_length = flags.length,
                                             .communication = {.mode = mode, .piece_bytes = flags.piece_bytes}}));
    comm::Communicator* const comm = jobs::OvertakesOnTheSocket(mode) ? groups.overtaking.get() : groups.turns.get();
    RETURN_IF_ERROR(trainer->SetGroup({.world = comm, .experts = comm, .layout = &layout}));
    trainers.push_back(std::move(trainer));
  }
  for (int64_t round = 0; round <= flags.rounds; ++round) {
    const train::TrainRows rows = DrawRows(flags, config.vocab_size, round);
    for (size_t i = 0; i < modes.size(); ++i) {
      // Another one begins each time.
      const size_t mode = (i + static_cast<size_t>(round)) % modes.size();
      ASSIGN_OR_RETURN(const train::StepReport report,
                       trainers[mode]->Step({&rows, 1}, /*learning_rate=*/1e-5, absl::Now() + kPatience));
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
