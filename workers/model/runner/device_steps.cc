#include "workers/model/runner/device_steps.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/pipeline/build_expert_parallel.h"
#include "workers/tensor/copy.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::model {
namespace {

// What a step says of the sampling of each row, beside four words of random numbers.
constexpr int64_t kSamplingArrays = 5, kRandomWords = 4;

int32_t BitsOf(double value) {
  const auto number = static_cast<float>(value);
  int32_t bits;
  std::memcpy(&bits, &number, 4);
  return bits;
}

// "cuda:0, where 4096 of 85899345920 bytes are free"
std::string WithFreeBytes(Device device) {
  const absl::StatusOr<DeviceDescription> now = RegisteredBackend(device.kind).Describe(device.index);
  if (!now.ok()) return device.ToString();
  return absl::StrCat(device.ToString(), ", where ", now->free_bytes, " of ", now->total_bytes, " bytes are free");
}

void LogDoesNotFit(int64_t bucket, absl::string_view where) {
  LogWarn("the graph of steps of ", bucket, " decodes does not fit on ", where,
          ": such steps and larger ones that have no graph yet run without; a smaller --gpu_memory_fraction or "
          "--kv_cache_bytes leaves memory for them");
}

}  // namespace

// Powers of two up to 8, then multiples of 8, from 64 on of 32: padding costs little where experts are many.
int64_t DecodeBucket(int64_t rows, int64_t max_rows) {
  if (rows < 1) return 0;
  int64_t bucket = 1;
  while (bucket < rows && bucket < 8) bucket *= 2;
  if (bucket < rows) bucket = rows <= 64 ? (rows + 7) / 8 * 8 : (rows + 31) / 32 * 32;
  bucket = std::max(std::min(bucket, max_rows), rows);
  return bucket <= kMaxGraphRows && bucket <= max_rows ? bucket : 0;
}

absl::StatusOr<int64_t> LeastOfRanks(comm::Communicator* comm, int64_t mine, absl::Time deadline) {
  if (comm->world() == 1) return mine;
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> work,
                   comm->AllGather({.comm_class = comm::CommClass::kControl, .deadline = deadline},
                                   {reinterpret_cast<const char*>(&mine), sizeof(mine)}));
  RETURN_IF_ERROR(work->Wait());
  int64_t least = mine;
  for (const comm::Message& message : work->received()) {
    int64_t each = 0;
    SY_CHECK_EQ(message.bytes(), static_cast<int64_t>(sizeof(each)));
    std::memcpy(&each, message.payload(), sizeof(each));
    least = std::min(least, each);
  }
  return least;
}

DeviceSteps::DeviceSteps(const Stream& stream, Model* model, const Limits& limits)
    : stream_(stream),
      model_(model),
      limits_(limits),
      recorded_schedule_(pipeline::BuildExpertParallel({.shared_expert = model->config().shared_intermediate > 0})) {}

absl::StatusOr<std::unique_ptr<DeviceSteps>> DeviceSteps::Create(const Stream& stream, Model* model,
                                                                 const Limits& limits) {
  const Device device = stream.device();
  std::unique_ptr<DeviceSteps> steps(new DeviceSteps(stream, model, limits));
  RETURN_IF_ERROR(model->Reserve(limits.rows));
  const ops::SequenceLimits batch = {.sequences = limits.slots, .rows = limits.rows, .blocks = limits.blocks};
  ASSIGN_OR_RETURN(steps->batch_, BatchUpload::Create(device, batch));
  std::vector<int64_t> counts = BatchUpload::CountsOf(batch);
  counts.insert(counts.end(), kSamplingArrays, limits.slots);
  counts.push_back(kRandomWords * limits.slots);
  ASSIGN_OR_RETURN(steps->upload_, IntUpload::Create(device, counts));
  ASSIGN_OR_RETURN(steps->resolved_, Tensor::Allocate(DType::kI32, {limits.rows}, device));
  ASSIGN_OR_RETURN(steps->tokens_, Tensor::Allocate(DType::kI32, {limits.slots}, device));
  ASSIGN_OR_RETURN(steps->last_, Tensor::Allocate(DType::kI32, {limits.slots}, device));
  RETURN_IF_ERROR(FillZero(stream, steps->last_));
  const int64_t experts = model->config().num_layers() * model->config().num_experts;
  for (PinnedBuffer& results : steps->results_) {
    ASSIGN_OR_RETURN(results, PinnedBuffer::Allocate(4 * (limits.slots + 2 * experts), device.kind));
  }
  return steps;
}

std::vector<int64_t> DeviceSteps::Buckets(int64_t most_decodes) const {
  std::vector<int64_t> buckets;
  for (int64_t rows = 1; rows <= std::min({most_decodes, most_rows(), kMaxGraphRows}); ++rows) {
    const int64_t bucket = DecodeBucket(rows, most_rows());
    if (bucket > 0 && (buckets.empty() || bucket > buckets.back())) buckets.push_back(bucket);
  }
  return buckets;
}

bool DeviceSteps::HasGraph(int64_t bucket) const {
  const auto graph = graphs_.find(bucket);
  return graph != graphs_.end() && graph->second != nullptr;
}

int64_t DeviceSteps::GraphRows(int64_t most_decodes) const {
  const int64_t bucket = limits_.graphs ? DecodeBucket(most_decodes, most_rows()) : 0;
  return bucket < too_large_ || HasGraph(bucket) ? bucket : 0;
}

// The second step of a size captures it, and is replayed, as the device's first run of a graph is a slow one.
absl::StatusOr<bool> DeviceSteps::Capture(const moe::MoeContext& moe, int64_t bucket) {
  SY_CHECK_EQ(under_way(), 0);
  const int64_t replayed = counters_.replayed;
  while (GraphRows(bucket) == bucket && !HasGraph(bucket)) {
    Batch padding;
    RETURN_IF_ERROR(Launch(moe, &padding, {}, bucket));
    RETURN_IF_ERROR(Collect(moe.deadline).status());
    RETURN_IF_ERROR(moe.comm->status());
  }
  counters_.replayed = replayed;
  return HasGraph(bucket);
}

absl::Status DeviceSteps::Upload(Batch* batch) {
  RETURN_IF_ERROR(upload_.Begin(stream_));
  return batch_.Send(stream_, &upload_, cache_->layer(0), batch);
}

void DeviceSteps::TakeSampling(absl::Span<const PlainRow> rows, int64_t padded_rows) {
  const IntUpload::Array temperature = upload_.Take(padded_rows), top_k = upload_.Take(padded_rows);
  const IntUpload::Array top_p = upload_.Take(padded_rows), min_p = upload_.Take(padded_rows);
  const IntUpload::Array slot = upload_.Take(padded_rows), random = upload_.Take(kRandomWords * padded_rows);
  const auto count = static_cast<int64_t>(rows.size());
  batching::SamplingParams padding;
  padding.temperature = 0;
  for (int64_t i = 0; i < padded_rows; ++i) {
    const PlainRow row = i < count ? rows[i] : PlainRow{.slot = -1};
    const batching::SamplingParams& params = row.params != nullptr ? *row.params : padding;
    temperature.host[i] = BitsOf(params.temperature);
    top_k.host[i] = params.top_k;
    top_p.host[i] = BitsOf(params.top_p);
    min_p.host[i] = BitsOf(params.min_p);
    int32_t* const words = random.host.data() + kRandomWords * i;
    words[0] = static_cast<int32_t>(params.seed);
    words[1] = static_cast<int32_t>(params.seed >> 32);
    words[2] = static_cast<int32_t>(params.choice);
    words[3] = static_cast<int32_t>(row.index);
    slot.host[i] = row.slot;
  }
  requests_ = {.temperature = temperature.device,
               .top_k = top_k.device,
               .top_p = top_p.device,
               .min_p = min_p.device,
               .random = random.device,
               .slot = slot.device};
}

absl::Status DeviceSteps::Enqueue(const moe::MoeContext& moe, Batch* batch) {
  // The batch on the device, with the tokens that only the device knows.
  const BatchOnDevice* const sent = batch->on_device;
  const absl::Cleanup restore = [&] { batch->on_device = sent; };
  BatchOnDevice known = *sent;
  const TensorView resolved = resolved_.view().Rows(0, known.num_rows);
  if (known.num_rows > 0) RETURN_IF_ERROR(ops::ResolveTokens(stream_, known.tokens, last_, resolved));
  known.tokens = IntView(resolved);
  batch->on_device = &known;
  const auto sample = [&](int64_t first, const TensorView& logits) {
    const int64_t count = logits.dim(0);
    return ops::SamplePlain(stream_, logits, requests_.Part(first, count), tokens_.view().Rows(first, count), last_);
  };
  const StageIn stage = {.batch = batch, .moe = &moe, .logits = LogitsSink(sample)};
  ASSIGN_OR_RETURN(StageOut out, model_->Forward(stage, model_->all_layers(), cache_, /*saved=*/nullptr));
  expert_counts_ = out.expert_counts;
  decode_counts_ = out.decode_counts;
  return absl::OkStatus();
}

absl::Status DeviceSteps::Record(const moe::MoeContext& moe, Batch* batch, int64_t bucket) {
  const absl::Time begin = MonotonicNow();
  RETURN_IF_ERROR(stream_.queue()->BeginRecording());
  const absl::Status enqueued = Enqueue(moe, batch);
  absl::StatusOr<std::unique_ptr<DeviceGraph>> recorded = stream_.queue()->EndRecording();
  RETURN_IF_ERROR(enqueued);
  const bool fits = !absl::IsResourceExhausted(recorded.status());
  if (fits) RETURN_IF_ERROR(recorded.status());
  ASSIGN_OR_RETURN(const int64_t all_fit, LeastOfRanks(moe.comm, fits ? 1 : 0, moe.deadline));
  counters_.capture_seconds += absl::ToDoubleSeconds(MonotonicNow() - begin);
  if (all_fit == 1) {
    graphs_[bucket] = *std::move(recorded);
    ++counters_.captured;
    return absl::OkStatus();
  }
  too_large_ = std::min(too_large_, bucket);
  ++counters_.did_not_fit;
  LogDoesNotFit(bucket, fits ? "another rank's device" : WithFreeBytes(stream_.device()));
  return absl::OkStatus();
}

// The first step of a size is not recorded, so that nothing is allocated or chosen while the second is.
absl::Status DeviceSteps::Replay(const moe::MoeContext& moe, Batch* batch, int64_t bucket) {
  const auto [graph, fresh] = graphs_.try_emplace(bucket);
  if (fresh) return Enqueue(moe, batch);
  if (graph->second == nullptr) {
    RETURN_IF_ERROR(Record(moe, batch, bucket));
    if (graph->second == nullptr) return Enqueue(moe, batch);
  }
  // After an error in the group none of its collectives may be launched.
  RETURN_IF_ERROR(moe.comm->status());
  ++counters_.replayed;
  RETURN_IF_ERROR(stream_.queue()->Run(graph->second.get()));
  if (moe.comm->world() == 1) return absl::OkStatus();
  // The fence watches over the collectives in the graph.
  ASSIGN_OR_RETURN(const std::unique_ptr<comm::Work> fence,
                   moe.comm->Fence({.stream = &stream_, .deadline = moe.deadline}));
  return fence->Wait();
}

absl::Status DeviceSteps::ReadBack(int64_t rows, int64_t num_decodes) {
  UnderWay step = {.rows = rows,
                   .turn = next_turn_,
                   .all_decodes = num_decodes > 0 && decode_counts_.rank() == 0,
                   .some_decodes = num_decodes > 0 && decode_counts_.rank() != 0,
                   .done = nullptr};
  next_turn_ = (next_turn_ + 1) % kMaxUnderWay;
  char* const to = results_[step.turn].data();
  RETURN_IF_ERROR(stream_.queue()->Copy(to, tokens_.view().raw(), 4 * rows));
  RETURN_IF_ERROR(
      stream_.queue()->Copy(to + 4 * limits_.slots, expert_counts_.raw(), 4 * expert_counts_.NumElements()));
  if (step.some_decodes) {
    RETURN_IF_ERROR(stream_.queue()->Copy(to + 4 * (limits_.slots + expert_counts_.NumElements()), decode_counts_.raw(),
                                          4 * decode_counts_.NumElements()));
  }
  ASSIGN_OR_RETURN(step.done, stream_.queue()->Record());
  under_way_.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status DeviceSteps::LaunchDecodes(moe::MoeContext moe, Batch* batch, absl::Span<const PlainRow> rows,
                                        int64_t bucket) {
  moe::MoeStats unread;  // what is replayed counts nothing
  moe.stats = &unread;
  moe.schedule = &recorded_schedule_;
  moe.recorded = true;
  if (moe.comm->world() > 1) {
    moe.exchange = moe::ExchangeMode::kPadded;
    moe.max_rows = bucket;
  }
  // Graphs hold addresses of scratch: it is there for the largest before the first.
  if (graphs_.empty()) {
    RETURN_IF_ERROR(model_->ReserveRecorded({.stream = &stream_,
                                             .layout = moe.layout,
                                             .rank = moe.comm->rank(),
                                             .rows = std::min(kMaxGraphRows, most_rows())}));
  }
  TakeSampling(rows, bucket);
  RETURN_IF_ERROR(batch_.SendDecodes(stream_, &upload_, cache_->layer(0), batch, {bucket, limits_.context}));
  batch->num_decode_rows = batch->num_rows();  // what is recorded counts once: all are, but for prompts of one token
  RETURN_IF_ERROR(Replay(moe, batch, bucket));
  decode_counts_ = TensorView();
  return absl::OkStatus();
}

absl::Status DeviceSteps::Launch(const moe::MoeContext& moe, Batch* batch, absl::Span<const PlainRow> rows,
                                 int64_t most_decodes) {
  SY_CHECK_LT(under_way(), kMaxUnderWay);
  const auto count = static_cast<int64_t>(rows.size());
  const int64_t bucket = GraphRows(most_decodes);
  RETURN_IF_ERROR(upload_.Begin(stream_));
  if (bucket > 0) {
    RETURN_IF_ERROR(LaunchDecodes(moe, batch, rows, bucket));
  } else {
    TakeSampling(rows, count);
    RETURN_IF_ERROR(batch_.Send(stream_, &upload_, cache_->layer(0), batch));
    RETURN_IF_ERROR(Enqueue(moe, batch));
  }
  return ReadBack(count, batch->num_decode_rows);
}

absl::StatusOr<bool> DeviceSteps::OldestIsDone() { return under_way_.front().done->Passed(); }

absl::StatusOr<CollectedStep> DeviceSteps::Collect(absl::Time deadline) {
  RETURN_IF_ERROR(stream_.queue()->WaitOnHost(*under_way_.front().done, deadline));
  const UnderWay& step = under_way_.front();
  const auto* const numbers = reinterpret_cast<const int32_t*>(results_[step.turn].data());
  CollectedStep collected;
  collected.tokens.assign(numbers, numbers + step.rows);
  const int32_t* const counts = numbers + limits_.slots;
  const int64_t num_counts = expert_counts_.NumElements();
  collected.expert_counts.assign(counts, counts + num_counts);
  if (step.all_decodes) collected.decode_counts = collected.expert_counts;
  if (step.some_decodes) collected.decode_counts.assign(counts + num_counts, counts + 2 * num_counts);
  under_way_.pop_front();
  return collected;
}

void DeviceSteps::Clear() {
  under_way_.clear();
  graphs_.clear();
  too_large_ = kMaxGraphRows + 1;
}

}  // namespace switchyard::model
