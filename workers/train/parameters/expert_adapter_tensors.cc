#include "workers/train/parameters/expert_adapter_tensors.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/adapters/fused_experts.h"
#include "workers/model/weights/adapters.h"

namespace switchyard::train {
namespace {

// An A or a B of one expert as it travels: this, then its values.
struct Header {
  int64_t tensor = 0;  // of the layer: 0 gate_up's A, 1 its B, 2 down's A, 3 its B
  int64_t expert = 0;
};

bool IsAdapterOfExpert(const ParameterBlock& block) {
  return block.shard == model::Shard::kExpert && !block.base && block.replica == 0 &&
         (model::IsAdapterA(block.parts[0]) || model::IsAdapterB(block.parts[0]));
}

Header HeaderOf(const ParameterBlock& block) {
  const std::string& name = block.parts[0].name;
  const int64_t projection = absl::StrContains(name, absl::StrCat(".", checkpoint::kDownProj, ".")) ? 2 : 0;
  return {.tensor = projection + (model::IsAdapterB(block.parts[0]) ? 1 : 0), .expert = block.expert};
}

void Append(const void* from, size_t bytes, std::vector<char>* to) {
  const size_t at = to->size();
  to->resize(at + bytes);
  std::memcpy(to->data() + at, from, bytes);
}

// This rank's adapters of a layer.
std::vector<char> OwnOf(const Parameters& parameters, int64_t layer) {
  std::vector<char> own;
  for (const ParameterBlock& block : parameters.blocks()) {
    if (!IsAdapterOfExpert(block) || block.layer != layer) continue;
    const Header header = HeaderOf(block);
    Append(&header, sizeof(header), &own);
    std::vector<float> values(static_cast<size_t>(block.size()));
    VisitDType(block.master.dtype(), [&]<class Elem>() {
      const Elem* const from = block.master.data<Elem>();
      for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(from[i]);
    });
    Append(values.data(), values.size() * sizeof(float), &own);
  }
  return own;
}

// What every rank sends to rank 0; empty on others.
absl::StatusOr<std::vector<std::vector<char>>> ToFirst(std::vector<char> own, comm::Communicator* comm,
                                                       absl::Duration limit) {
  std::vector<std::vector<char>> all;
  if (comm->world() == 1) {
    all.push_back(std::move(own));
    return all;
  }
  std::vector<comm::Message> out(static_cast<size_t>(comm->world()));
  out[0] = comm->NewMessage(static_cast<int64_t>(own.size()));
  std::copy(own.begin(), own.end(), out[0].payload());
  ASSIGN_OR_RETURN(
      std::unique_ptr<comm::Work> work,
      comm->AllToAllV({.comm_class = comm::CommClass::kControl, .deadline = absl::Now() + limit}, std::move(out)));
  RETURN_IF_ERROR(work->Wait());
  if (comm->rank() != 0) return all;
  for (const comm::Message& message : work->received()) {
    all.emplace_back(message.span().begin(), message.span().end());
  }
  return all;
}

}  // namespace

absl::StatusOr<ExpertAdapterTensors> ExpertAdapterTensors::Gather(const Parameters& parameters,
                                                                  comm::Communicator* comm, absl::Duration limit) {
  ExpertAdapterTensors gathered;
  const model::ModelWeights& weights = parameters.model().weights();
  const int64_t num_experts = parameters.model().config().num_experts;
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    if (!weights.layers[i].moe.has_value() || weights.layers[i].moe->experts.empty()) continue;
    const model::FfnWeights& like = weights.layers[i].moe->experts[0];  // (Every rank has some.)
    if (!like.gate_up_adapter.has_value() && !like.down_adapter.has_value()) continue;
    const bool both = like.gate_up_adapter.has_value() && like.down_adapter.has_value();
    const size_t first = gathered.tensors_.size();
    for (const auto* adapter : {&like.gate_up_adapter, &like.down_adapter}) {
      gathered.tensors_.resize(gathered.tensors_.size() + 2);
      if (!adapter->has_value() || comm->rank() != 0) continue;
      const bool inner = both && adapter == &like.gate_up_adapter;
      const std::string module = absl::StrCat("base_model.model.model.layers.", i,
                                              inner ? checkpoint::kInnerFusedExperts : checkpoint::kFusedExperts);
      const ops::Weight &a = (*adapter)->a, &b = (*adapter)->b;
      Fused* const fused = &gathered.tensors_[gathered.tensors_.size() - 2];
      fused[0] = {.name = absl::StrCat(module, ".lora_A.weight"), .shape = {num_experts * a.n(), a.k()}};
      fused[1] = {.name = absl::StrCat(module, ".lora_B.weight"), .shape = {b.n(), num_experts * b.k()}};
      for (Fused* each : {fused, fused + 1}) each->values.resize(static_cast<size_t>(each->shape[0] * each->shape[1]));
    }
    ASSIGN_OR_RETURN(const std::vector<std::vector<char>> all,
                     ToFirst(OwnOf(parameters, static_cast<int64_t>(i)), comm, limit));
    for (const std::vector<char>& from : all) RETURN_IF_ERROR(gathered.PlaceAll(first, num_experts, from));
  }
  std::erase_if(gathered.tensors_, [](const Fused& fused) { return fused.name.empty(); });
  return gathered;
}

absl::Status ExpertAdapterTensors::PlaceAll(size_t first, int64_t num_experts, absl::Span<const char> from) {
  while (!from.empty()) {
    Header header;
    const bool whole = from.size() >= sizeof(header);
    if (whole) std::memcpy(&header, from.data(), sizeof(header));
    const bool known = whole && header.tensor >= 0 && header.tensor < 4 && header.expert >= 0 &&
                       header.expert < num_experts &&
                       !tensors_[first + static_cast<size_t>(header.tensor)].name.empty();
    const size_t count =
        known ? tensors_[first + static_cast<size_t>(header.tensor)].values.size() / static_cast<size_t>(num_experts)
              : 0;
    if (!known || from.size() < sizeof(header) + count * sizeof(float)) {
      return absl::InternalError("collectives differ: adapters of experts are not as this rank has them");
    }
    std::vector<float> values(count);
    std::memcpy(values.data(), from.data() + sizeof(header), count * sizeof(float));
    Place(&tensors_[first + static_cast<size_t>(header.tensor)], header.expert, num_experts, values);
    from.remove_prefix(sizeof(header) + count * sizeof(float));
  }
  return absl::OkStatus();
}

void ExpertAdapterTensors::Place(Fused* to, int64_t expert, int64_t num_experts, absl::Span<const float> values) {
  const int64_t columns = to->shape[1];
  if (absl::EndsWith(to->name, ".lora_A.weight")) {
    const int64_t rank = to->shape[0] / num_experts;
    std::copy(values.begin(), values.end(), to->values.begin() + checkpoint::FusedRowOfA(expert, 0, rank) * columns);
    return;
  }
  const int64_t rank = columns / num_experts;
  for (int64_t i = 0; i < to->shape[0]; ++i) {
    for (int64_t j = 0; j < rank; ++j) {
      to->values[static_cast<size_t>(i * columns + checkpoint::FusedColumnOfB(expert, j, num_experts))] =
          values[static_cast<size_t>(i * rank + j)];
    }
  }
}

std::vector<checkpoint::TensorToWrite> ExpertAdapterTensors::ToWrite() const {
  std::vector<checkpoint::TensorToWrite> tensors;
  for (const Fused& fused : tensors_) {
    tensors.push_back({.name = fused.name,
                       .dtype = DType::kF32,
                       .shape = fused.shape,
                       .contents = checkpoint::BytesAt(fused.values.data(),
                                                       static_cast<int64_t>(fused.values.size() * sizeof(float)))});
  }
  return tensors;
}

}  // namespace switchyard::train
