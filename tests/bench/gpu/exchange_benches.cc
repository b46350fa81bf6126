// Benchmarks of packing and unpacking the rows that two ranks exchange, at Qwen3-30B-A3B's widths.  Both ranks are
// here, and the blocks are carried by copies, which are not timed; everything is compared with the same steps on the
// CPU, exactly.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "tests/bench/gpu/op_lines.h"
#include "tests/bench/gpu/parts.h"
#include "tests/bench/gpu/routing.h"
#include "workers/moe/dispatch/device_expert_layout.h"
#include "workers/moe/dispatch/dispatch_plan.h"
#include "workers/ops/exchange/row_exchange.h"
#include "workers/tensor/copy.h"

namespace switchyard {
namespace {

constexpr int kRanks = 2;
constexpr DType kModel = DType::kBf16;

struct Scene {
  int64_t rows, top_k, width;
  moe::ExpertLayout layout;
};

// One rank's memory, and its steps in their order.
class RankSteps {
 public:
  // x: [rows, width] on the stream's device.
  static absl::StatusOr<RankSteps> Make(const Stream& stream, const Scene& scene, int rank, const BenchRouting& routing,
                                        Tensor x) {
    RankSteps made;
    made.stream_ = &stream, made.scene_ = &scene, made.rank_ = rank, made.x_ = std::move(x);
    const int64_t n = scene.rows * scene.top_k;
    ASSIGN_OR_RETURN(made.plan_,
                     moe::BoundedPlan({&scene.layout, rank, scene.rows, scene.top_k, 2 * scene.width}, scene.rows));
    ASSIGN_OR_RETURN(made.table_, moe::DeviceExpertLayout::Make(stream, scene.layout, rank));
    std::vector<int32_t> idx = routing.idx;
    const TensorView choices(idx.data(), DType::kI32, {scene.rows, scene.top_k});
    ASSIGN_OR_RETURN(made.idx_, stream.device().is_cpu() ? CopyToHost(stream, choices) : CopyToDevice(stream, choices));
    for (Tensor* tensor : {&made.rank_of, &made.slot_of, &made.first_of}) {
      RETURN_IF_ERROR(made.Allocate(DType::kI32, {scene.rows, scene.top_k}, tensor));
    }
    for (Tensor* tensor : {&made.pair_offsets_, &made.row_offsets_}) {
      RETURN_IF_ERROR(made.Allocate(DType::kI32, {kRanks + 1}, tensor));
    }
    for (Tensor* tensor : {&made.token_, &made.pair_places_, &made.row_places_, &made.output_row}) {
      RETURN_IF_ERROR(made.Allocate(DType::kI32, {n}, tensor));
    }
    RETURN_IF_ERROR(made.Allocate(DType::kI32, {kRanks, 2}, &made.counts));
    const int64_t slots = made.num_slots(), pairs = made.plan_.recv.num_pairs;
    RETURN_IF_ERROR(made.Allocate(DType::kI32, {slots + 1}, &made.offsets));
    for (Tensor* tensor : {&made.slots, &made.sorted_, &made.y_row_}) {
      RETURN_IF_ERROR(made.Allocate(DType::kI32, {pairs}, tensor));
    }
    RETURN_IF_ERROR(made.Allocate(DType::kI32, {made.plan_.num_outputs}, &made.x_rows));
    RETURN_IF_ERROR(made.Allocate(kModel, {made.plan_.send.num_rows, scene.width}, &made.send_));
    RETURN_IF_ERROR(made.Allocate(kModel, {made.plan_.recv.num_rows, scene.width}, &made.recv_));
    RETURN_IF_ERROR(made.Allocate(kModel, {made.plan_.num_outputs, scene.width}, &made.outputs_));
    RETURN_IF_ERROR(made.Allocate(kModel, {made.plan_.num_answers, scene.width}, &made.answers));
    return made;
  }

  absl::Status Places() const {
    return ops::FindExpertPlaces(*stream_, idx_, table_.view(), 0, {rank_of, slot_of, first_of});
  }
  absl::Status Route() const { return ops::RouteRows(*stream_, idx_, table_.view(), 0, routes()); }
  absl::Status Count() const { return ops::CountRoutes(*stream_, routes(), counts); }
  absl::Status Pack() const {
    return ops::PackRows(*stream_, plan_.send, routes(), x_,
                         {.send = send_,
                          .own = recv_.view().Rows(plan_.recv.of[rank_].first_row, scene_->rows),
                          .first_output = plan_.num_outputs,
                          .output_row = output_row});
  }
  absl::Status CarryTo(const RankSteps& to) const {
    return CopyTensor(*stream_, Part(send_, plan_.dispatch_send, to.rank_),
                      Part(to.recv_, to.plan_.dispatch_recv, rank_));
  }
  absl::Status Read() const {
    return ops::ReadPairs(*stream_, plan_.recv, {rank_of, slot_of, first_of}, recv_, num_slots(), slots);
  }
  absl::Status Sort() const {
    return ops::BuildExpertOrder(*stream_, slots.view().Reshape({plan_.recv.num_pairs, 1}), num_slots(),
                                 {.offsets = offsets, .token = sorted_, .slot_row = y_row_});
  }
  absl::Status Place() const {
    return ops::PlacePairs(*stream_, plan_.recv, scene_->top_k, recv_,
                           {.y_row = y_row_, .x_rows = x_rows, .output_row = output_row});
  }
  // In place of the experts: each output is its row.
  absl::Status Compute() const { return ops::GatherPresent(*stream_, recv_, IntView(x_rows.view()), outputs_); }
  absl::Status Answer() const {
    const IntView all(y_row_.view());
    return ops::GatherPresent(*stream_, outputs_, all.Part(plan_.recv.num_pairs - plan_.num_answers, plan_.num_answers),
                              answers);
  }

  Tensor rank_of, slot_of, first_of, counts, output_row, slots, offsets, x_rows, answers;

 private:
  int64_t num_slots() const { return static_cast<int64_t>(scene_->layout.Residents(rank_).size()); }
  // Zeros: what nobody writes is the same everywhere.
  absl::Status Allocate(DType dtype, Shape shape, Tensor* tensor) const {
    ASSIGN_OR_RETURN(*tensor, Tensor::Allocate(dtype, shape, stream_->device()));
    return FillZero(*stream_, *tensor);
  }
  TensorView Part(const Tensor& memory, const moe::MessageParts& parts, int rank) const {
    const int64_t row_bytes = 2 * scene_->width;
    return memory.view().Rows(parts.offsets[rank] / row_bytes, parts.bytes[rank] / row_bytes);
  }
  ops::RowRoutes routes() const {
    return {.places = {rank_of, slot_of, first_of},
            .pairs = {pair_offsets_, token_, pair_places_},
            .rows = {row_offsets_, token_, row_places_}};
  }

  const Stream* stream_ = nullptr;
  const Scene* scene_ = nullptr;
  int rank_ = 0;
  moe::DispatchPlan plan_;
  moe::DeviceExpertLayout table_;
  Tensor idx_, x_, pair_offsets_, row_offsets_, token_, pair_places_, row_places_, sorted_, y_row_;
  Tensor send_, recv_, outputs_;
};

using Step = absl::Status (RankSteps::*)() const;

// The whole exchange of both ranks.
absl::Status RunAll(const std::vector<RankSteps>& ranks) {
  const auto all = [&](std::initializer_list<Step> steps) -> absl::Status {
    for (const Step step : steps) {
      for (const RankSteps& rank : ranks) RETURN_IF_ERROR((rank.*step)());
    }
    return absl::OkStatus();
  };
  RETURN_IF_ERROR(all({&RankSteps::Places, &RankSteps::Route, &RankSteps::Count, &RankSteps::Pack}));
  RETURN_IF_ERROR(ranks[0].CarryTo(ranks[1]));
  RETURN_IF_ERROR(ranks[1].CarryTo(ranks[0]));
  return all({&RankSteps::Read, &RankSteps::Sort, &RankSteps::Place, &RankSteps::Compute, &RankSteps::Answer});
}

absl::Status CheckRank(const Bench& bench, const RankSteps& got, const RankSteps& want) {
  RETURN_IF_ERROR(CheckInts(bench, "expert places: rank", got.rank_of, IntsOf(want.rank_of)));
  RETURN_IF_ERROR(CheckInts(bench, "expert places: slot", got.slot_of, IntsOf(want.slot_of)));
  RETURN_IF_ERROR(CheckInts(bench, "expert places: first", got.first_of, IntsOf(want.first_of)));
  RETURN_IF_ERROR(CheckInts(bench, "count routes", got.counts, IntsOf(want.counts)));
  RETURN_IF_ERROR(CheckInts(bench, "read pairs", got.slots, IntsOf(want.slots)));
  RETURN_IF_ERROR(CheckInts(bench, "place pairs: output_row", got.output_row, IntsOf(want.output_row)));
  std::vector<int32_t> x_rows = IntsOf(want.x_rows);
  x_rows.resize(static_cast<size_t>(IntsOf(want.offsets).back()));
  RETURN_IF_ERROR(CheckInts(bench, "place pairs: x_rows", got.x_rows, x_rows));
  return CheckBytes(bench, "gather present", got.answers, want.answers);
}

absl::Status BenchScene(Bench* bench, const Scene& scene, int64_t experts) {
  const int sets = bench->Sets(scene.rows * scene.width * 4 * kRanks);
  std::vector<std::vector<RankSteps>> there(sets);
  std::vector<RankSteps> here;
  for (int i = 0; i < sets; ++i) {
    for (int r = 0; r < kRanks; ++r) {
      const BenchRouting routing = MakeRouting(scene.rows, experts, scene.top_k, kRanks * i + r);
      Tensor x;
      ASSIGN_OR_RETURN(x, bench->OnDevice(kRanks * i + r, kModel, scene.rows, scene.width));
      ASSIGN_OR_RETURN(RankSteps steps, RankSteps::Make(bench->stream(), scene, r, routing, std::move(x)));
      there[i].push_back(std::move(steps));
      if (i > 0) continue;
      ASSIGN_OR_RETURN(RankSteps same, RankSteps::Make(bench->cpu(), scene, r, routing,
                                                       bench->OnHost(r, kModel, scene.rows, scene.width)));
      here.push_back(std::move(same));
    }
    RETURN_IF_ERROR(RunAll(there[i]));
  }
  RETURN_IF_ERROR(RunAll(here));
  for (int r = 0; r < kRanks; ++r) RETURN_IF_ERROR(CheckRank(*bench, there[0][r], here[r]));

  const std::vector<int32_t> counts = IntsOf(here[0].counts);  // rows and pairs to rank 0, which is this one, and 1
  const double n = static_cast<double>(scene.rows * scene.top_k), row_bytes = 2.0 * scene.width;
  const double pairs_there = counts[3], pairs_here = IntsOf(here[0].offsets).back();
  const struct {
    const char* name;
    Step step;
    double bytes;
  } timed[] = {{"expert places", &RankSteps::Places, 16 * n},
               {"route rows", &RankSteps::Route, 16 * n},
               {"count routes", &RankSteps::Count, 16.0 * kRanks},
               {"pack rows", &RankSteps::Pack, 2 * row_bytes * (counts[0] + counts[2]) + 8 * pairs_there},
               {"read pairs", &RankSteps::Read, 8 * pairs_here},
               {"place pairs", &RankSteps::Place, 12 * pairs_here},
               {"gather present", &RankSteps::Answer, 2 * row_bytes * (pairs_here - counts[1])}};
  for (const auto& op : timed) {
    Timing timing;
    ASSIGN_OR_RETURN(timing, bench->Time(sets, [&](int i) { return (there[i][0].*op.step)(); }));
    bench->Emit(OpLine(op.name, absl::StrCat("R=", kRanks, " T=", scene.rows, " K=", scene.top_k, " H=", scene.width),
                       op.bytes),
                timing);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status BenchExchange(Bench* bench) {
  const int64_t experts = bench->Pick(128, 8);
  for (const int64_t rows : {bench->Pick(32, 3), bench->Pick(4096, 9)}) {
    const Scene scene = {.rows = rows,
                         .top_k = bench->Pick(8, 2),
                         .width = bench->Pick(2048, 64),
                         .layout = moe::ExpertLayout::Contiguous(static_cast<int>(experts), kRanks)};
    RETURN_IF_ERROR(
        bench->Measure(absl::StrCat("exchange T=", rows), [&] { return BenchScene(bench, scene, experts); }));
  }
  return absl::OkStatus();
}

}  // namespace switchyard
