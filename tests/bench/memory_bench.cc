// What the buffers of a MoE layer take, forward and backward, in programs that share slots among chunks and restore
// rows (MPMoE's S1 to S4), beside the program in which every chunk has its own (PMoE) and beside MPMoE's formulas.
//
//   memory_bench [--rows=N] [--quick]    (--quick: the smallest model alone)
//
// Eight ranks (threads) with an expert each, N rows a rank (a multiple of 64, default 64), top-1, evenly routed; the
// experts' weights are not trained, all ranks read the same ones.  Bytes are what the programs' buffers have allocated,
// exactly, after one step, and after six of different sizes, of which the largest counts.  Messages are apart: those of
// the group at once, over the rows of all exchanges that may be under way (rounding sizes up at most doubles them), and
// what the pool keeps over that (which the sizes of smaller steps at most double).
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/comm/local/local_communicator.h"
#include "workers/moe/layer/activation_offload.h"
#include "workers/moe/layer/moe_backward.h"
#include "workers/moe/layer/moe_layer.h"
#include "workers/moe/layer/moe_scratch.h"
#include "workers/ops/gemm/backward/transposed_weight.h"
#include "workers/tensor/thread_pool.h"

namespace switchyard {
namespace {

using pipeline::BufferKind;
using pipeline::BuildExpertParallel;
using pipeline::HiddenRestore;
using pipeline::InputRestore;
using pipeline::RestoreStrategy;

constexpr int kRanks = 8;
constexpr DType kDType = DType::kBf16;

// MPMoE, table III.
struct Sizes {
  const char* name;
  int64_t hidden, ffn;
};
constexpr Sizes kModels[] = {{"GPT-S", 768, 3072}, {"BERT-L", 1024, 4096}, {"GPT-XL", 2048, 8192}};

struct Strategy {
  const char* name;
  RestoreStrategy restore;
};
constexpr Strategy kStrategies[] = {{"S1", {InputRestore::kOffload, HiddenRestore::kOffload}},
                                    {"S2", {InputRestore::kResend, HiddenRestore::kOffload}},
                                    {"S3", {InputRestore::kOffload, HiddenRestore::kRecompute}},
                                    {"S4", {InputRestore::kResend, HiddenRestore::kRecompute}}};

// Memory of rows that are copied out of the layer; not the layer's.
class MemoryOffload : public moe::ActivationOffload {
 public:
  void StartSave(const moe::OffloadKey& key, absl::Span<const char> from) override {
    kept_[key].assign(from.begin(), from.end());
  }
  void StartRestore(const moe::OffloadKey& key, absl::Span<char> to) override {
    const std::string& kept = kept_.at(key);
    SY_CHECK_EQ(kept.size(), to.size());
    std::memcpy(to.data(), kept.data(), kept.size());
  }
  absl::Status Finish(const moe::OffloadKey&) override { return absl::OkStatus(); }
  void Drain() override {}

 private:
  std::map<moe::OffloadKey, std::string> kept_;
};

// A layer whose experts are all the same, and whose row t goes to expert t modulo kRanks.
class EvenLayer {
 public:
  EvenLayer(const Stream& stream, const Sizes& sizes, ops::Activation activation) {
    layer.desc = {.hidden = sizes.hidden,
                  .expert_ffn = sizes.ffn,
                  .activation = activation,
                  .dtype = kDType,
                  .router = {.top_k = 1}};
    const bool gated = ops::IsGated(activation);
    const int64_t width = ops::SumsWidth(activation, sizes.ffn);
    const Tensor router = Tensor::Zeros(kDType, {kRanks, sizes.hidden});
    for (int e = 0; e < kRanks; ++e) router.data<Bf16>()[e * sizes.hidden + e] = Bf16(8.0f);
    Pack(stream, router, ops::WeightLayout::kPanels);
    Pack(stream, Filled(width, sizes.hidden), gated ? ops::WeightLayout::kGatedPanels : ops::WeightLayout::kPanels);
    Pack(stream, Filled(sizes.hidden, sizes.ffn), ops::WeightLayout::kPanels);
    layer.weights.router = &packed_[0];
    layer.weights.gate_up = *ops::WeightTable::Make(stream, {&packed_[1]});
    layer.weights.down = *ops::WeightTable::Make(stream, {&packed_[2]});
  }

  // Of one rank: its gradients are its own.
  struct Trained {
    std::deque<Tensor> gradients;
    std::vector<ops::FfnGradients> experts;
    moe::MoeBackwardWeights weights;
  };
  void Train(Trained* trained) const {
    const auto matrix = [&](size_t i) {
      const ops::Weight& weight = transposed_[i];
      trained->gradients.push_back(Tensor::Zeros(AccDType(kDType), {weight.k(), weight.n()}));
      return ops::TrainedMatrix{.transposed = &weight, .gradient = trained->gradients.back()};
    };
    trained->weights.router = matrix(0);
    trained->experts.resize(1);
    trained->experts[0].gate_up = matrix(1);
    trained->experts[0].down = matrix(2);
    trained->weights.experts = trained->experts;
  }

  moe::MoeLayer layer;

 private:
  static Tensor Filled(int64_t rows, int64_t columns) {
    Tensor t(kDType, {rows, columns});
    for (int64_t i = 0; i < rows * columns; ++i) t.data<Bf16>()[i] = Bf16(static_cast<float>(i % 7 - 3) / 256);
    return t;
  }
  void Pack(const Stream& stream, const Tensor& rows, ops::WeightLayout layout) {
    const int64_t n = rows.dim(0), k = rows.dim(1);
    packed_.push_back(*ops::PackWeight(stream, {.n = n, .k = k, .dtype = kDType, .layout = layout}, rows));
    transposed_.emplace_back(ops::WeightDesc{.n = k, .k = n, .dtype = kDType});
    SY_CHECK_OK(ops::PackTransposed(stream, rows, &transposed_.back()));
  }

  std::deque<ops::Weight> packed_, transposed_;
};

struct Bytes {
  int64_t buffers = 0;       // of rank 0
  comm::PoolBytes messages;  // of the group
};

// Runs steps of so many rows on every rank.
Bytes Measure(const EvenLayer& layer, const pipeline::MoeSchedule& schedule, const std::vector<int64_t>& steps) {
  const moe::ExpertLayout layout = moe::ExpertLayout::Contiguous(kRanks, kRanks);
  auto group = comm::MakeLocalGroup(kRanks);
  Bytes bytes;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadPool pool(1, false);
      const Stream stream = Stream::OnCpu(&pool);
      const int64_t hidden = layer.layer.desc.hidden;
      const DType acc = AccDType(kDType);
      EvenLayer::Trained trained;
      layer.Train(&trained);
      moe::MoeExecutor executor;
      moe::MoeBackward backward;
      moe::MoeSaved saved;
      moe::MoeScratch scratch;
      moe::MoeStats stats;
      MemoryOffload offload;
      const moe::MoeContext step = {.stream = &stream,
                                    .comm = group[static_cast<size_t>(rank)].get(),
                                    .layout = &layout,
                                    .schedule = &schedule,
                                    .deadline = MonotonicNow() + absl::Minutes(10),
                                    .stats = &stats,
                                    .scratch = &scratch,
                                    .offload = &offload};
      const moe::LayerContext at = {.saved = &saved};
      for (const int64_t rows : steps) {
        const Tensor x = Tensor::Zeros(kDType, {rows, hidden}), residual = Tensor::Zeros(acc, {rows, hidden});
        const Tensor dy = Tensor::Zeros(acc, {rows, hidden}), d_x(kDType, {rows, hidden});
        for (int64_t t = 0; t < rows; ++t) x.data<Bf16>()[t * hidden + t % kRanks] = Bf16(1.0f);
        SY_CHECK_OK(executor.Run(step, at, layer.layer, x, residual));
        SY_CHECK_OK(backward.Run(step, at, layer.layer, trained.weights,
                                 {.x = x, .d_residual = dy, .router_loss = {}, .d_x = d_x}));
      }
      if (rank != 0) return;
      for (int kind = 0; kind < pipeline::kNumBufferKinds; ++kind)
        bytes.buffers += scratch.Bytes(static_cast<BufferKind>(kind));
      bytes.buffers += saved.inputs.bytes() + saved.hidden.bytes();
    });
  }
  for (std::thread& thread : threads) thread.join();
  bytes.messages = group[0]->message_bytes();
  return bytes;
}

// The elements of a row in each kind of buffer.  Rows come back behind the outputs, from all ranks but this one; behind
// gradients of outputs there is a copy, in the experts' order, of one chunk.
struct Widths {
  double input, hidden, output, hidden_gradient;
  Widths(const Sizes& sizes, ops::Activation activation) {
    const auto m = static_cast<double>(sizes.hidden), f = static_cast<double>(sizes.ffn);
    const double sums = ops::IsGated(activation) ? 2 * f : f;
    input = m;
    hidden = sums + f;
    output = m + m * (kRanks - 1) / kRanks;
    hidden_gradient = sums + 2 * f;
  }
  // Of a program with so many slots of each kind.
  double Elements(double chunk_rows, double rows_slots, double hidden_slots) const {
    return chunk_rows * (rows_slots * (2 * input + 2 * output) + input + hidden_slots * (hidden + hidden_gradient));
  }
};

struct Worst {
  double saved = INFINITY, peak = 0, peak_of_steps = 0, messages = 0, kept = 0;
};

void Compare(const Stream& stream, const Sizes& sizes, ops::Activation activation, const char* name, int64_t rows,
             Worst* worst) {
  const EvenLayer layer(stream, sizes, activation);
  const Widths widths(sizes, activation);
  const double element = DTypeBytes(kDType), b = static_cast<double>(rows);
  for (const int n : {2, 4, 8}) {
    const double chunk = b / n;
    const Bytes own =
        Measure(layer, BuildExpertParallel({.micro_batches = n, .reuses = false, .trains = true}), {rows});
    // Eq. (5) of activations and of gradients, with the width inside experts that this layer has.
    const auto eq5 = [&](double width) { return b * (2 * widths.input * (n - 2) / n + width * (n - 1) / n) * element; };
    const double saves = eq5(widths.hidden) + eq5(widths.hidden_gradient);
    std::printf("%-7s %-7s n=%d  own slots %7.2f MiB, formula %7.2f |", sizes.name, name, n,
                static_cast<double>(own.buffers) / (1 << 20), widths.Elements(chunk, n, n) * element / (1 << 20));
    for (const Strategy& strategy : kStrategies) {
      const Bytes bytes = Measure(
          layer, BuildExpertParallel({.micro_batches = n, .trains = true, .restore = strategy.restore}), {rows});
      const double saved = static_cast<double>(own.buffers - bytes.buffers) / saves;
      const double peak = static_cast<double>(bytes.buffers) / (widths.Elements(chunk, 2, 1) * element);
      worst->saved = std::min(worst->saved, saved);
      worst->peak = std::max(worst->peak, peak);
      std::printf(" %s %7.2f saved %.3f peak %.3f", strategy.name, static_cast<double>(bytes.buffers) / (1 << 20),
                  saved, peak);
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

// The most collectives that a rank has under way.
int UnderWay(const std::vector<pipeline::MicroOp>& ops) {
  std::set<int> under_way;
  size_t most = 0;
  for (size_t i = 0; i < ops.size(); ++i) {
    for (const int dep : ops[i].deps) under_way.erase(dep);
    if (pipeline::IsCommunicating(ops[i].kind)) under_way.insert(static_cast<int>(i));
    most = std::max(most, under_way.size());
  }
  return static_cast<int>(most);
}

// Steps that grow and shrink.
void CompareSteps(const Stream& stream, const Sizes& sizes, ops::Activation activation, const char* name, int64_t rows,
                  Worst* worst) {
  const EvenLayer layer(stream, sizes, activation);
  const Widths widths(sizes, activation);
  const std::vector<int64_t> steps = {rows, 3 * rows, 2 * rows, 5 * rows, 4 * rows, rows};
  const double element = DTypeBytes(kDType), most = 5 * static_cast<double>(rows);
  for (const int n : {2, 4, 8}) {
    const pipeline::MoeSchedule schedule =
        BuildExpertParallel({.micro_batches = n, .trains = true, .restore = kStrategies[2].restore});
    const Bytes bytes = Measure(layer, schedule, steps);
    const double peak = static_cast<double>(bytes.buffers) / (widths.Elements(most / n, 2, 1) * element);
    // A peer is as many exchanges behind as it may have under way.
    const double exchanges = 2 * std::max(UnderWay(schedule.forward), UnderWay(schedule.backward));
    const double in_flight = static_cast<double>(bytes.messages.most_out);
    const double messages = in_flight / (exchanges * kRanks * most / n * static_cast<double>(sizes.hidden) * element);
    const double kept = static_cast<double>(bytes.messages.kept + bytes.messages.out) / in_flight;
    worst->peak_of_steps = std::max(worst->peak_of_steps, peak);
    worst->messages = std::max(worst->messages, messages);
    worst->kept = std::max(worst->kept, kept);
    std::printf(
        "%-7s %-7s n=%d  six steps, S3 %7.2f MiB, peak %.3f | messages at once, eight ranks %.2f MiB, of %.0f "
        "exchanges %.3f; kept over it %.3f\n",
        sizes.name, name, n, static_cast<double>(bytes.buffers) / (1 << 20), peak, in_flight / (1 << 20), exchanges,
        messages, kept);
    std::fflush(stdout);
  }
}

// Eq. (6): the share of a layer's memory that is saved, with `copies` of each parameter.
double Share(const Sizes& sizes, double rows, int n, double copies) {
  constexpr double kExperts = 64;
  const auto m = static_cast<double>(sizes.hidden), h = static_cast<double>(sizes.ffn);
  const double states = copies * (kExperts * m + 2 * h * m), activations = rows * (4 * m + h);
  const double saved = rows * (2 * m * (n - 2) / n + h * (n - 1) / n);
  return 2 * saved / (states + 2 * activations);
}

void PrintShares() {
  std::printf(
      "\nEq. (6), %% saved of a layer with one expert of 64, n = 2, 4, 8 (the paper's mean, MP-4: 23, 34, 38)\n");
  for (const Sizes& sizes : kModels) {
    for (const double rows : {4096.0, 16384.0}) {
      std::printf("%-7s B=%-6.0f 4 copies of a parameter:", sizes.name, rows);
      for (const int n : {2, 4, 8}) std::printf(" %5.1f", 100 * Share(sizes, rows, n, 4));
      // bf16 weight and its transpose, fp32 master, gradient and two moments: 20 bytes of 2 each.
      std::printf("   ours, bf16 rows (10 of 2 bytes):");
      for (const int n : {2, 4, 8}) std::printf(" %5.1f", 100 * Share(sizes, rows, n, 10));
      std::printf("\n");
    }
  }
}

int Main(int argc, char** argv) {
  int64_t rows = 64;
  bool quick = false;
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    quick = quick || arg == "--quick";
    if (arg == "--quick") continue;
    if (absl::ConsumePrefix(&arg, "--rows=") && absl::SimpleAtoi(arg, &rows) && rows > 0 && rows % 64 == 0) continue;
    std::fprintf(stderr, "memory_bench: cannot take %s (--rows=N, a multiple of 64; --quick)\n", argv[i]);
    return 2;
  }
  ThreadPool pool(2, false);
  const Stream stream = Stream::OnCpu(&pool);
  Worst worst;
  for (const Sizes& sizes : absl::MakeConstSpan(kModels).first(quick ? 1 : std::size(kModels))) {
    Compare(stream, sizes, ops::Activation::kGelu, "gelu", rows, &worst);
    Compare(stream, sizes, ops::Activation::kSwiGlu, "swiglu", rows, &worst);
  }
  CompareSteps(stream, kModels[0], ops::Activation::kGelu, "gelu", rows, &worst);
  CompareSteps(stream, kModels[0], ops::Activation::kSwiGlu, "swiglu", rows, &worst);
  PrintShares();
  std::printf(
      "\n{\"benchmark\": \"memory\", \"saved_over_eq5\": %.3f, \"peak_over_formula\": %.3f, "
      "\"peak_of_steps_over_formula\": %.3f, \"messages_over_exchanges\": %.3f, \"kept_over_messages\": %.3f, "
      "\"targets\": {\"saved_over_eq5\": 0.95, \"peak_over_formula\": 1.02, \"peak_of_steps_over_formula\": 1.02, "
      "\"messages_over_exchanges\": 2, \"kept_over_messages\": 2}, \"rows\": %ld, \"quick\": %s}\n",
      worst.saved, worst.peak, worst.peak_of_steps, worst.messages, worst.kept, static_cast<long>(rows),
      quick ? "true" : "false");
  return 0;
}

}  // namespace
}  // namespace switchyard

int main(int argc, char** argv) { return switchyard::Main(argc, argv); }
