#include "tests/cuda_emulation/devices.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "cuda_emulation/runtime_api.h"
#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/errors.h"
#include "tests/cuda_emulation/streams.h"

namespace cuda_emulation {
namespace {

constexpr size_t kDefaultCapacity = size_t{4} << 30;

uint64_t SeedAtStart() {
  const char* text = std::getenv("SY_CUDA_EMULATION_SEED");
  return text == nullptr ? 1 : std::strtoull(text, nullptr, 10);
}

std::atomic<uint64_t> seed{SeedAtStart()};
std::atomic<bool> eager{false};
std::atomic<size_t> capacity{kDefaultCapacity};
std::atomic<int> count{8}, capability{90}, multiprocessors{132}, ptx_version{0}, driver_version{CUDART_VERSION};
std::atomic<bool> registers_read_only{true};
thread_local int current_device = 0;

int AttributeValue(cudaDeviceAttr attribute) {
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return 1024;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxGridDimX:
      return 0x7FFFFFFF;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 48 << 10;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrMaxRegistersPerBlock:
      return 65536;
    case cudaDevAttrClockRate:
      return 1980000;
    case cudaDevAttrMultiProcessorCount:
      return Multiprocessors();
    case cudaDevAttrConcurrentKernels:
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrStreamPrioritiesSupported:
      return 1;
    case cudaDevAttrMemoryClockRate:
      return 2619000;
    case cudaDevAttrGlobalMemoryBusWidth:
      return 5120;
    case cudaDevAttrL2CacheSize:
      return 50 << 20;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return 2048;
    case cudaDevAttrAsyncEngineCount:
      return 3;
    case cudaDevAttrComputeCapabilityMajor:
      return ComputeCapability() / 10;
    case cudaDevAttrComputeCapabilityMinor:
      return ComputeCapability() % 10;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return static_cast<int>(MaxSharedBytesPerBlock()) + 1024;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return static_cast<int>(MaxSharedBytesPerBlock());
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return 32;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return 1024;
    case cudaDevAttrHostRegisterReadOnlySupported:
      return registers_read_only ? 1 : 0;
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrMemoryPoolsSupported:
      return 0;
  }
  return -1;
}

bool IsDevice(int device) { return device >= 0 && device < DeviceCount(); }

}  // namespace

void SetSeed(uint64_t value) { seed = value; }
uint64_t Seed() { return seed; }
void SetEager(bool value) { eager = value; }
bool Eager() { return eager; }
void SetMemoryCapacity(size_t bytes) { capacity = bytes; }
void SetDeviceCount(int value) { count = std::clamp(value, 0, kMaxDevices); }
void SetComputeCapability(int major, int minor) { capability = major * 10 + minor; }
void SetMultiprocessorCount(int value) { multiprocessors = value; }
void SetPtxVersion(int version) { ptx_version = version; }
void SetRegistersReadOnly(bool value) { registers_read_only = value; }
void SetDriverVersion(int version) { driver_version = version; }

void Reset() {
  seed = SeedAtStart();
  eager = false;
  capacity = kDefaultCapacity;
  count = 8;
  capability = 90;
  multiprocessors = 132;
  ptx_version = 0;
  registers_read_only = true;
  driver_version = CUDART_VERSION;
  DropPendingWork();
  ResetErrors();
}

int CurrentDevice() { return current_device; }
int DeviceCount() { return count; }
int ComputeCapability() { return capability; }
int Multiprocessors() { return multiprocessors; }
int PtxVersion() { return ptx_version != 0 ? ptx_version.load() : ComputeCapability(); }

bool RegistersReadOnly() { return registers_read_only; }

size_t MaxSharedBytesPerBlock() {
  switch (ComputeCapability()) {
    case 80:
    case 87:
      return 166912;  // 163 KB
    case 86:
    case 89:
    case 120:
      return 101376;  // 99 KB
    default:
      return 232448;  // 227 KB
  }
}

size_t MemoryCapacity() { return capacity; }

}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaGetDeviceCount(int* result) {
  if (const cudaError_t error = InjectedError("cudaGetDeviceCount"); error != cudaSuccess) return Leave(error);
  if (driver_version / 1000 < CUDART_VERSION / 1000) return Leave(cudaErrorInsufficientDriver);
  *result = DeviceCount();
  return *result == 0 ? Leave(cudaErrorNoDevice) : cudaSuccess;
}

cudaError_t cudaSetDevice(int device) {
  if (const cudaError_t error = InjectedError("cudaSetDevice"); error != cudaSuccess) return Leave(error);
  if (!IsDevice(device)) return Leave(cudaErrorInvalidDevice);
  current_device = device;
  return cudaSuccess;
}

cudaError_t cudaGetDevice(int* device) {
  *device = current_device;
  return cudaSuccess;
}

cudaError_t cudaSetDeviceFlags(unsigned) { return Enter("cudaSetDeviceFlags"); }

cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (const cudaError_t error = Enter("cudaGetDeviceProperties"); error != cudaSuccess) return error;
  if (!IsDevice(device)) return Leave(cudaErrorInvalidDevice);
  cudaDeviceProp p{};
  std::strncpy(p.name, "CUDA emulation", sizeof p.name - 1);
  p.uuid.bytes[15] = static_cast<char>(device + 1);
  p.totalGlobalMem = MemoryCapacity();
  p.sharedMemPerBlock = 48 << 10;
  p.regsPerBlock = p.regsPerMultiprocessor = 65536;
  p.warpSize = 32;
  p.maxThreadsPerBlock = p.maxThreadsDim[0] = p.maxThreadsDim[1] = 1024;
  p.maxThreadsDim[2] = 64;
  p.maxGridSize[0] = 0x7FFFFFFF;
  p.maxGridSize[1] = p.maxGridSize[2] = 65535;
  p.major = ComputeCapability() / 10;
  p.minor = ComputeCapability() % 10;
  p.multiProcessorCount = Multiprocessors();
  p.concurrentKernels = p.ECCEnabled = p.unifiedAddressing = p.streamPrioritiesSupported = 1;
  p.pciBusID = device + 1;
  p.asyncEngineCount = 3;
  p.memoryBusWidth = 5120;
  p.l2CacheSize = 50 << 20;
  p.maxThreadsPerMultiProcessor = 2048;
  p.sharedMemPerMultiprocessor = MaxSharedBytesPerBlock() + 1024;
  p.sharedMemPerBlockOptin = MaxSharedBytesPerBlock();
  p.maxBlocksPerMultiProcessor = 32;
  p.reservedSharedMemPerBlock = 1024;
  *properties = p;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  if (const cudaError_t error = Enter("cudaDeviceGetAttribute"); error != cudaSuccess) return error;
  if (!IsDevice(device)) return Leave(cudaErrorInvalidDevice);
  const int result = AttributeValue(attribute);
  if (result < 0) return Leave(cudaErrorInvalidValue);
  *value = result;
  return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
  if (const cudaError_t error = Enter("cudaDeviceGetPCIBusId"); error != cudaSuccess) return error;
  if (!IsDevice(device)) return Leave(cudaErrorInvalidDevice);
  if (length < 13) return Leave(cudaErrorInvalidValue);
  std::snprintf(id, static_cast<size_t>(length), "0000:%02X:00.0", static_cast<unsigned>(device + 1) & 0xFF);
  return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  if (const cudaError_t error = Enter("cudaDeviceGetStreamPriorityRange"); error != cudaSuccess) return error;
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return cudaSuccess;
}

cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
  if (const cudaError_t error = Enter("cudaDeviceCanAccessPeer"); error != cudaSuccess) return error;
  if (!IsDevice(device) || !IsDevice(peer)) return Leave(cudaErrorInvalidDevice);
  *can = device != peer;
  return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned flags) {
  if (const cudaError_t error = Enter("cudaDeviceEnablePeerAccess"); error != cudaSuccess) return error;
  if (flags != 0) return Leave(cudaErrorInvalidValue);
  return Leave(IsDevice(peer) && peer != current_device ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDeviceDisablePeerAccess(int peer) {
  if (const cudaError_t error = Enter("cudaDeviceDisablePeerAccess"); error != cudaSuccess) return error;
  return Leave(IsDevice(peer) ? cudaSuccess : cudaErrorInvalidDevice);
}

cudaError_t cudaDriverGetVersion(int* version) {
  *version = driver_version;
  return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}
