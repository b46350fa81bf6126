// A worker's training step, for a driver that compares it with others (over_pytorch.py): loads a checkpoint, reads
// from stdin how many steps to do next, and answers each line with one of JSON: seconds and losses.
//
//   train_step_bench --model=DIR --tokens=FILE --dtype=bf16|fp32 --threads=N --sequences=N --length=N
//                    [--wait=spin|sleep] [--store=DIR --rank=N --world=N]
//
// tokens: int32, little-endian; step s has sequences s * N … of length + 1 tokens, from the file's beginning again when
// it is over.  wait: what threads without work do.  Ranks, processes on loopback that meet in the store, have equal
// parts of a step's sequences, and of the experts.
#include <chrono>
#include <cstdint>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/bench_ranks.h"
#include "tests/bench/job_choices.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/model/forward/model.h"
#include "workers/model/weights/loader.h"
#include "workers/tensor/thread_pool.h"
#include "workers/train/parameters/parameters.h"
#include "workers/train/step/trainer.h"

namespace switchyard {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(120);

struct Flags {
  bench::RankFlags ranks = {};
  std::string model, tokens, dtype = "bf16", wait = "spin";
  int threads = 2;
  int64_t sequences = 8, length = 512;
  double learning_rate = 1e-4;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (bench::TakeRankFlag(arg, &flags.ranks)) continue;
    const bool ok = absl::ConsumePrefix(&arg, "--model=")       ? (flags.model = std::string(arg), true)
                    : absl::ConsumePrefix(&arg, "--tokens=")    ? (flags.tokens = std::string(arg), true)
                    : absl::ConsumePrefix(&arg, "--dtype=")     ? (flags.dtype = std::string(arg), true)
                    : absl::ConsumePrefix(&arg, "--wait=")      ? (flags.wait = std::string(arg), true)
                    : absl::ConsumePrefix(&arg, "--threads=")   ? absl::SimpleAtoi(arg, &flags.threads)
                    : absl::ConsumePrefix(&arg, "--sequences=") ? absl::SimpleAtoi(arg, &flags.sequences)
                    : absl::ConsumePrefix(&arg, "--length=")    ? absl::SimpleAtoi(arg, &flags.length)
                                                                : false;
    if (!ok) return absl::InvalidArgumentError(absl::StrCat("cannot take ", argv[i]));
  }
  if (flags.dtype != "bf16" && flags.dtype != "fp32") {
    return absl::InvalidArgumentError(absl::StrCat("--dtype=", flags.dtype, ": bf16 or fp32"));
  }
  if (flags.wait != "spin" && flags.wait != "sleep") {
    return absl::InvalidArgumentError(absl::StrCat("--wait=", flags.wait, ": spin or sleep"));
  }
  if (flags.threads < 1 || flags.sequences < 1 || flags.length < 1) {
    return absl::InvalidArgumentError("--threads, --sequences, --length: at least 1");
  }
  if (flags.ranks.world < 1 || flags.ranks.rank < 0 || flags.ranks.rank >= flags.ranks.world ||
      flags.sequences % flags.ranks.world != 0) {
    return absl::InvalidArgumentError("--rank, --world: a rank of the world, which divides the sequences");
  }
  return flags;
}

class Bench {
 public:
  static absl::StatusOr<std::unique_ptr<Bench>> Make(const Flags& flags) {
    auto bench = std::unique_ptr<Bench>(new Bench(flags));
    ASSIGN_OR_RETURN(const model::ModelConfig config, model::ReadModelConfig(flags.model));
    ASSIGN_OR_RETURN(const checkpoint::Checkpoint checkpoint, checkpoint::Checkpoint::Open(flags.model));
    const DType dtype = flags.dtype == "bf16" ? DType::kBf16 : DType::kF32;
    RETURN_IF_ERROR(bench->FormGroup());
    bench->layout_ = moe::ExpertLayout::Contiguous(static_cast<int>(config.num_experts), flags.ranks.world);
    const absl::Span<const int32_t> residents = bench->layout_.Residents(flags.ranks.rank);
    ASSIGN_OR_RETURN(model::ModelWeights weights,
                     model::AllocateWeights(config, dtype, {residents.begin(), residents.end()}));
    ASSIGN_OR_RETURN(bench->model_,
                     model::Model::Create(bench->stream_, config, dtype, std::move(weights), flags.length));
    ASSIGN_OR_RETURN(bench->parameters_, train::Parameters::Create(bench->stream_, bench->model_.get()));
    RETURN_IF_ERROR(bench->parameters_->Load(checkpoint, flags.threads));
    RETURN_IF_ERROR(bench->parameters_->Publish(train::GatherCall()));
    comm::Communicator* const comm = bench->comm_.get();
    train::TrainerOptions options = {.router = {.balance_weight = 0.01},
                                     .max_sequences = bench->of_rank(),
                                     .max_length = flags.length,
                                     .step_tokens = flags.sequences * flags.length};
    const bool several = comm->world() > 1;
    if (several) {
      ASSIGN_OR_RETURN(options.communication.piece_bytes, bench::ChoosePieceBytes(comm, kPatience));
    }
    ASSIGN_OR_RETURN(bench->trainer_,
                     train::Trainer::Create(bench->stream_, bench->model_.get(), bench->parameters_.get(), options));
    RETURN_IF_ERROR(bench->trainer_->SetGroup({.world = comm, .experts = comm, .layout = &bench->layout_}));
    if (several) RETURN_IF_ERROR(bench::ChooseChunks(comm, bench->trainer_.get(), kPatience));
    RETURN_IF_ERROR(bench->ReadTokens());
    return bench;
  }

  absl::StatusOr<std::string> Steps(int64_t count) {
    std::vector<double> losses;
    const auto begin = std::chrono::steady_clock::now();
    for (int64_t i = 0; i < count; ++i) {
      const train::TrainRows rows = RowsOf(step_++);
      ASSIGN_OR_RETURN(const train::StepReport report,
                       trainer_->Step({&rows, 1}, flags_.learning_rate, MonotonicNow() + kPatience));
      losses.push_back(report.loss);
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return absl::StrCat("{\"seconds\": ", seconds, ", \"losses\": [", absl::StrJoin(losses, ", "), "]}");
  }

 private:
  explicit Bench(const Flags& flags)
      : flags_(flags), pool_(flags.threads, flags.wait == "spin"), stream_(Stream::OnCpu(&pool_)) {}

  // Sequences of a step.
  int64_t of_rank() const { return flags_.sequences / flags_.ranks.world; }

  absl::Status FormGroup() {
    if (flags_.ranks.world == 1) {
      comm_ = std::move(comm::MakeLocalGroup(1).front());
      return absl::OkStatus();
    }
    ASSIGN_OR_RETURN(
        bench::BenchGroups groups,
        bench::FormBenchGroups(flags_.ranks, {.framing = comm::kOvertakingFrames, .socket = {}}, kPatience));
    comm_ = std::move(groups.overtaking);
    return absl::OkStatus();
  }

  absl::Status ReadTokens() {
    std::ifstream file(flags_.tokens, std::ios::binary);
    const std::string bytes((std::istreambuf_iterator<char>(file)), {});
    tokens_.resize(bytes.size() / sizeof(int32_t));
    bytes.copy(reinterpret_cast<char*>(tokens_.data()), tokens_.size() * sizeof(int32_t));
    const int64_t wanted = flags_.sequences * (flags_.length + 1);
    if (static_cast<int64_t>(tokens_.size()) >= wanted) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("--tokens=", flags_.tokens, ": ", tokens_.size(), " tokens; a step wants ", wanted));
  }

  train::TrainRows RowsOf(int64_t step) const {
    train::TrainRows rows = {.length = flags_.length, .tokens = {}, .targets = {}};
    const int64_t window = flags_.length + 1;
    const int64_t windows = static_cast<int64_t>(tokens_.size()) / window;
    for (int64_t s = 0; s < of_rank(); ++s) {
      const int64_t first = step * flags_.sequences + flags_.ranks.rank * of_rank();
      const auto begin = tokens_.begin() + (first + s) % windows * window;
      rows.tokens.insert(rows.tokens.end(), begin, begin + flags_.length);
      rows.targets.insert(rows.targets.end(), begin + 1, begin + window);
    }
    return rows;
  }

  const Flags flags_;
  ThreadPool pool_;
  const Stream stream_;
  std::unique_ptr<comm::Communicator> comm_;
  moe::ExpertLayout layout_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<train::Parameters> parameters_;
  std::unique_ptr<train::Trainer> trainer_;
  std::vector<int32_t> tokens_;
  int64_t step_ = 0;
};

absl::Status Main(int argc, char** argv) {
  ASSIGN_OR_RETURN(const Flags flags, ParseFlags(argc, argv));
  ASSIGN_OR_RETURN(const std::unique_ptr<Bench> bench, Bench::Make(flags));
  std::cout << "ready" << std::endl;
  std::string line;
  while (std::getline(std::cin, line)) {
    int64_t count = 0;
    if (!absl::SimpleAtoi(line, &count) || count < 1) {
      return absl::InvalidArgumentError(absl::StrCat("stdin: \"", line, "\" is no number of steps"));
    }
    ASSIGN_OR_RETURN(const std::string answer, bench->Steps(count));
    std::cout << answer << std::endl;
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) {
  const absl::Status status = switchyard::Main(argc, argv);
  if (!status.ok()) std::cerr << "train_step_bench: " << status.message() << "\n";
  return status.ok() ? 0 : 2;
}
