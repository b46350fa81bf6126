#include "tests/cuda_emulation/streams.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <set>

#include "tests/cuda_emulation/capture.h"
#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/errors.h"

namespace cuda_emulation {
namespace {

constexpr std::chrono::milliseconds kRest{2};
constexpr std::chrono::minutes kPatience{2};

std::mutex registry_mu;
std::map<const Stream*, std::shared_ptr<Stream>> registry;
std::map<int, std::shared_ptr<Stream>> legacy_streams;

std::mutex progress_mu;
std::condition_variable progress_cv;
uint64_t progress = 0;

thread_local std::map<int, std::shared_ptr<Stream>> streams_of_thread;  // cudaStreamPerThread

uint64_t Progress() {
  std::lock_guard lock(progress_mu);
  return progress;
}

void WaitForProgress(uint64_t seen) {
  std::unique_lock lock(progress_mu);
  progress_cv.wait_for(lock, kRest, [&] { return progress != seen; });
}

enum class Step { kRan, kEmpty, kElsewhere, kNotYet };

// Records the error of an item; the device is broken from then on.
void NoteError(const Stream& stream, cudaError_t error) {
  if (error != cudaSuccess) BreakDevice(stream.device, error);
}

std::optional<cudaError_t> RunItem(const Stream& stream, const Item& item) {
  if (DeviceError(stream.device) != cudaSuccess || !item.work) return cudaSuccess;  // a broken device drops its work
  return item.work(std::chrono::microseconds(0));
}

// One step of the stream, or of one that its first item depends on.
Step Advance(const std::shared_ptr<Stream>& stream) {
  std::unique_lock lock(stream->mu);
  if (stream->items.empty()) return Step::kEmpty;
  if (stream->running) return Step::kElsewhere;
  Item& item = stream->items.front();
  for (const Mark& mark : item.after) {
    if (mark.Done()) continue;
    const std::shared_ptr<Stream> other = mark.stream;
    lock.unlock();
    return Advance(other);
  }
  stream->running = true;
  stream->runner = std::this_thread::get_id();
  lock.unlock();
  const std::optional<cudaError_t> result = RunItem(*stream, item);
  lock.lock();
  stream->running = false;
  stream->runner = {};
  if (!result) return Step::kNotYet;
  Item done = std::move(stream->items.front());
  stream->items.pop_front();
  NoteError(*stream, *result);
  ++stream->num_done;
  lock.unlock();
  NotifyProgress();
  return Step::kRan;
}

std::vector<std::shared_ptr<Stream>> StreamsNear(const Stream& stream) {
  std::lock_guard lock(registry_mu);
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [handle, other] : registry) {
    if (other->device == stream.device || other->creator == std::this_thread::get_id()) all.push_back(other);
  }
  return all;
}

// While a stream waits for peers, the others run as they would on a device.
bool AdvanceOthers(const std::shared_ptr<Stream>& stream) {
  bool any = false;
  for (const auto& other : StreamsNear(*stream)) {
    if (other != stream) any |= Advance(other) == Step::kRan;
  }
  return any;
}

[[noreturn]] void AbortStuck(const Stream& stream) {
  std::fprintf(stderr, "cuda_emulation: no progress for two minutes on a stream of device %d, at item \"%s\"\n",
               stream.device, stream.items.empty() ? "" : stream.items.front().name);
  std::abort();
}

}  // namespace

bool Mark::Done() const { return stream->num_done.load() >= count; }

void NotifyProgress() {
  {
    std::lock_guard lock(progress_mu);
    ++progress;
  }
  progress_cv.notify_all();
}

std::shared_ptr<Stream> AddStream(int device, unsigned flags, int priority) {
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->flags = flags;
  stream->priority = priority;
  stream->creator = std::this_thread::get_id();
  std::lock_guard lock(registry_mu);
  registry[stream.get()] = stream;
  return stream;
}

void ForgetStream(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(registry_mu);
  stream->destroyed = true;
  std::erase_if(registry, [](const auto& entry) {
    const Stream& other = *entry.second;
    return other.destroyed && other.num_done == other.num_enqueued;
  });
}

std::shared_ptr<Stream> FindStream(cudaStream_t handle) {
  if (handle == cudaStreamPerThread) {
    auto& stream = streams_of_thread[CurrentDevice()];
    if (stream == nullptr) stream = AddStream(CurrentDevice(), cudaStreamDefault, 0);
    return stream;
  }
  const bool legacy = handle == nullptr || handle == cudaStreamLegacy;
  std::lock_guard lock(registry_mu);
  if (!legacy) {
    const auto found = registry.find(handle);
    return found == registry.end() || found->second->destroyed ? nullptr : found->second;
  }
  auto& stream = legacy_streams[CurrentDevice()];
  if (stream == nullptr) {
    stream = std::make_shared<Stream>();
    stream->device = CurrentDevice();
    stream->legacy = true;
    stream->creator = std::this_thread::get_id();
    registry[stream.get()] = stream;
  }
  return stream;
}

std::vector<std::shared_ptr<Stream>> StreamsOfDevice(int device) {
  std::lock_guard lock(registry_mu);
  std::vector<std::shared_ptr<Stream>> all;
  for (const auto& [handle, stream] : registry) {
    if (stream->device == device) all.push_back(stream);
  }
  return all;
}

Mark EndOf(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(stream->mu);
  return {stream, stream->num_enqueued};
}

cudaError_t EnqueueItem(const std::shared_ptr<Stream>& stream, Item item) {
  bool captured = false;
  if (const cudaError_t error = CaptureItem(stream, item, &captured); error != cudaSuccess || captured) return error;
  // Stream 0 and the blocking streams wait for each other.
  if (stream->legacy || stream->blocking()) {
    for (const auto& other : StreamsOfDevice(stream->device)) {
      if (stream->legacy ? other->blocking() : other->legacy) item.after.push_back(EndOf(other));
    }
  }
  std::erase_if(item.after, [](const Mark& mark) { return mark.Done(); });
  {
    std::lock_guard lock(stream->mu);
    stream->items.push_back(std::move(item));
    ++stream->num_enqueued;
  }
  return Eager() ? RunUntil(EndOf(stream)) : cudaSuccess;
}

cudaError_t EnqueuePatient(cudaStream_t handle, const char* name, PatientWork work) {
  const std::shared_ptr<Stream> stream = FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  return EnqueueItem(stream, {name,
                              [name, work = std::move(work)](std::chrono::microseconds wait) {
                                const cudaError_t error = InjectedError(name);
                                return error != cudaSuccess ? std::optional(error) : work(wait);
                              },
                              {}});
}

cudaError_t Enqueue(cudaStream_t handle, const char* name, Work work) {
  const std::shared_ptr<Stream> stream = FindStream(handle);
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  return EnqueueItem(stream, {name,
                              [name, work = std::move(work)](std::chrono::microseconds) {
                                const cudaError_t error = InjectedError(name);
                                return std::optional(error != cudaSuccess ? error : work());
                              },
                              {}});
}

int DeviceOfStream(cudaStream_t handle) {
  const std::shared_ptr<Stream> stream = FindStream(handle);
  return stream == nullptr ? -1 : stream->device;
}

cudaError_t RunUntil(const Mark& mark) {
  auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!mark.Done()) {
    const uint64_t seen = Progress();
    const Step step = Advance(mark.stream);
    if (step == Step::kRan || (step == Step::kNotYet && AdvanceOthers(mark.stream))) {
      deadline = std::chrono::steady_clock::now() + kPatience;
      continue;
    }
    if (step == Step::kElsewhere) {
      std::lock_guard lock(mark.stream->mu);
      if (mark.stream->runner == std::this_thread::get_id()) return cudaErrorNotPermitted;
    }
    if (mark.Done()) break;
    WaitForProgress(seen);
    if (std::chrono::steady_clock::now() > deadline) AbortStuck(*mark.stream);
  }
  return DeviceError(mark.stream->device);
}

void RunOne(const std::shared_ptr<Stream>& stream) { Advance(stream); }

void AdvanceDevice(int device) {
  for (const auto& stream : StreamsOfDevice(device)) Advance(stream);
}

cudaError_t RunDevice(int device) {
  for (const auto& stream : StreamsOfDevice(device)) {
    if (const cudaError_t error = RunUntil(EndOf(stream)); error != cudaSuccess) return error;
  }
  return DeviceError(device);
}

void DropPendingWork() {
  std::vector<std::shared_ptr<Stream>> all;
  {
    std::lock_guard lock(registry_mu);
    for (const auto& [handle, stream] : registry) all.push_back(stream);
  }
  for (const auto& stream : all) {
    std::lock_guard lock(stream->mu);
    if (stream->running) continue;
    stream->num_done += stream->items.size();
    stream->items.clear();
  }
}

}  // namespace cuda_emulation
