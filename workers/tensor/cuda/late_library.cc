#include "workers/tensor/cuda/late_library.h"

#include <dlfcn.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "scheduler/base/check.h"
#include "scheduler/base/status_macros.h"

namespace switchyard {
namespace {

std::vector<LateLibrary*>& AllLibraries() {
  static auto* const all = new std::vector<LateLibrary*>();
  return *all;
}

}  // namespace

LateLibrary::LateLibrary(const char* name) : name_(name) { AllLibraries().push_back(this); }

absl::Status LateLibrary::Open() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (handle_ != nullptr) return absl::OkStatus();
  handle_ = dlopen(name_, RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("GPUs need ", name_, ": ", dlerror()));
}

void* LateLibrary::FindAddress(const char* function) {
  SY_CHECK_OK(Open());  // a device's description has said so before
  void* const address = dlsym(handle_, function);
  if (address == nullptr) SY_CHECK_OK(absl::NotFoundError(absl::StrCat(name_, " has no ", function)));
  return address;
}

absl::Status OpenLateLibraries() {
  for (LateLibrary* const library : AllLibraries()) RETURN_IF_ERROR(library->Open());
  return absl::OkStatus();
}

}  // namespace switchyard
