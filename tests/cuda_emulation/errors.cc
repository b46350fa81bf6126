#include "tests/cuda_emulation/errors.h"

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/devices.h"

namespace cuda_emulation {
namespace {

struct ErrorName {
  cudaError_t error;
  const char* name;
};
constexpr ErrorName kNames[] = {
    {cudaSuccess, "cudaSuccess"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation"},
    {cudaErrorInitializationError, "cudaErrorInitializationError"},
    {cudaErrorCudartUnloading, "cudaErrorCudartUnloading"},
    {cudaErrorInvalidConfiguration, "cudaErrorInvalidConfiguration"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue"},
    {cudaErrorInvalidSymbol, "cudaErrorInvalidSymbol"},
    {cudaErrorInvalidHostPointer, "cudaErrorInvalidHostPointer"},
    {cudaErrorInvalidDevicePointer, "cudaErrorInvalidDevicePointer"},
    {cudaErrorInvalidChannelDescriptor, "cudaErrorInvalidChannelDescriptor"},
    {cudaErrorInvalidMemcpyDirection, "cudaErrorInvalidMemcpyDirection"},
    {cudaErrorAddressOfConstant, "cudaErrorAddressOfConstant"},
    {cudaErrorMixedDeviceExecution, "cudaErrorMixedDeviceExecution"},
    {cudaErrorNotYetImplemented, "cudaErrorNotYetImplemented"},
    {cudaErrorMemoryValueTooLarge, "cudaErrorMemoryValueTooLarge"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver"},
    {cudaErrorCallRequiresNewerDriver, "cudaErrorCallRequiresNewerDriver"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable"},
    {cudaErrorIncompatibleDriverContext, "cudaErrorIncompatibleDriverContext"},
    {cudaErrorMissingConfiguration, "cudaErrorMissingConfiguration"},
    {cudaErrorPriorLaunchFailure, "cudaErrorPriorLaunchFailure"},
    {cudaErrorLaunchMaxDepthExceeded, "cudaErrorLaunchMaxDepthExceeded"},
    {cudaErrorLaunchFileScopedTex, "cudaErrorLaunchFileScopedTex"},
    {cudaErrorLaunchFileScopedSurf, "cudaErrorLaunchFileScopedSurf"},
    {cudaErrorLaunchPendingCountExceeded, "cudaErrorLaunchPendingCountExceeded"},
    {cudaErrorInvalidDeviceFunction, "cudaErrorInvalidDeviceFunction"},
    {cudaErrorNoDevice, "cudaErrorNoDevice"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice"},
    {cudaErrorDeviceNotLicensed, "cudaErrorDeviceNotLicensed"},
    {cudaErrorSoftwareValidityNotEstablished, "cudaErrorSoftwareValidityNotEstablished"},
    {cudaErrorStartupFailure, "cudaErrorStartupFailure"},
    {cudaErrorInvalidKernelImage, "cudaErrorInvalidKernelImage"},
    {cudaErrorDeviceUninitialized, "cudaErrorDeviceUninitialized"},
    {cudaErrorUnmapBufferObjectFailed, "cudaErrorUnmapBufferObjectFailed"},
    {cudaErrorNoKernelImageForDevice, "cudaErrorNoKernelImageForDevice"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable"},
    {cudaErrorUnsupportedLimit, "cudaErrorUnsupportedLimit"},
    {cudaErrorDeviceAlreadyInUse, "cudaErrorDeviceAlreadyInUse"},
    {cudaErrorPeerAccessUnsupported, "cudaErrorPeerAccessUnsupported"},
    {cudaErrorInvalidPtx, "cudaErrorInvalidPtx"},
    {cudaErrorNvlinkUncorrectable, "cudaErrorNvlinkUncorrectable"},
    {cudaErrorUnsupportedPtxVersion, "cudaErrorUnsupportedPtxVersion"},
    {cudaErrorUnsupportedExecAffinity, "cudaErrorUnsupportedExecAffinity"},
    {cudaErrorContained, "cudaErrorContained"},
    {cudaErrorInvalidSource, "cudaErrorInvalidSource"},
    {cudaErrorFileNotFound, "cudaErrorFileNotFound"},
    {cudaErrorSharedObjectSymbolNotFound, "cudaErrorSharedObjectSymbolNotFound"},
    {cudaErrorSharedObjectInitFailed, "cudaErrorSharedObjectInitFailed"},
    {cudaErrorOperatingSystem, "cudaErrorOperatingSystem"},
    {cudaErrorInvalidResourceHandle, "cudaErrorInvalidResourceHandle"},
    {cudaErrorIllegalState, "cudaErrorIllegalState"},
    {cudaErrorLossyQuery, "cudaErrorLossyQuery"},
    {cudaErrorSymbolNotFound, "cudaErrorSymbolNotFound"},
    {cudaErrorNotReady, "cudaErrorNotReady"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress"},
    {cudaErrorLaunchOutOfResources, "cudaErrorLaunchOutOfResources"},
    {cudaErrorLaunchTimeout, "cudaErrorLaunchTimeout"},
    {cudaErrorLaunchIncompatibleTexturing, "cudaErrorLaunchIncompatibleTexturing"},
    {cudaErrorPeerAccessAlreadyEnabled, "cudaErrorPeerAccessAlreadyEnabled"},
    {cudaErrorPeerAccessNotEnabled, "cudaErrorPeerAccessNotEnabled"},
    {cudaErrorSetOnActiveProcess, "cudaErrorSetOnActiveProcess"},
    {cudaErrorContextIsDestroyed, "cudaErrorContextIsDestroyed"},
    {cudaErrorAssert, "cudaErrorAssert"},
    {cudaErrorTooManyPeers, "cudaErrorTooManyPeers"},
    {cudaErrorHostMemoryAlreadyRegistered, "cudaErrorHostMemoryAlreadyRegistered"},
    {cudaErrorHostMemoryNotRegistered, "cudaErrorHostMemoryNotRegistered"},
    {cudaErrorHardwareStackError, "cudaErrorHardwareStackError"},
    {cudaErrorIllegalInstruction, "cudaErrorIllegalInstruction"},
    {cudaErrorMisalignedAddress, "cudaErrorMisalignedAddress"},
    {cudaErrorInvalidAddressSpace, "cudaErrorInvalidAddressSpace"},
    {cudaErrorInvalidPc, "cudaErrorInvalidPc"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure"},
    {cudaErrorCooperativeLaunchTooLarge, "cudaErrorCooperativeLaunchTooLarge"},
    {cudaErrorTensorMemoryLeak, "cudaErrorTensorMemoryLeak"},
    {cudaErrorNotPermitted, "cudaErrorNotPermitted"},
    {cudaErrorNotSupported, "cudaErrorNotSupported"},
    {cudaErrorSystemNotReady, "cudaErrorSystemNotReady"},
    {cudaErrorSystemDriverMismatch, "cudaErrorSystemDriverMismatch"},
    {cudaErrorMpsClientTerminated, "cudaErrorMpsClientTerminated"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated"},
    {cudaErrorStreamCaptureMerge, "cudaErrorStreamCaptureMerge"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation"},
    {cudaErrorStreamCaptureImplicit, "cudaErrorStreamCaptureImplicit"},
    {cudaErrorCapturedEvent, "cudaErrorCapturedEvent"},
    {cudaErrorStreamCaptureWrongThread, "cudaErrorStreamCaptureWrongThread"},
    {cudaErrorTimeout, "cudaErrorTimeout"},
    {cudaErrorGraphExecUpdateFailure, "cudaErrorGraphExecUpdateFailure"},
    {cudaErrorExternalDevice, "cudaErrorExternalDevice"},
    {cudaErrorInvalidClusterSize, "cudaErrorInvalidClusterSize"},
    {cudaErrorFunctionNotLoaded, "cudaErrorFunctionNotLoaded"},
    {cudaErrorInvalidResourceType, "cudaErrorInvalidResourceType"},
    {cudaErrorInvalidResourceConfiguration, "cudaErrorInvalidResourceConfiguration"},
    {cudaErrorUnknown, "cudaErrorUnknown"},
};

struct Injection {
  int calls_left;
  cudaError_t error;
};
std::mutex mu;
std::map<std::string, std::vector<Injection>, std::less<>> injections;
std::atomic<bool> any_injection{false};
std::atomic<bool> counting{false};
std::map<std::string, int64_t, std::less<>> counted;
Uploads uploads;
std::atomic<int> broken[kMaxDevices];
thread_local cudaError_t last_error = cudaSuccess;
thread_local bool in_host_function = false;

std::string Words(const std::string& name) {
  std::string words;
  for (char c : name.substr(std::string("cudaError").size())) {
    if (c >= 'A' && c <= 'Z') {
      if (!words.empty()) words += ' ';
      words += static_cast<char>(c - 'A' + 'a');
    } else {
      words += c;
    }
  }
  return words;
}

const std::map<int, std::string>& Texts() {
  static const std::map<int, std::string> texts = [] {
    std::map<int, std::string> all;
    for (const ErrorName& entry : kNames) {
      all[entry.error] = entry.error == cudaSuccess ? "no error" : Words(entry.name);
    }
    all[cudaErrorMemoryAllocation] = "out of memory";
    return all;
  }();
  return texts;
}

}  // namespace

cudaError_t InjectedError(const char* name) {
  if (!any_injection.load()) return cudaSuccess;
  std::lock_guard lock(mu);
  const auto found = injections.find(name);
  if (found == injections.end()) return cudaSuccess;
  cudaError_t error = cudaSuccess;
  for (Injection& injection : found->second) {
    if (--injection.calls_left == 0) error = injection.error;
  }
  return error;
}

void FailAt(const char* call_name, int nth, cudaError_t error) {
  std::lock_guard lock(mu);
  injections[call_name].push_back({nth, error});
  any_injection = true;
}

void CountCalls() {
  std::lock_guard lock(mu);
  counted.clear();
  uploads = {};
  counting = true;
}

void CountUpload(size_t bytes) {
  if (!counting.load()) return;
  std::lock_guard lock(mu);
  ++uploads.copies;
  uploads.bytes += static_cast<int64_t>(bytes);
}

Uploads CountedUploads() {
  std::lock_guard lock(mu);
  return uploads;
}

std::map<std::string, int64_t> CountedCalls() {
  std::lock_guard lock(mu);
  return {counted.begin(), counted.end()};
}

cudaError_t Enter(const char* call_name) {
  if (counting.load()) {
    std::lock_guard lock(mu);
    const auto found = counted.find(std::string_view(call_name));
    ++(found != counted.end() ? found->second : counted[call_name]);
  }
  if (in_host_function) return Leave(cudaErrorNotPermitted);
  if (const cudaError_t error = InjectedError(call_name); error != cudaSuccess) return Leave(error);
  return Leave(DeviceError(CurrentDevice()));
}

cudaError_t Leave(cudaError_t error) {
  if (error == cudaSuccess) return error;
  last_error = error;
  if (IsSticky(error)) BreakDevice(CurrentDevice(), error);
  return error;
}

bool IsSticky(cudaError_t error) {
  return error == cudaErrorECCUncorrectable || error == cudaErrorNvlinkUncorrectable ||
         (error >= cudaErrorIllegalAddress && error <= cudaErrorLaunchTimeout &&
          error != cudaErrorLaunchOutOfResources) ||
         (error >= cudaErrorHardwareStackError && error <= cudaErrorLaunchFailure) || error == cudaErrorAssert ||
         error == cudaErrorContained || error == cudaErrorTensorMemoryLeak || error == cudaErrorMpsClientTerminated ||
         error == cudaErrorExternalDevice || error == cudaErrorUnknown;
}

void BreakDevice(int device, cudaError_t error) {
  int none = cudaSuccess;
  broken[device].compare_exchange_strong(none, error);
}

cudaError_t DeviceError(int device) { return static_cast<cudaError_t>(broken[device].load()); }

void RunHostFunction(const std::function<void()>& function) {
  in_host_function = true;
  function();
  in_host_function = false;
}

void ResetErrors() {
  std::lock_guard lock(mu);
  injections.clear();
  any_injection = false;
  for (auto& error : broken) error = cudaSuccess;
  last_error = cudaSuccess;
}

void ResetDevice(int device) { broken[device] = cudaSuccess; }

}  // namespace cuda_emulation

using cuda_emulation::Texts;

const char* cudaGetErrorName(cudaError_t error) {
  for (const auto& entry : cuda_emulation::kNames) {
    if (entry.error == error) return entry.name;
  }
  return "unrecognized error code";
}

const char* cudaGetErrorString(cudaError_t error) {
  const auto found = Texts().find(error);
  return found == Texts().end() ? "unrecognized error code" : found->second.c_str();
}

// A broken device returns its error again and again.
cudaError_t cudaGetLastError() {
  const cudaError_t error = cudaPeekAtLastError();
  cuda_emulation::last_error = cudaSuccess;
  return error;
}

cudaError_t cudaPeekAtLastError() {
  const cudaError_t sticky = cuda_emulation::DeviceError(cuda_emulation::CurrentDevice());
  return sticky != cudaSuccess ? sticky : cuda_emulation::last_error;
}
