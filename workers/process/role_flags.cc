#include "workers/process/role_flags.h"

#include <tuple>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/fleet/adapter_list.h"
#include "workers/tensor/device_backend.h"

namespace switchyard::worker {
namespace {

// InvalidArgument: no device's name.  Unimplemented: of a kind that this program is built without.
absl::StatusOr<Device> ParseDevice(absl::string_view name) {
  if (name == "cpu") return Device::Cpu();
  int index = 0;
  if (name != "cuda" && !(absl::ConsumePrefix(&name, "cuda:") && absl::SimpleAtoi(name, &index) && index >= 0)) {
    return absl::InvalidArgumentError("must be cpu, cuda or cuda:N");
  }
  RETURN_IF_ERROR(BackendOf(DeviceKind::kCuda).status());
  return Device::Cuda(index);
}

// Checks the flags of the device, and those that only GPUs have.
std::string CheckDevice(const WorkerFlags& values, const FlagSet& flags) {
  std::string problems;
  if (const absl::Status status = ParseDevice(values.device).status(); !status.ok())
    absl::StrAppend(&problems, "--device=", values.device, ": ", status.message(), "\n");
  if (const double fraction = values.gpu_memory_fraction; !(fraction > 0 && fraction <= 1))
    absl::StrAppend(&problems, "--gpu_memory_fraction=", fraction, ": must be within (0, 1]\n");
  for (const Flag* flag : flags.Marked(kOfGpus)) {
    // A server passes all of them to its workers, so a value that is the default is no mistake.
    if (values.device != "cpu" || flag->is_default()) continue;
    absl::StrAppend(&problems, "--", flag->name, "=", flag->text(), ": is for GPUs, but --device=cpu\n");
  }
  return problems;
}

std::string CheckExpertFlags(const WorkerFlags& values) {
  std::string problems;
  for (const absl::Status& status :
       {offload::CheckExpertBudget(values.experts),
        offload::CheckColdExperts(values.experts, values.device == "cpu", values.deterministic)}) {
    if (!status.ok()) absl::StrAppend(&problems, status.message(), "\n");
  }
  return problems;
}

// The flags of a role that trains.  One that serves, too, goes on where a disk does not answer: a job fails with that
// error when it begins.
std::string CheckRoots(const WorkerFlags& values, bool serves) {
  std::string problems;
  for (const auto& [flag, path, what] :
       {std::tuple("--dataset_root", &values.dataset_root, "data"),
        std::tuple("--checkpoint_root", &values.checkpoint_root, "models and checkpoints")}) {
    if (path->empty()) {
      absl::StrAppend(&problems, flag, ": missing; give the directory of jobs' ", what, "\n");
    } else if (const absl::Status status = RootDir::Open(*path, flag).status(); serves && absl::IsUnavailable(status)) {
      LogWarn(status.message());
    } else if (!status.ok()) {
      absl::StrAppend(&problems, status.message(), "\n");
    }
  }
  for (const absl::Status& status :
       {CheckRootsApart("--dataset_root", values.dataset_root, "--checkpoint_root", values.checkpoint_root),
        CheckWritableFolder("--train_offload_dir", values.train_offload_dir)}) {
    if (!status.ok()) absl::StrAppend(&problems, status.message(), "\n");
  }
  return problems;
}

// Checks the flags of a role that serves.
std::string CheckServing(const WorkerFlags& values, const FlagSet& flags) {
  std::string problems;
  if (values.model.empty()) absl::StrAppend(&problems, "--model: missing; give the checkpoint's directory\n");
  absl::StrAppend(&problems, CheckDevice(values, flags));
  if (values.load_format != "auto" && values.load_format != "dummy")
    absl::StrAppend(&problems, "--load_format=", values.load_format, ": must be auto or dummy\n");
  absl::StrAppend(&problems, CheckExpertFlags(values));
  if (const absl::Status status = fleet::ParseAdapterList(values.adapters).status(); !status.ok())
    absl::StrAppend(&problems, "--adapters=", values.adapters, ": ", status.message(), "\n");
  if (const absl::Status status = CheckForecastOptions(values.forecast); !status.ok())
    absl::StrAppend(&problems, status.message(), "\n");
  return problems;
}

// Finds flags that the role ignores.
std::string CheckForeign(const FlagSet& flags, uint32_t marks, absl::string_view role) {
  std::string problems;
  for (const Flag* flag : flags.Marked(marks)) {
    if (flag->is_default()) continue;
    absl::StrAppend(&problems, "--", flag->name, "=", flag->text(), ": is for --role=", role, "\n");
  }
  return problems;
}

}  // namespace

std::optional<WorkerRole> ParseRole(absl::string_view name) {
  if (name == "serve") return WorkerRole::kServe;
  if (name == "train") return WorkerRole::kTrain;
  if (name == "both") return WorkerRole::kBoth;
  return std::nullopt;
}

std::string CheckRoleFlags(WorkerRole role, const WorkerFlags& values, const FlagSet& flags) {
  switch (role) {
    case WorkerRole::kServe:
      return absl::StrCat(CheckServing(values, flags), CheckForeign(flags, kOfTraining, "train or both"));
    case WorkerRole::kTrain:
      return absl::StrCat(CheckRoots(values, /*serves=*/false), CheckForeign(flags, kOfServing, "serve or both"));
    case WorkerRole::kBoth:
      break;
  }
  std::string problems = absl::StrCat(CheckServing(values, flags), CheckRoots(values, /*serves=*/true));
  if (values.device != "cpu")
    absl::StrAppend(&problems, "--device=", values.device, ": training is on the CPU, so --role=both is\n");
  return problems;
}

WorkerOptions ServingOptions(const WorkerFlags& values) {
  WorkerOptions options;
  options.model_dir = values.model;
  options.adapter_dir = values.adapter;
  options.adapters = fleet::ParseAdapterList(values.adapters).value();
  options.dtype = values.dtype;
  options.quantization = values.quantization;
  options.kv_cache_dtype = values.kv_cache_dtype;
  options.device = *ParseDevice(values.device);
  options.gpu_memory_fraction = values.gpu_memory_fraction;
  options.deterministic = values.deterministic;
  options.graphs = values.cuda_graphs;
  options.dummy_weights = values.load_format == "dummy";
  options.experts = values.experts;
  options.forecast = values.forecast;
  return options;
}

}  // namespace switchyard::worker
