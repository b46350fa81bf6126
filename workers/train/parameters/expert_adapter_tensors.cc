#include "workers/train/parameters/expert_adapter_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/adapters/fused_experts.h"
#include "workers/model/weights/adapters.h"

namespace switchyard::train {
namespace {

// Before the values of each expert in a message.
struct PartHeader {
  int64_t expert = 0;
};

// Some of a block's master, as fp32.
void CopyMaster(const ParameterBlock& block, const ElementRange& range, char* to) {
  const TensorView from = block.StateAt(&ParameterBlock::master, range);
  VisitDType(from.dtype(), [&]<class Elem>() {
    for (int64_t i = 0; i < range.count; ++i) {
      const auto value = static_cast<float>(from.data<Elem>()[i]);
      std::memcpy(to + i * static_cast<int64_t>(sizeof(value)), &value, sizeof(value));
    }
  });
}

}  // namespace

ExpertAdapterTensors::ExpertAdapterTensors(comm::Communicator* comm, const Parameters& parameters,
                                           ExpertAdapterOptions options)
    : comm_(comm), options_(std::move(options)), num_experts_(parameters.model().config().num_experts) {
  for (size_t i = 0; i < parameters.model().weights().layers.size(); ++i) {
    AddTensors(parameters, static_cast<int32_t>(i));
  }
  AddBlocks(parameters);
}

void ExpertAdapterTensors::AddTensors(const Parameters& parameters, int32_t layer) {
  const auto& moe = parameters.model().weights().layers[static_cast<size_t>(layer)].moe;
  if (!moe.has_value() || moe->experts.empty()) return;
  const model::FfnWeights& like = moe->experts[0];  // (Every rank has some.)
  const bool both = like.gate_up_adapter.has_value() && like.down_adapter.has_value();
  for (const auto* adapter : {&like.gate_up_adapter, &like.down_adapter}) {
    if (!adapter->has_value()) continue;
    const bool inner = both && adapter == &like.gate_up_adapter;
    const std::string module = absl::StrCat("base_model.model.model.layers.", layer,
                                            inner ? checkpoint::kInnerFusedExperts : checkpoint::kFusedExperts);
    const ops::Weight &a = (*adapter)->a, &b = (*adapter)->b;
    tensors_.push_back(
        {.name = absl::StrCat(module, ".lora_A.weight"), .rows = num_experts_ * a.n(), .columns = a.k(), .is_a = true});
    tensors_.push_back(
        {.name = absl::StrCat(module, ".lora_B.weight"), .rows = b.n(), .columns = num_experts_ * b.k()});
  }
}

void ExpertAdapterTensors::AddBlocks(const Parameters& parameters) {
  if (tensors_.empty()) return;
  std::map<std::string, Fused*> by_name;
  for (Fused& fused : tensors_) by_name[fused.name] = &fused;
  for (const ParameterBlock& block : parameters.blocks()) {
    if (block.shard != model::Shard::kExpert || block.base) continue;
    const model::Param& part = block.parts[0];
    const std::string module = absl::StrCat("base_model.model.model.layers.", block.layer);
    const std::string matrix = model::IsAdapterA(part) ? ".lora_A.weight" : ".lora_B.weight";
    // Only if both projections are adapted gate_up_proj's are there by the inner name.
    auto found = by_name.end();
    if (absl::StrContains(part.name, absl::StrCat(".", checkpoint::kGateUpProj, "."))) {
      found = by_name.find(absl::StrCat(module, checkpoint::kInnerFusedExperts, matrix));
    }
    if (found == by_name.end()) found = by_name.find(absl::StrCat(module, checkpoint::kFusedExperts, matrix));
    SY_CHECK(found != by_name.end());
    found->second->own.push_back(&block);
  }
}

ElementRange ExpertAdapterTensors::NextRows() const {
  const Fused& fused = tensors_[next_];
  const int64_t most = std::max<int64_t>(1, options_.round_elements / fused.columns);
  return {done_, std::min(most, fused.rows - done_)};
}

ElementRange ExpertAdapterTensors::PartOf(const Fused& fused, int64_t expert, const ElementRange& rows) const {
  if (!fused.is_a) {
    const int64_t rank = fused.columns / num_experts_;
    return {rows.begin * rank, rows.count * rank};
  }
  const int64_t rank = fused.rows / num_experts_, first = checkpoint::FusedRowOfA(expert, 0, rank);
  const ElementRange here = Intersect(rows, {first, rank});
  if (here.count == 0) return {};
  return {(here.begin - first) * fused.columns, here.count * fused.columns};
}

comm::Message ExpertAdapterTensors::OwnOf(const Fused& fused, const ElementRange& rows) {
  std::vector<std::pair<const ParameterBlock*, ElementRange>> parts;
  int64_t bytes = 0;
  for (const ParameterBlock* block : fused.own) {
    const ElementRange part = PartOf(fused, block->expert, rows);
    if (part.count == 0) continue;
    parts.emplace_back(block, part);
    bytes += static_cast<int64_t>(sizeof(PartHeader)) + part.count * static_cast<int64_t>(sizeof(float));
  }
  comm::Message message = comm_->NewMessage(bytes);
  char* to = message.payload();
  for (const auto& [block, part] : parts) {
    const PartHeader header = {.expert = block->expert};
    std::memcpy(to, &header, sizeof(header));
    CopyMaster(*block, part, to + sizeof(header));
    to += sizeof(header) + static_cast<size_t>(part.count) * sizeof(float);
  }
  return message;
}

int64_t ExpertAdapterTensors::PlaceAll(const Fused& fused, const ElementRange& rows, absl::Span<const char> from,
                                       absl::Span<float> to) const {
  int64_t placed = 0;
  while (!from.empty()) {
    PartHeader header;
    if (from.size() < sizeof(header)) return -1;
    std::memcpy(&header, from.data(), sizeof(header));
    from.remove_prefix(sizeof(header));
    if (header.expert < 0 || header.expert >= num_experts_) return -1;
    const ElementRange part = PartOf(fused, header.expert, rows);
    const size_t bytes = static_cast<size_t>(part.count) * sizeof(float);
    if (part.count == 0 || from.size() < bytes) return -1;
    if (fused.is_a) {
      const int64_t rank = fused.rows / num_experts_;
      const int64_t first = checkpoint::FusedRowOfA(header.expert, 0, rank) * fused.columns + part.begin;
      std::memcpy(to.data() + (first - rows.begin * fused.columns), from.data(), bytes);
    } else {
      const char* value = from.data();
      for (int64_t i = 0; i < rows.count; ++i) {
        for (int64_t j = 0; j < fused.columns / num_experts_; ++j, value += sizeof(float)) {
          const int64_t column = checkpoint::FusedColumnOfB(header.expert, j, num_experts_);
          std::memcpy(to.data() + (i * fused.columns + column), value, sizeof(float));
        }
      }
    }
    from.remove_prefix(bytes);
    placed += part.count;
  }
  return placed;
}

absl::Status ExpertAdapterTensors::Round(absl::Span<float> to, absl::Time deadline) {
  if (options_.given_up()) return absl::CancelledError("the save is given up");
  const Fused& fused = tensors_[next_];
  const ElementRange rows = NextRows();
  std::vector<comm::Message> out(static_cast<size_t>(comm_->world()));
  out[0] = OwnOf(fused, rows);
  ASSIGN_OR_RETURN(std::unique_ptr<comm::Work> work,
                   comm_->AllToAllV({.comm_class = comm::CommClass::kAllReduce, .deadline = deadline}, std::move(out)));
  RETURN_IF_ERROR(AwaitRound(work.get(), deadline, options_.given_up));
  done_ += rows.count;
  if (done_ == fused.rows) {
    ++next_;
    done_ = 0;
  }
  if (comm_->rank() != 0) return absl::OkStatus();
  int64_t placed = 0;
  for (const comm::Message& message : work->received()) {
    const int64_t more = PlaceAll(fused, rows, message.span(), to);
    placed = more < 0 || placed < 0 ? -1 : placed + more;
  }
  if (placed == rows.count * fused.columns) return absl::OkStatus();
  const absl::Status status = absl::InternalError(
      absl::StrCat("collectives differ: the ranks sent ", placed < 0 ? "other" : absl::StrCat(placed), " values of ",
                   fused.name, ", rows from ", rows.begin, " on, expected ", rows.count * fused.columns));
  comm_->Abort(status.message());
  return status;
}

absl::Status ExpertAdapterTensors::Stream(size_t tensor, checkpoint::ByteSink sink) {
  SY_CHECK_EQ(next_, tensor);
  SY_CHECK_EQ(done_, 0);
  std::vector<float> piece;
  while (next_ == tensor) {
    piece.resize(static_cast<size_t>(NextRows().count * tensors_[tensor].columns));
    RETURN_IF_ERROR(Round(absl::MakeSpan(piece), MonotonicNow() + options_.round_limit));
    RETURN_IF_ERROR(sink({reinterpret_cast<const char*>(piece.data()), piece.size() * sizeof(float)}));
  }
  return absl::OkStatus();
}

std::vector<checkpoint::TensorToWrite> ExpertAdapterTensors::ToWrite() {
  std::vector<checkpoint::TensorToWrite> tensors;
  if (comm_->rank() != 0) return tensors;
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Fused& fused = tensors_[i];
    checkpoint::TensorToWrite& tensor = tensors.emplace_back(checkpoint::TensorToWrite{
        .name = fused.name, .dtype = DType::kF32, .shape = {fused.rows, fused.columns}, .contents = nullptr});
    if (fused.kept.bytes() > 0) {
      tensor.contents = checkpoint::BytesAt(fused.kept.view().raw(), fused.kept.bytes());
    } else {
      tensor.contents = [this, i](checkpoint::ByteSink sink) { return Stream(i, sink); };
    }
  }
  return tensors;
}

absl::Status ExpertAdapterTensors::Finish() {
  std::vector<float> piece;
  while (next_ < tensors_.size()) {
    if (comm_->rank() == 0) piece.resize(static_cast<size_t>(NextRows().count * tensors_[next_].columns));
    RETURN_IF_ERROR(Round(absl::MakeSpan(piece), MonotonicNow() + options_.round_limit));
  }
  return absl::OkStatus();
}

int64_t ExpertAdapterTensors::BytesToKeep() const {
  int64_t bytes = 0;
  for (const Fused& fused : tensors_) {
    if (comm_->rank() == 0) bytes += fused.size() * static_cast<int64_t>(sizeof(float));
  }
  return bytes;
}

absl::Status ExpertAdapterTensors::Keep(absl::Duration limit) {
  SY_CHECK(next_ == 0 && done_ == 0);
  const absl::Time deadline = MonotonicNow() + limit;
  if (comm_->rank() == 0) {
    for (Fused& fused : tensors_) {
      ASSIGN_OR_RETURN(fused.kept, Tensor::Allocate(DType::kF32, Shape{fused.rows, fused.columns}, Device::Cpu()));
    }
  }
  while (next_ < tensors_.size()) {
    absl::Span<float> to;
    if (comm_->rank() == 0) {
      const Fused& fused = tensors_[next_];
      const ElementRange rows = NextRows();
      to = absl::MakeSpan(fused.kept.data<float>() + rows.begin * fused.columns,
                          static_cast<size_t>(rows.count * fused.columns));
    }
    RETURN_IF_ERROR(Round(to, deadline));
  }
  return absl::OkStatus();
}

}  // namespace switchyard::train
