// Shared libraries that are opened when a device is, not when the program starts: a worker on CPUs neither needs CUDA's
// nor holds their memory (cuBLASLt's tables alone are 84 MB a process).
//
// A file of each library (cublaslt_cuda.cc, nccl_late.cc) defines the functions that are called, under their own names,
// and passes each call on.  Thread-safe, once main has begun.
#pragma once

#include <initializer_list>
#include <mutex>
#include <vector>

#include "absl/status/status.h"

namespace switchyard {

class LateLibrary {
 public:
  // name: as the loader takes it, "libnccl.so.2"; functions: that are called.  For objects of static storage:
  // OpenLateLibraries opens all of them.
  LateLibrary(const char* name, std::initializer_list<const char*> functions);

  // FailedPrecondition: the loader does not find it, or it lacks a function.
  absl::Status Open();

  // One of the functions.  Ends the process where Open would fail.
  template <typename Function>
  Function* Find(const char* function) {
    return reinterpret_cast<Function*>(FindAddress(function));
  }

 private:
  void* FindAddress(const char* function);

  const char* const name_;
  const std::vector<const char*> functions_;
  std::mutex mu_;
  void* handle_ = nullptr;  // stays open
};

// Opens all that this program may call.  Errors: LateLibrary::Open's, of the first that has one.
absl::Status OpenLateLibraries();

}  // namespace switchyard

// The body of a function that a LateLibrary has.
#define SY_CALL_LATE(library, function, ...)                                               \
  static decltype(&(function)) const late = (library).Find<decltype(function)>(#function); \
  return late(__VA_ARGS__)
