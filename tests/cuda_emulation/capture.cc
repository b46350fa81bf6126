#include "tests/cuda_emulation/capture.h"

#include <algorithm>

#include "tests/cuda_emulation/errors.h"

namespace cuda_emulation {
namespace {

std::mutex mu;  // of all captures
std::vector<std::shared_ptr<Capture>> captures;
thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// REQUIRES (all below): mu is held.
std::vector<int> Merge(std::vector<int> a, const std::vector<int>& b) {
  a.insert(a.end(), b.begin(), b.end());
  std::sort(a.begin(), a.end());
  a.erase(std::unique(a.begin(), a.end()), a.end());
  return a;
}

bool Forbids(const Capture& capture) {
  if (thread_mode == cudaStreamCaptureModeRelaxed || capture.mode == cudaStreamCaptureModeRelaxed) return false;
  if (capture.thread == std::this_thread::get_id()) return true;
  return thread_mode == cudaStreamCaptureModeGlobal && capture.mode == cudaStreamCaptureModeGlobal;
}

// Every node must come before the end of the stream with which the capture began.
bool AllJoined(const Capture& capture) {
  std::vector<bool> reached(capture.graph.nodes.size(), false);
  std::vector<int> open = capture.origin->capture_tail;
  while (!open.empty()) {
    const int node = open.back();
    open.pop_back();
    if (reached[static_cast<size_t>(node)]) continue;
    reached[static_cast<size_t>(node)] = true;
    const auto& after = capture.graph.nodes[static_cast<size_t>(node)].after;
    open.insert(open.end(), after.begin(), after.end());
  }
  return std::all_of(reached.begin(), reached.end(), [](bool r) { return r; });
}

void EndCapture(const std::shared_ptr<Capture>& capture) {
  for (const auto& stream : StreamsOfDevice(capture->origin->device)) {
    if (stream->capture != capture) continue;
    stream->capture = nullptr;
    stream->capture_tail.clear();
  }
  std::erase(captures, capture);
}

}  // namespace

cudaError_t CaptureItem(const std::shared_ptr<Stream>& stream, const Item& item, bool* captured) {
  std::lock_guard lock(mu);
  *captured = false;
  if (captures.empty()) return cudaSuccess;
  if (stream->legacy) {
    for (const auto& other : StreamsOfDevice(stream->device)) {
      if (!other->blocking() || other->capture == nullptr || other->capture->mode == cudaStreamCaptureModeRelaxed) {
        continue;
      }
      other->capture->invalidated = true;
      return cudaErrorStreamCaptureImplicit;
    }
  }
  if (stream->capture == nullptr) return cudaSuccess;
  if (stream->capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  Graph& graph = stream->capture->graph;
  graph.nodes.push_back({item.name, item.work, stream->capture_tail});
  stream->capture_tail = {static_cast<int>(graph.nodes.size()) - 1};
  *captured = true;
  return cudaSuccess;
}

CapturedPlace PlaceInCapture(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(mu);
  return {stream->capture, stream->capture_tail};
}

cudaError_t WaitForCaptured(const std::shared_ptr<Stream>& stream, const CapturedPlace& place) {
  std::lock_guard lock(mu);
  if (place.capture == nullptr) {  // an event from outside of the capture
    if (stream->capture == nullptr) return cudaSuccess;
    stream->capture->invalidated = true;
    return cudaErrorStreamCaptureIsolation;
  }
  if (std::find(captures.begin(), captures.end(), place.capture) == captures.end()) return cudaErrorCapturedEvent;
  if (stream->capture != nullptr && stream->capture != place.capture) {
    stream->capture->invalidated = place.capture->invalidated = true;
    return cudaErrorStreamCaptureMerge;
  }
  if (stream->legacy) {
    place.capture->invalidated = true;
    return cudaErrorStreamCaptureImplicit;
  }
  stream->capture = place.capture;
  stream->capture_tail = Merge(stream->capture_tail, place.tail);
  return cudaSuccess;
}

cudaError_t RefuseUnsafe() {
  std::lock_guard lock(mu);
  bool refused = false;
  for (const auto& capture : captures) {
    if (!Forbids(*capture)) continue;
    capture->invalidated = true;
    refused = true;
  }
  return refused ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

bool IsCaptured(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(mu);
  return stream->capture != nullptr;
}

cudaError_t RefuseIfCaptured(const std::shared_ptr<Stream>& stream) {
  std::lock_guard lock(mu);
  if (stream->capture == nullptr) return cudaSuccess;
  stream->capture->invalidated = true;
  return cudaErrorStreamCaptureUnsupported;
}

static cudaError_t BeginCapture(const std::shared_ptr<Stream>& stream, cudaStreamCaptureMode mode) {
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  std::lock_guard lock(mu);
  if (stream->legacy) return cudaErrorStreamCaptureUnsupported;
  if (stream->capture != nullptr) return cudaErrorIllegalState;
  auto capture = std::make_shared<Capture>();
  capture->mode = mode;
  capture->thread = std::this_thread::get_id();
  capture->origin = stream;
  stream->capture = capture;
  stream->capture_tail.clear();
  captures.push_back(capture);
  return cudaSuccess;
}

static cudaError_t FinishCapture(const std::shared_ptr<Stream>& stream, cudaGraph_t* graph) {
  *graph = nullptr;
  if (stream == nullptr) return cudaErrorInvalidResourceHandle;
  std::lock_guard lock(mu);
  const std::shared_ptr<Capture> capture = stream->capture;
  if (capture == nullptr) return cudaErrorIllegalState;
  if (capture->mode != cudaStreamCaptureModeRelaxed && capture->thread != std::this_thread::get_id()) {
    return cudaErrorStreamCaptureWrongThread;
  }
  if (capture->origin != stream) return cudaErrorStreamCaptureUnmatched;
  const bool joined = AllJoined(*capture);
  EndCapture(capture);
  if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
  if (!joined) return cudaErrorStreamCaptureUnjoined;
  *graph = new Graph(std::move(capture->graph));
  return cudaSuccess;
}

}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  if (const cudaError_t error = Enter("cudaStreamBeginCapture"); error != cudaSuccess) return error;
  return Leave(BeginCapture(FindStream(stream), mode));
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  if (const cudaError_t error = Enter("cudaStreamEndCapture"); error != cudaSuccess) return error;
  return Leave(FinishCapture(FindStream(stream), graph));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, cudaStreamCaptureStatus* status) {
  if (const cudaError_t error = Enter("cudaStreamIsCapturing"); error != cudaSuccess) return error;
  const auto stream = FindStream(handle);
  if (stream == nullptr) return Leave(cudaErrorInvalidResourceHandle);
  const CapturedPlace place = PlaceInCapture(stream);
  *status = place.capture == nullptr     ? cudaStreamCaptureStatusNone
            : place.capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                         : cudaStreamCaptureStatusActive;
  return cudaSuccess;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, cuda_emulation::thread_mode);
  return cudaSuccess;
}
