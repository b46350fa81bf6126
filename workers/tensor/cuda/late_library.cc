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

LateLibrary::LateLibrary(const char* name, std::initializer_list<const char*> functions)
    : name_(name), functions_(functions) {
  AllLibraries().push_back(this);
}

absl::Status LateLibrary::Open() {
  const std::lock_guard<std::mutex> lock(mu_);
  if (handle_ != nullptr) return absl::OkStatus();
  void* const handle = dlopen(name_, RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("a GPU needs ", name_, " in the loader's folders or LD_LIBRARY_PATH: ", dlerror()));
  }
  for (const char* const function : functions_) {
    if (dlsym(handle, function) != nullptr) continue;
    dlclose(handle);
    return absl::FailedPreconditionError(absl::StrCat("a GPU needs a newer ", name_, ": it has no ", function));
  }
  handle_ = handle;
  return absl::OkStatus();
}

void* LateLibrary::FindAddress(const char* function) {
  SY_CHECK_OK(Open());  // a device's description has said so before
  void* const address = dlsym(handle_, function);
  SY_CHECK(address != nullptr);
  return address;
}

absl::Status OpenLateLibraries() {
  for (LateLibrary* const library : AllLibraries()) RETURN_IF_ERROR(library->Open());
  return absl::OkStatus();
}

}  // namespace switchyard
