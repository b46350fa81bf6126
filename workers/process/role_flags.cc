#include "workers/process/role_flags.h"

#include <utility>

#include "absl/flags/declare.h"
#include "absl/flags/flag.h"
#include "absl/flags/reflection.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/types/span.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/device_backend.h"

// Of main.cc.
ABSL_DECLARE_FLAG(std::string, role);
ABSL_DECLARE_FLAG(std::string, model);
ABSL_DECLARE_FLAG(std::string, dataset_root);
ABSL_DECLARE_FLAG(std::string, checkpoint_root);
ABSL_DECLARE_FLAG(std::string, train_offload_dir);
ABSL_DECLARE_FLAG(int, train_send_buffer_kib);
ABSL_DECLARE_FLAG(std::string, device);
ABSL_DECLARE_FLAG(double, gpu_memory_fraction);
ABSL_DECLARE_FLAG(bool, deterministic);
ABSL_DECLARE_FLAG(bool, cuda_graphs);
ABSL_DECLARE_FLAG(std::string, load_format);
ABSL_DECLARE_FLAG(std::string, expert_budget);
ABSL_DECLARE_FLAG(std::string, expert_policy);
ABSL_DECLARE_FLAG(std::string, expert_file_dir);
ABSL_DECLARE_FLAG(std::string, cold_experts);
ABSL_DECLARE_FLAG(double, expert_copy_bytes_per_second);
ABSL_DECLARE_FLAG(std::string, profile);
ABSL_DECLARE_FLAG(std::string, profile_out);
ABSL_DECLARE_FLAG(std::string, forecast);
ABSL_DECLARE_FLAG(int, path_length);
ABSL_DECLARE_FLAG(std::string, dtype);

namespace switchyard {
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

// Of the device and of what only GPUs have.
std::string CheckDevice() {
  std::string problems;
  const std::string device = absl::GetFlag(FLAGS_device);
  if (const absl::Status status = ParseDevice(device).status(); !status.ok())
    absl::StrAppend(&problems, "--device=", device, ": ", status.message(), "\n");
  if (const double fraction = absl::GetFlag(FLAGS_gpu_memory_fraction); !(fraction > 0 && fraction <= 1))
    absl::StrAppend(&problems, "--gpu_memory_fraction=", fraction, ": must be within (0, 1]\n");
  for (const absl::CommandLineFlag* flag :
       {&absl::GetFlagReflectionHandle(FLAGS_gpu_memory_fraction), &absl::GetFlagReflectionHandle(FLAGS_deterministic),
        &absl::GetFlagReflectionHandle(FLAGS_cuda_graphs)}) {
    // A server says all of them to its workers: a value that is the default says nothing that is not so.
    if (device != "cpu" || flag->CurrentValue() == flag->DefaultValue()) continue;
    absl::StrAppend(&problems, "--", flag->Name(), "=", flag->CurrentValue(), ": is for GPUs, but --device=cpu\n");
  }
  return problems;
}

ExpertBudgetOptions ExpertFlags() {
  return {.budget = absl::GetFlag(FLAGS_expert_budget),
          .policy = absl::GetFlag(FLAGS_expert_policy),
          .file_dir = absl::GetFlag(FLAGS_expert_file_dir),
          .copy_bytes_per_second = absl::GetFlag(FLAGS_expert_copy_bytes_per_second),
          .cold = absl::GetFlag(FLAGS_cold_experts)};
}

ForecastOptions ForecastFlags() {
  return {.when = absl::GetFlag(FLAGS_forecast),
          .profile = absl::GetFlag(FLAGS_profile),
          .profile_out = absl::GetFlag(FLAGS_profile_out),
          .path_length = absl::GetFlag(FLAGS_path_length)};
}

std::string CheckExpertFlags() {
  const ExpertBudgetOptions options = ExpertFlags();
  std::string problems;
  for (const absl::Status& status :
       {CheckExpertBudget(options),
        CheckColdExperts(options, absl::GetFlag(FLAGS_device) == "cpu", absl::GetFlag(FLAGS_deterministic))}) {
    if (!status.ok()) absl::StrAppend(&problems, status.message(), "\n");
  }
  return problems;
}

// The flags of a role that trains.  One that serves, too, goes on where a disk does not answer: a job fails with that
// error when it begins.
std::string CheckRoots(bool serves) {
  std::string problems;
  for (const auto& [flag, what] :
       {std::make_pair(&absl::GetFlagReflectionHandle(FLAGS_dataset_root), "data"),
        std::make_pair(&absl::GetFlagReflectionHandle(FLAGS_checkpoint_root), "models and checkpoints")}) {
    const std::string path = flag->CurrentValue();
    if (path.empty()) {
      absl::StrAppend(&problems, "--", flag->Name(), ": missing; give the directory of jobs' ", what, "\n");
    } else if (const absl::Status status = RootDir::Open(path, absl::StrCat("--", flag->Name())).status();
               serves && absl::IsUnavailable(status)) {
      LogWarn(status.message());
    } else if (!status.ok()) {
      absl::StrAppend(&problems, status.message(), "\n");
    }
  }
  for (const absl::Status& status :
       {CheckRootsApart("--dataset_root", absl::GetFlag(FLAGS_dataset_root), "--checkpoint_root",
                        absl::GetFlag(FLAGS_checkpoint_root)),
        CheckWritableFolder("--train_offload_dir", absl::GetFlag(FLAGS_train_offload_dir))}) {
    if (!status.ok()) absl::StrAppend(&problems, status.message(), "\n");
  }
  if (const int kib = absl::GetFlag(FLAGS_train_send_buffer_kib); kib != 0 && (kib < 16 || kib > 1 << 20))
    absl::StrAppend(&problems, "--train_send_buffer_kib=", kib, ": must be 0 or within [16, 1048576]\n");
  return problems;
}

// Of a role that serves.
std::string CheckServing() {
  std::string problems;
  if (absl::GetFlag(FLAGS_model).empty())
    absl::StrAppend(&problems, "--model: missing; give the checkpoint's directory\n");
  absl::StrAppend(&problems, CheckDevice());
  if (const std::string format = absl::GetFlag(FLAGS_load_format); format != "auto" && format != "dummy")
    absl::StrAppend(&problems, "--load_format=", format, ": must be auto or dummy\n");
  absl::StrAppend(&problems, CheckExpertFlags());
  if (const absl::Status status = CheckForecastOptions(ForecastFlags()); !status.ok())
    absl::StrAppend(&problems, status.message(), "\n");
  return problems;
}

// Whatever the role does not look at.
std::string CheckForeign(absl::Span<const absl::CommandLineFlag* const> flags, absl::string_view role) {
  std::string problems;
  for (const absl::CommandLineFlag* flag : flags) {
    if (flag->CurrentValue() == flag->DefaultValue()) continue;
    absl::StrAppend(&problems, "--", flag->Name(), "=", flag->CurrentValue(), ": is for --role=", role, "\n");
  }
  return problems;
}

std::string CheckTraining() {
  // Whatever is of one model, or of a GPU.  A job says what to compute in.
  const absl::CommandLineFlag* const of_serving[] = {
      &absl::GetFlagReflectionHandle(FLAGS_model),        &absl::GetFlagReflectionHandle(FLAGS_device),
      &absl::GetFlagReflectionHandle(FLAGS_load_format),  &absl::GetFlagReflectionHandle(FLAGS_expert_budget),
      &absl::GetFlagReflectionHandle(FLAGS_cold_experts), &absl::GetFlagReflectionHandle(FLAGS_profile),
      &absl::GetFlagReflectionHandle(FLAGS_profile_out),  &absl::GetFlagReflectionHandle(FLAGS_dtype)};
  return absl::StrCat(CheckRoots(/*serves=*/false), CheckForeign(of_serving, "serve or both"));
}

}  // namespace

std::optional<WorkerRole> RoleFlag() {
  const std::string role = absl::GetFlag(FLAGS_role);
  if (role == "serve") return WorkerRole::kServe;
  if (role == "train") return WorkerRole::kTrain;
  if (role == "both") return WorkerRole::kBoth;
  return std::nullopt;
}

std::string CheckRoleFlags(WorkerRole role) {
  if (role == WorkerRole::kTrain) return CheckTraining();
  if (role == WorkerRole::kServe) {
    const absl::CommandLineFlag* const of_training[] = {&absl::GetFlagReflectionHandle(FLAGS_dataset_root),
                                                        &absl::GetFlagReflectionHandle(FLAGS_checkpoint_root),
                                                        &absl::GetFlagReflectionHandle(FLAGS_train_offload_dir),
                                                        &absl::GetFlagReflectionHandle(FLAGS_train_send_buffer_kib)};
    return absl::StrCat(CheckServing(), CheckForeign(of_training, "train or both"));
  }
  const std::string device = absl::GetFlag(FLAGS_device);
  return absl::StrCat(
      CheckServing(), CheckRoots(/*serves=*/true),
      device == "cpu" ? "" : absl::StrCat("--device=", device, ": training is on the CPU, so --role=both is\n"));
}

WorkerOptions ServingOptions() {
  WorkerOptions options;
  options.model_dir = absl::GetFlag(FLAGS_model);
  options.dtype = absl::GetFlag(FLAGS_dtype);
  options.device = *ParseDevice(absl::GetFlag(FLAGS_device));
  options.gpu_memory_fraction = absl::GetFlag(FLAGS_gpu_memory_fraction);
  options.deterministic = absl::GetFlag(FLAGS_deterministic);
  options.graphs = absl::GetFlag(FLAGS_cuda_graphs);
  options.dummy_weights = absl::GetFlag(FLAGS_load_format) == "dummy";
  options.experts = ExpertFlags();
  options.forecast = ForecastFlags();
  return options;
}

}  // namespace switchyard
