// Settings of the emulation for tests.  Process-wide; thread-safe, but meant for moments when no work runs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "cuda_emulation/runtime_api.h"

namespace cuda_emulation {

// The order in which blocks and threads run (and the nodes of a graph, as far as their dependencies let it free).  0:
// as they are numbered.  At start: the environment variable SY_CUDA_EMULATION_SEED, or 1.
void SetSeed(uint64_t seed);
uint64_t Seed();

// Work runs at once, when it is enqueued on a stream, instead of when a thread waits for it.  Hides errors of a host
// that is too early.
void SetEager(bool eager);
bool Eager();

// Bytes of each device, 4 GiB at start.
void SetMemoryCapacity(size_t bytes);
// Bytes that are allocated on the device.
size_t MemoryInUse(int device);

// Devices (8 at start, at most 64), their compute capability (9.0) and multiprocessors (132).
void SetDeviceCount(int count);
void SetComputeCapability(int major, int minor);
void SetMultiprocessorCount(int count);
// Whether devices register host memory as read-only (they do at start).
void SetRegistersReadOnly(bool value);
// What the driver runs at most, 13000 for 13.0 (at start: as new as the runtime); a major version below the runtime's
// is too old, and 0 is none.
void SetDriverVersion(int version);
// The architecture that kernels are said to be compiled for, 90 for 9.0; 0: that of the devices, as at start.
void SetPtxVersion(int version);

// The nth call (from 1, counted from here) of the function of the runtime API `call_name`, on any thread, returns
// `error` and does nothing. An error that breaks the device on a real one (illegal address, ECC ...) is returned by
// every later call for the current device. Work runs under the names "kernel", "memcpy", "memset": FailAt("kernel", 3,
// ...) fails the third kernel from now when it runs.
void FailAt(const char* call_name, int nth, cudaError_t error);

// Counts calls of the runtime API from here on, by name, on all threads; before the first CountCalls none are counted.
void CountCalls();
std::map<std::string, int64_t> CountedCalls();
// Of them, copies from the host's memory to a device's.
struct Uploads {
  int64_t copies = 0;
  int64_t bytes = 0;
};
Uploads CountedUploads();

// Restores seed, eagerness, capacity, device properties and injected errors as at start, repairs devices, and drops
// waiting work of streams.  Allocations, streams and events stay.
void Reset();

}  // namespace cuda_emulation
