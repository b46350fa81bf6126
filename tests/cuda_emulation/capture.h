// Capture of streams into graphs, and graphs.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda_emulation/streams.h"

namespace cuda_emulation {

struct GraphNode {
  const char* name;
  PatientWork work;
  std::vector<int> after;  // nodes before this one
};
struct Graph {
  std::vector<GraphNode> nodes;
};
struct GraphExec {
  std::shared_ptr<const Graph> graph;
  void* memory = nullptr;  // of the device; null: no nodes
};

struct Capture {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread;
  std::shared_ptr<Stream> origin;
  bool invalidated = false;
  Graph graph;
};

// Where an event was recorded during capture.
struct CapturedPlace {
  std::shared_ptr<Capture> capture;
  std::vector<int> tail;
};

// If the stream is captured the item becomes a node (*captured = true).  Errors of capture invalidate it.
cudaError_t CaptureItem(const std::shared_ptr<Stream>& stream, const Item& item, bool* captured);

// Null if the stream is not captured.
CapturedPlace PlaceInCapture(const std::shared_ptr<Stream>& stream);
// The stream waits for the place, and joins its capture if it is in none.
cudaError_t WaitForCaptured(const std::shared_ptr<Stream>& stream, const CapturedPlace& place);

// For calls that no capture may see.  The first: in any of the modes in force (cudaErrorStreamCaptureUnsupported); the
// second: on a stream that is captured.
cudaError_t RefuseUnsafe();
cudaError_t RefuseIfCaptured(const std::shared_ptr<Stream>& stream);
bool IsCaptured(const std::shared_ptr<Stream>& stream);

}  // namespace cuda_emulation
