// Prints what GPU is here, having used it: `NVIDIA H200, compute capability 9.0, CUDA driver 13.0, runtime 13.0`.
// Exit status: 0; 2 without a GPU; 1 if the GPU does not work.  tests/gpu/run.sh also asks with it whether
// compute-sanitizer works on this machine.
#include <cuda_runtime.h>

#include <cstdio>

namespace {

// False, with the runtime's words on stderr.
bool Worked(cudaError_t error, const char* what) {
  if (error != cudaSuccess) std::fprintf(stderr, "gpu_probe: %s: %s\n", what, cudaGetErrorString(error));
  return error == cudaSuccess;
}

}  // namespace

int main() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess || count == 0) {
    std::printf("no GPU: %s\n", error == cudaSuccess ? "the driver sees none" : cudaGetErrorString(error));
    return 2;
  }
  cudaDeviceProp properties{};
  int driver = 0;
  int runtime = 0;
  if (!Worked(cudaGetDeviceProperties(&properties, 0), "properties")) return 1;
  if (!Worked(cudaDriverGetVersion(&driver), "driver's version")) return 1;
  if (!Worked(cudaRuntimeGetVersion(&runtime), "runtime's version")) return 1;
  const int sent = 41;
  int received = 0;
  void* memory = nullptr;
  if (!Worked(cudaMalloc(&memory, sizeof(sent)), "cudaMalloc")) return 1;
  if (!Worked(cudaMemcpy(memory, &sent, sizeof(sent), cudaMemcpyHostToDevice), "copy to the device")) return 1;
  if (!Worked(cudaMemcpy(&received, memory, sizeof(sent), cudaMemcpyDeviceToHost), "copy from the device")) return 1;
  if (!Worked(cudaFree(memory), "cudaFree")) return 1;
  if (received != sent) {
    std::fprintf(stderr, "gpu_probe: %d came back as %d\n", sent, received);
    return 1;
  }
  std::printf("%s, compute capability %d.%d, CUDA driver %d.%d, runtime %d.%d\n", properties.name, properties.major,
              properties.minor, driver / 1000, driver % 1000 / 10, runtime / 1000, runtime % 1000 / 10);
  return 0;
}
