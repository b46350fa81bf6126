#include "workers/train/chunks/layer_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/ops/gemm/expert_ffn.h"
#include "workers/train/job/rank_agreement.h"
#include "workers/train/step/activation_file.h"

namespace switchyard::train {
namespace {

using Points = std::vector<pipeline::TimeCurve::Point>;

constexpr double kBudgetSeconds = 0.2;  // of a curve
constexpr int kRounds = 3, kBesideRounds = 9, kMostRuns = 8;
constexpr int kSendsAtOnce = 4, kMostSends = 8, kMostProducts = 64;  // in one run beside each other
constexpr double kLeastRatio = 0.01;
constexpr double kMostOut = 64 << 20;  // bytes of a rank's all-to-alls at once, but for two

double SecondsSince(absl::Time begin) { return absl::ToDoubleSeconds(absl::Now() - begin); }

const moe::MoeLayer& FirstMoeLayer(const model::Model& model) {
  int64_t layer = 0;
  while (model.moe_layer(layer) == nullptr) ++layer;
  return *model.moe_layer(layer);
}

class Probe {
 public:
  explicit Probe(const LayerProbeInput& input)
      : input_(input), layer_(FirstMoeLayer(*input.model)), load_(LoadOf(*input.model, input.rows, peers() + 1)) {}

  absl::StatusOr<LayerFigures> Run() {
    RETURN_IF_ERROR(MakeRows());
    const double most = std::max(load_.dispatch_bytes, load_.combine_bytes);
    ASSIGN_OR_RETURN(const Points sends,
                     Measure(most, peers(), [this](double bytes) { return Together(bytes, 1, 0, 0); }));
    ASSIGN_OR_RETURN(const Points products,
                     Measure(load_.rows, 1, [this](double rows) { return Together(0, 0, rows, 1); }));
    ASSIGN_OR_RETURN(const pipeline::BesideSpeeds beside, MeasureBeside(sends.back(), products.back()));
    Points copies;
    if (input_.open_file) {
      ASSIGN_OR_RETURN(copies, MeasureCopies());
    }
    return LayerFigures{
        .times = {.all_to_all = pipeline::TimeCurve(sends),
                  .experts = pipeline::TimeCurve(products),
                  .copy = pipeline::TimeCurve(copies),
                  .beside = beside},
        .load = load_,
        .text = absl::StrFormat("all-to-all %.3g MiB %.3g ms, products of %.0f rows %.3g ms, beside each other at %.2f "
                                "and %.2f of their speeds",
                                sends.back().size / (1 << 20), 1e3 * sends.back().seconds, products.back().size,
                                1e3 * products.back().seconds, beside.all_to_all, beside.experts)};
  }

 private:
  // Of one run.
  struct RunSeconds {
    double total = 0;
    double products = 0;
  };
  using RunFn = std::function<absl::StatusOr<RunSeconds>(double size)>;

  int peers() const { return input_.comm->world() - 1; }

  absl::Status MakeRows() {
    const moe::MoeLayerDesc& desc = layer_.desc;
    const auto rows = static_cast<int64_t>(load_.rows);
    x_ = Tensor(desc.dtype, {rows, desc.hidden});
    hidden_ = Tensor(desc.dtype, {rows, desc.expert_ffn});
    y_ = Tensor(desc.dtype, {rows, desc.hidden});
    std::memset(x_.view().raw(), 0, static_cast<size_t>(rows * desc.hidden * DTypeBytes(desc.dtype)));
    return absl::OkStatus();
  }

  // The greatest of the ranks' numbers; behind it all ranks begin together.
  absl::StatusOr<double> Greatest(double mine) const {
    RankWord word;
    word.number = std::llround(mine * 1e9);
    ASSIGN_OR_RETURN(const std::vector<RankWord> words, ExchangeWords(input_.comm, word, input_.limit));
    int64_t greatest = 0;
    for (const RankWord& each : words) greatest = std::max(greatest, each.number);
    return static_cast<double>(greatest) * 1e-9;
  }

  // So many all-to-alls, and while they are under way so many times the products of these rows.
  absl::StatusOr<RunSeconds> Together(double bytes, int sends, double rows, int products) {
    const absl::Time begin = absl::Now();
    const comm::CommCall call = {.stream = input_.stream, .deadline = begin + input_.limit};
    const auto to_peer = static_cast<int64_t>(bytes / peers());
    std::vector<std::unique_ptr<comm::Work>> under_way;
    absl::Status status;
    for (int i = 0; i < sends && status.ok(); ++i) {
      std::vector<comm::Message> out(static_cast<size_t>(peers() + 1));
      for (int rank = 0; rank <= peers(); ++rank) {
        if (rank == input_.comm->rank()) continue;
        out[static_cast<size_t>(rank)] = input_.comm->NewMessage(to_peer);
        std::memset(out[static_cast<size_t>(rank)].payload(), 0, static_cast<size_t>(to_peer));
      }
      comm::WorkOr work = input_.comm->AllToAllV(call, std::move(out));
      status = work.status();
      if (work.ok()) under_way.push_back(*std::move(work));
    }
    RunSeconds seconds;
    const absl::Time computes = absl::Now();
    for (int i = 0; i < products && status.ok(); ++i) status = Products(static_cast<int64_t>(rows));
    seconds.products = SecondsSince(computes);
    for (const std::unique_ptr<comm::Work>& work : under_way) {
      const absl::Status waited = work->Wait();
      if (status.ok()) status = waited;
    }
    seconds.total = SecondsSince(begin);
    if (!status.ok()) return status;
    return seconds;
  }

  // Of rows that are spread over the experts.
  absl::Status Products(int64_t rows) {
    const auto experts = static_cast<int64_t>(input_.model->weights().residents.size());
    std::vector<int32_t> offsets;
    for (int64_t e = 0; e <= experts; ++e) offsets.push_back(static_cast<int32_t>(rows * e / experts));
    const moe::MoeLayerWeights& weights = layer_.weights;
    return ops::ExpertFfn(*input_.stream,
                          {.activation = layer_.desc.activation,
                           .gate_up = weights.gate_up.group(),
                           .down = weights.down.group(),
                           .offsets = offsets,
                           .up_biases = weights.up_biases,
                           .down_biases = weights.down_biases},
                          x_.view().Rows(0, rows), hidden_.view().Rows(0, rows), y_.view().Rows(0, rows));
  }

  // The fastest of a few rounds of each size, up to `largest`, in whole multiples of `unit`.  A round is as many runs
  // behind each other as there are in the largest, as of a layer's chunks: by itself a small all-to-all would pass
  // faster on links that let bursts through.
  absl::StatusOr<Points> Measure(double largest, int unit, const RunFn& run) {
    Points points;
    double spent = 0;
    for (const double part : {1.0 / 32, 1.0 / 8, 1.0 / 4, 1.0 / 2, 1.0}) {
      const double size = std::floor(largest * part / unit) * unit;
      if (size < unit || (!points.empty() && size <= points.back().size)) continue;
      const int runs = static_cast<int>(std::clamp(std::floor(largest / size), 1.0, double{kMostRuns}));
      if (points.size() >= 2 && spent + runs * points.back().seconds * size / points.back().size > kBudgetSeconds)
        break;
      double fastest = HUGE_VAL;
      for (int round = 0; round < kRounds && (round == 0 || spent < kBudgetSeconds); ++round) {
        RETURN_IF_ERROR(Greatest(0).status());
        double mine = 0;
        for (int i = 0; i < runs; ++i) {
          ASSIGN_OR_RETURN(const RunSeconds one, run(size));
          mine += one.total;
        }
        ASSIGN_OR_RETURN(const double slowest, Greatest(mine));
        fastest = std::min(fastest, slowest / runs);
        spent += slowest;
      }
      points.push_back({.size = size, .seconds = fastest});
    }
    if (points.empty()) points.push_back({.size = static_cast<double>(unit), .seconds = 0});
    return points;
  }

  // Several all-to-alls, as their ends take a processor more than their middle, and products for about half of their
  // time.
  absl::StatusOr<pipeline::BesideSpeeds> MeasureBeside(const pipeline::TimeCurve::Point& send,
                                                       const pipeline::TimeCurve::Point& product) {
    const double ratio = std::max(send.seconds, 1e-9) / std::max(product.seconds, 1e-9);
    const double few = std::clamp(kBudgetSeconds / std::max(send.seconds, 1e-9), 1.0, double{kSendsAtOnce});
    const double room = std::clamp(std::floor(kMostOut / std::max(send.size, 1.0)), 2.0, double{kMostSends});
    const int sends = static_cast<int>(std::clamp(std::ceil(2 / ratio), std::min(std::floor(few), room), room));
    const int products = static_cast<int>(std::clamp(std::floor(ratio * sends / 2), 1.0, double{kMostProducts}));
    std::vector<double> send_ratios, product_ratios;
    double spent = 0;
    for (int round = 0; round < kRounds || (round < kBesideRounds && spent < kBudgetSeconds); ++round) {
      RETURN_IF_ERROR(Greatest(0).status());
      ASSIGN_OR_RETURN(const RunSeconds sent, Together(send.size, sends, 0, 0));
      ASSIGN_OR_RETURN(const RunSeconds computed, Together(0, 0, product.size, products));
      ASSIGN_OR_RETURN(const double alone, Greatest(sent.total + computed.total));
      ASSIGN_OR_RETURN(const RunSeconds both, Together(send.size, sends, product.size, products));
      spent += 2 * alone;
      // What the all-to-alls had left behind the products went on at full speed.
      const double beside = std::max(both.products, 1e-9);
      send_ratios.push_back((beside + sent.total - both.total) / beside);
      product_ratios.push_back(computed.products / beside);
    }
    pipeline::BesideSpeeds beside;
    ASSIGN_OR_RETURN(beside.all_to_all, LeastMedian(std::move(send_ratios)));
    ASSIGN_OR_RETURN(beside.experts, LeastMedian(std::move(product_ratios)));
    return beside;
  }

  // The least of the ranks' medians, in (0, 1].
  absl::StatusOr<double> LeastMedian(std::vector<double> ratios) const {
    std::sort(ratios.begin(), ratios.end());
    const double mine = std::clamp(ratios[ratios.size() / 2], kLeastRatio, 1.0);
    ASSIGN_OR_RETURN(const double inverse, Greatest(1 / mine));
    return 1 / inverse;
  }

  absl::StatusOr<Points> MeasureCopies() {
    ASSIGN_OR_RETURN(const std::unique_ptr<ActivationFile> file, ActivationFile::Create(input_.open_file));
    const TensorView rows = x_.view();
    const double all = static_cast<double>(rows.NumElements() * DTypeBytes(rows.dtype()));
    return Measure(all, 1, [&](double bytes) -> absl::StatusOr<RunSeconds> {
      const absl::Time begin = absl::Now();
      file->StartSave({}, {static_cast<const char*>(rows.raw()), static_cast<size_t>(bytes)});
      RETURN_IF_ERROR(file->Finish({}));
      return RunSeconds{.total = SecondsSince(begin)};
    });
  }

  const LayerProbeInput& input_;
  const moe::MoeLayer& layer_;
  const pipeline::LayerLoad load_;
  Tensor x_, hidden_, y_;
};

}  // namespace

pipeline::LayerLoad LoadOf(const model::Model& model, int64_t rows, int world) {
  const moe::MoeLayerDesc& desc = FirstMoeLayer(model).desc;
  const double mine = std::ceil(static_cast<double>(rows) / world);
  const double top_k = desc.router.top_k;
  // Of the ranks that a row goes to, if each choice is any rank's.
  const double ranks = world * (1 - std::pow(1 - 1.0 / world, top_k));
  const double others = static_cast<double>(world - 1) / world;
  const double row_bytes = static_cast<double>(desc.hidden * DTypeBytes(desc.dtype));
  const double hidden = static_cast<double>(desc.expert_ffn + ops::SumsWidth(desc.activation, desc.expert_ffn));
  return {.dispatch_bytes = mine * ranks * others * row_bytes,
          .combine_bytes = mine * top_k * others * row_bytes,
          .rows = mine * top_k,
          .input_bytes = mine * ranks * row_bytes,
          .hidden_bytes = mine * top_k * hidden * static_cast<double>(DTypeBytes(desc.dtype))};
}

absl::StatusOr<LayerFigures> ProbeLayer(const LayerProbeInput& input) { return Probe(input).Run(); }

}  // namespace switchyard::train
