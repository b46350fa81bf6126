#include "workers/tensor/cuda/cuda_backend.h"

#include <cuda_runtime.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "scheduler/base/clock.h"
#include "scheduler/base/status_macros.h"
#include "workers/tensor/cuda/cuda_events.h"
#include "workers/tensor/cuda/cuda_status.h"
#include "workers/tensor/cuda/late_library.h"
#include "workers/tensor/tensor.h"

namespace switchyard {
namespace {

cudaStream_t StreamOf(void* handle) { return static_cast<cudaStream_t>(handle); }

class CudaEvent : public DeviceEvent {
 public:
  explicit CudaEvent(CudaEvents::Event event) : event_(std::move(event)) {}

  absl::StatusOr<bool> Passed() override {
    const cudaError_t error = cudaEventQuery(event_.get());
    if (error == cudaErrorNotReady) return false;
    RETURN_IF_ERROR(CudaStatus("cudaEventQuery", error));
    return true;
  }
  cudaEvent_t get() const { return event_.get(); }

 private:
  const CudaEvents::Event event_;
};

class CudaGraph : public DeviceGraph {
 public:
  explicit CudaGraph(cudaGraphExec_t exec) : exec_(exec) {}
  ~CudaGraph() override { cudaGraphExecDestroy(exec_); }
  cudaGraphExec_t get() const { return exec_; }

 private:
  cudaGraphExec_t exec_;
};

class CudaQueue : public DeviceQueue {
 public:
  CudaQueue(int index, cudaStream_t stream, cudaEvent_t done, int multiprocessors, const DeviceQueueOptions& options)
      : DeviceQueue(Device::Cuda(index), stream, multiprocessors, options), done_(done) {}

  ~CudaQueue() override {
    (void)UseDevice();
    // Work under way may still read the workspace.
    cudaStreamSynchronize(StreamOf(handle()));
    cudaEventDestroy(done_);
    cudaStreamDestroy(StreamOf(handle()));
  }

  absl::StatusOr<void*> Workspace(int64_t bytes) override {
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    if (bytes > workspace_.bytes()) {
      if (recording_) return absl::InternalError("a graph is being recorded: its workspace must be there before");
      ASSIGN_OR_RETURN(workspace_, Buffer::Allocate(bytes, device()));
    }
    return workspace_.data();
  }

  absl::Status Copy(void* to, const void* from, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    SY_RETURN_IF_CUDA_ERROR(
        cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault, StreamOf(handle())));
    return absl::OkStatus();
  }

  absl::Status Fill(void* to, uint8_t value, int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    SY_RETURN_IF_CUDA_ERROR(cudaMemsetAsync(to, value, static_cast<size_t>(bytes), StreamOf(handle())));
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DeviceEvent>> Record() override {
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    ASSIGN_OR_RETURN(CudaEvents::Event event, CudaEvents::Record(events_, StreamOf(handle())));
    return std::make_unique<CudaEvent>(std::move(event));
  }

  absl::Status WaitFor(const DeviceEvent& event) override {
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    SY_RETURN_IF_CUDA_ERROR(cudaStreamWaitEvent(StreamOf(handle()), static_cast<const CudaEvent&>(event).get(), 0));
    return absl::OkStatus();
  }

  absl::Status Synchronize(absl::Time deadline) override {
    if (recording_) return absl::InternalError("a graph is being recorded: nothing can be waited for");
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    if (deadline == absl::InfiniteFuture()) {
      SY_RETURN_IF_CUDA_ERROR(cudaStreamSynchronize(StreamOf(handle())));
      return absl::OkStatus();
    }
    SY_RETURN_IF_CUDA_ERROR(cudaEventRecord(done_, StreamOf(handle())));
    return Poll(done_, deadline);
  }

  absl::Status WaitOnHost(DeviceEvent& event, absl::Time deadline) override {
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    return Poll(static_cast<CudaEvent&>(event).get(), deadline);
  }

  // A lost context answers every call with the error that lost it.
  bool IsLost() override {
    if (recording_) return false;
    const cudaError_t used = UseDevice();
    return CudaDeviceLost(used == cudaSuccess ? cudaStreamQuery(StreamOf(handle())) : used);
  }

  absl::Status BeginRecording() override {
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    SY_RETURN_IF_CUDA_ERROR(cudaStreamBeginCapture(StreamOf(handle()), cudaStreamCaptureModeThreadLocal));
    recording_ = true;
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DeviceGraph>> EndRecording() override {
    recording_ = false;
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    absl::Status status = CudaStatus("cudaStreamEndCapture", cudaStreamEndCapture(StreamOf(handle()), &graph));
    if (status.ok()) status = CudaStatus("cudaGraphInstantiate", cudaGraphInstantiate(&exec, graph, 0));
    if (graph != nullptr) cudaGraphDestroy(graph);
    auto made = exec == nullptr ? nullptr : std::make_unique<CudaGraph>(exec);
    // Its runs' memory is taken now, so that none of them finds too little.
    if (status.ok()) status = CudaStatus("cudaGraphUpload", cudaGraphUpload(exec, StreamOf(handle())));
    if (status.ok()) return made;
    cudaGetLastError();  // not sticky
    return status;
  }

  absl::Status Run(DeviceGraph* graph) override {
    SY_RETURN_IF_CUDA_ERROR(UseDevice());
    SY_RETURN_IF_CUDA_ERROR(cudaGraphLaunch(static_cast<CudaGraph*>(graph)->get(), StreamOf(handle())));
    return absl::OkStatus();
  }

 private:
  // The runtime's calls concern the calling thread's device, which is 0 until the thread sets it.
  cudaError_t UseDevice() const { return cudaSetDevice(device().index); }

  // The runtime's own wait has no deadline, and a device may wait for ever for a lost peer.
  absl::Status Poll(cudaEvent_t event, absl::Time deadline) const {
    // A step takes milliseconds: polling without a pause adds no latency, sleeping would.
    constexpr int kSpins = 20000;
    const absl::Time begin = MonotonicNow();
    for (int i = 0;; ++i) {
      const cudaError_t error = cudaEventQuery(event);
      if (error != cudaErrorNotReady) return CudaStatus("cudaEventQuery", error);
      if (i < kSpins) continue;
      if (MonotonicNow() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(device().ToString(), ": its work was not done at the deadline, ",
                         absl::FormatDuration(MonotonicNow() - begin), " after the wait began"));
      }
      absl::SleepFor(absl::Microseconds(50));
    }
  }

  const cudaEvent_t done_;
  const std::shared_ptr<CudaEvents> events_ = std::make_shared<CudaEvents>();  // shared with the events
  Buffer workspace_;
  bool recording_ = false;
};

// A CUDA stream as a queue.
absl::StatusOr<std::unique_ptr<DeviceQueue>> NewCudaQueue(int device_index, const DeviceQueueOptions& options) {
  SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(device_index));
  int multiprocessors = 0, lowest = 0, highest = 0;
  SY_RETURN_IF_CUDA_ERROR(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device_index));
  SY_RETURN_IF_CUDA_ERROR(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  cudaStream_t stream = nullptr;
  SY_RETURN_IF_CUDA_ERROR(
      cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, options.high_priority ? highest : lowest));
  cudaEvent_t done = nullptr;
  if (const cudaError_t error = cudaEventCreateWithFlags(&done, cudaEventDisableTiming); error != cudaSuccess) {
    cudaStreamDestroy(stream);
    return CudaStatus("cudaEventCreateWithFlags", error);
  }
  return std::make_unique<CudaQueue>(device_index, stream, done, multiprocessors, options);
}

class RegisteredMemory : public HostPin {
 public:
  RegisteredMemory(void* memory, bool read_only) : memory_(memory), read_only_(read_only) {}
  ~RegisteredMemory() override { cudaHostUnregister(memory_); }
  bool read_only() const override { return read_only_; }

 private:
  void* const memory_;
  const bool read_only_;
};

// 12040 = 12.4
std::string VersionText(int version) { return absl::StrCat(version / 1000, ".", version % 1000 / 10); }

// Why there are no devices, after cudaGetDeviceCount's error.
absl::Status NoDevices(int index, cudaError_t error) {
  const std::string none = absl::StrCat("no device cuda:", index, ": ");
  int driver = 0, runtime = 0;
  (void)cudaDriverGetVersion(&driver);
  (void)cudaRuntimeGetVersion(&runtime);
  cudaGetLastError();
  // Without any driver the runtime says the same, and that the driver's version is 0.
  if (error != cudaErrorInsufficientDriver || driver == 0) {
    return absl::NotFoundError(absl::StrCat(none, "0 found (is the driver installed?)"));
  }
  return absl::FailedPreconditionError(absl::StrCat(
      none, "the driver is too old: it runs CUDA ", VersionText(driver), ", this program was built with CUDA ",
      VersionText(runtime), "; update the driver",
      driver / 1000 == 12 && runtime / 1000 > 12 ? ", or build with deploy/install-deps.sh --cuda=12" : ""));
}

class Backend : public DeviceBackend {
 public:
  int NumDevices() override {
    int count = 0;
    return CountDevices(&count) == cudaSuccess ? count : 0;
  }

  absl::StatusOr<DeviceDescription> Describe(int index) override {
    int count = 0;
    if (const cudaError_t error = CountDevices(&count); error != cudaSuccess) return NoDevices(index, error);
    if (index < 0 || index >= count) {
      return absl::NotFoundError(absl::StrCat("no device cuda:", index, ": ", count, " found"));
    }
    RETURN_IF_ERROR(OpenLateLibraries());
    cudaDeviceProp properties;
    SY_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, index));
    size_t free_bytes = 0, total_bytes = 0;
    SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(index));
    SY_RETURN_IF_CUDA_ERROR(cudaMemGetInfo(&free_bytes, &total_bytes));
    DeviceDescription description;
    description.name = properties.name;
    description.capability = absl::StrCat(properties.major, ".", properties.minor);
    description.total_bytes = static_cast<int64_t>(total_bytes);
    description.free_bytes = static_cast<int64_t>(free_bytes);
    return description;
  }

  absl::StatusOr<void*> Allocate(int index, int64_t bytes) override {
    SY_RETURN_IF_CUDA_ERROR(cudaSetDevice(index));
    void* memory = nullptr;
    const cudaError_t error = cudaMalloc(&memory, static_cast<size_t>(bytes));
    if (error != cudaErrorMemoryAllocation) {
      RETURN_IF_ERROR(CudaStatus("cudaMalloc", error));
      return memory;
    }
    cudaGetLastError();  // not sticky
    size_t free_bytes = 0, total_bytes = 0;
    cudaMemGetInfo(&free_bytes, &total_bytes);
    return absl::ResourceExhaustedError(absl::StrCat("cuda:", index, ": out of memory: needed ", bytes,
                                                     " bytes, available ", free_bytes, " of ", total_bytes));
  }

  void Free(int index, void* memory) override {
    cudaSetDevice(index);
    cudaFree(memory);
  }

  absl::StatusOr<void*> AllocatePinned(int64_t bytes) override {
    void* memory = nullptr;
    const cudaError_t error = cudaHostAlloc(&memory, static_cast<size_t>(bytes), cudaHostAllocPortable);
    if (error == cudaErrorMemoryAllocation) {
      cudaGetLastError();
      return absl::ResourceExhaustedError(absl::StrCat("no ", bytes, " bytes of pinned host memory"));
    }
    RETURN_IF_ERROR(CudaStatus("cudaHostAlloc", error));
    return memory;
  }

  void FreePinned(void* memory) override { cudaFreeHost(memory); }

  absl::StatusOr<std::unique_ptr<HostPin>> Pin(int index, void* memory, int64_t bytes) override {
    int can_read_only = 0;
    if (cudaDeviceGetAttribute(&can_read_only, cudaDevAttrHostRegisterReadOnlySupported, index) != cudaSuccess) {
      cudaGetLastError();
    }
    cudaError_t error = cudaSuccess;
    for (const bool read_only : {true, false}) {
      if (read_only && can_read_only == 0) continue;
      unsigned flags = cudaHostRegisterPortable;
      if (read_only) flags |= cudaHostRegisterReadOnly;
      error = cudaHostRegister(memory, static_cast<size_t>(bytes), flags);
      if (error == cudaSuccess) return std::make_unique<RegisteredMemory>(memory, read_only);
      cudaGetLastError();  // not sticky
    }
    return CudaStatus("cudaHostRegister", error);
  }

  absl::StatusOr<std::unique_ptr<DeviceQueue>> NewQueue(int index, const DeviceQueueOptions& options) override {
    return NewCudaQueue(index, options);
  }

 private:
  static cudaError_t CountDevices(int* count) {
    const cudaError_t error = cudaGetDeviceCount(count);
    if (error != cudaSuccess) cudaGetLastError();  // not sticky
    return error;
  }
};

}  // namespace

DeviceBackend* CudaBackend() {
  static Backend* const backend = new Backend;  // until the process ends, as tensors may be destroyed after statics
  return backend;
}

}  // namespace switchyard
