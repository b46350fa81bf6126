#include "workers/serving/rank_adapters.h"

#include <limits>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/fnv1a.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/adapters/lora_adapter.h"
#include "workers/model/weights/served_adapters.h"

namespace switchyard::worker {
namespace {

absl::Status Named(const fleet::AdapterPlace& place, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat("--adapters: ", place.name, "=", place.dir, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<const checkpoint::LoraAdapter>> OpenFolder(
    const fleet::AdapterPlace& place, int64_t available = std::numeric_limits<int64_t>::max()) {
  absl::StatusOr<std::unique_ptr<const checkpoint::LoraAdapter>> adapter =
      checkpoint::LoraAdapter::Open(place.dir, available);
  if (!adapter.ok()) return Named(place, adapter.status());
  return adapter;
}

}  // namespace

absl::StatusOr<RankAdapters> RankAdapters::Open(absl::Span<const fleet::AdapterPlace> places,
                                                const model::ModelConfig& config, DType dtype, int64_t available) {
  RankAdapters all;
  for (const fleet::AdapterPlace& place : places) {
    ASSIGN_OR_RETURN(const std::unique_ptr<const checkpoint::LoraAdapter> adapter, OpenFolder(place, available));
    RETURN_IF_ERROR(Named(place, model::CheckServedAdapter(config, dtype, *adapter)));
    all.adapters_.push_back(
        {.place = place, .hash = adapter->Hash(), .bytes = model::ServedAdapterBytes(dtype, *adapter)});
    LogInfo("--adapters: ", place.name, "=", place.dir, ": adapts ", adapter->matrices().size(), " matrices");
  }
  return all;
}

std::vector<std::string> RankAdapters::names() const {
  std::vector<std::string> names;
  for (const Adapter& adapter : adapters_) names.push_back(adapter.place.name);
  return names;
}

std::string RankAdapters::Hash() const {
  std::string all;
  for (const Adapter& adapter : adapters_) absl::StrAppend(&all, adapter.place.name, "=", adapter.hash, ",");
  return absl::StrCat(absl::Hex(Fnv1a(all), absl::kZeroPad16));
}

int64_t RankAdapters::bytes() const {
  int64_t bytes = 0;
  for (const Adapter& adapter : adapters_) bytes += adapter.bytes;
  return bytes;
}

absl::StatusOr<std::vector<std::vector<model::LayerAdapter>>> RankAdapters::Load(const model::ModelConfig& config,
                                                                                 DType dtype, Progress progress) const {
  std::vector<std::vector<model::LayerAdapter>> loaded;
  if (empty()) return loaded;
  loaded.resize(static_cast<size_t>(config.num_layers()));
  int64_t done = 0;
  for (const Adapter& each : adapters_) {
    ASSIGN_OR_RETURN(const std::unique_ptr<const checkpoint::LoraAdapter> adapter, OpenFolder(each.place));
    if (adapter->Hash() != each.hash) {
      return Named(each.place, absl::DataLossError("has other contents than when this worker started"));
    }
    absl::StatusOr<std::vector<model::LayerAdapter>> layers = model::PackServedAdapter(config, dtype, *adapter);
    if (!layers.ok()) return Named(each.place, layers.status());
    for (size_t i = 0; i < layers->size(); ++i) loaded[i].push_back(std::move((*layers)[i]));
    done += each.bytes;
    if (!progress(done, bytes())) {
      return absl::CancelledError(absl::StrCat("loading adapters was stopped after ", done, " of ", bytes(), " bytes"));
    }
  }
  return loaded;
}

}  // namespace switchyard::worker
