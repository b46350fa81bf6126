// The pretended devices, and the settings of control.h.
#pragma once

#include <cstddef>

namespace cuda_emulation {

inline constexpr int kMaxDevices = 64;

int CurrentDevice();  // of the calling OS thread
int DeviceCount();
int ComputeCapability();  // 90 for 9.0
int Multiprocessors();
int PtxVersion();                 // 90: kernels are compiled for 9.0
size_t MaxSharedBytesPerBlock();  // with cudaFuncSetAttribute
size_t MemoryCapacity();
bool RegistersReadOnly();

}  // namespace cuda_emulation
