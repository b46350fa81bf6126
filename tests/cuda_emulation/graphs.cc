// Graphs: one item on the launching stream runs all nodes, in an order that their dependencies allow and the seed
// chooses.  The order is the same on every rank that launches an equal graph, as collectives on different communicators
// would otherwise meet crosswise.
#include <random>

#include "tests/cuda_emulation/allocations.h"
#include "tests/cuda_emulation/capture.h"
#include "tests/cuda_emulation/control.h"
#include "tests/cuda_emulation/devices.h"
#include "tests/cuda_emulation/errors.h"

namespace cuda_emulation {
namespace {

constexpr size_t kNodeBytes = 1024;  // of the device's memory, while the graph can be launched

// One launch.  Copied with the item only before it has begun.
struct GraphRun {
  std::shared_ptr<const Graph> graph;
  std::vector<PatientWork> works;
  std::vector<int> missing;            // of each node: nodes before it that are not done
  std::vector<std::vector<int>> next;  // of each node: those that wait for it
  std::vector<int> ready;
  size_t num_done = 0;
  std::minstd_rand random;

  explicit GraphRun(std::shared_ptr<const Graph> g) : graph(std::move(g)), random(static_cast<unsigned>(Seed()) + 1) {
    next.resize(graph->nodes.size());
    for (size_t i = 0; i < graph->nodes.size(); ++i) {
      const GraphNode& node = graph->nodes[i];
      works.push_back(node.work);
      missing.push_back(static_cast<int>(node.after.size()));
      for (int before : node.after) next[static_cast<size_t>(before)].push_back(static_cast<int>(i));
      if (node.after.empty()) ready.push_back(static_cast<int>(i));
    }
  }

  // Tries the ready nodes, beginning with one that the seed chooses.  False: none of them is done.
  bool Step(std::chrono::microseconds wait, cudaError_t* error) {
    const size_t first = Seed() == 0 ? 0 : random() % ready.size();
    for (size_t k = 0; k < ready.size(); ++k) {
      const size_t pick = (first + k) % ready.size();
      const auto node = static_cast<size_t>(ready[pick]);
      const std::optional<cudaError_t> result = works[node] ? works[node](wait) : std::optional(cudaSuccess);
      if (!result) continue;
      *error = *result;
      ready.erase(ready.begin() + static_cast<std::ptrdiff_t>(pick));
      ++num_done;
      for (int other : next[node]) {
        if (--missing[static_cast<size_t>(other)] == 0) ready.push_back(other);
      }
      return true;
    }
    return false;
  }

  std::optional<cudaError_t> Run(std::chrono::microseconds wait) {
    while (num_done < works.size()) {
      cudaError_t error = cudaSuccess;
      if (!Step(wait, &error)) return std::nullopt;
      if (error != cudaSuccess) return error;
    }
    return cudaSuccess;
  }
};

}  // namespace
}  // namespace cuda_emulation

using namespace cuda_emulation;  // NOLINT: the API's functions are global

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  if (const cudaError_t error = Enter("cudaGraphInstantiate"); error != cudaSuccess) return error;
  if (graph == nullptr || exec == nullptr) return Leave(cudaErrorInvalidValue);
  void* memory = nullptr;
  if (const size_t bytes = graph->nodes.size() * kNodeBytes; bytes > 0) {
    memory = Allocate(MemoryKind::kDevice, CurrentDevice(), bytes);
    if (memory == nullptr) return Leave(cudaErrorMemoryAllocation);
  }
  *exec = new GraphExec{std::make_shared<const Graph>(*graph), memory};
  return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaGraphLaunch"); error != cudaSuccess) return error;
  if (exec == nullptr) return Leave(cudaErrorInvalidValue);
  const auto target = FindStream(stream);
  if (target == nullptr) return Leave(cudaErrorInvalidResourceHandle);
  if (IsCaptured(target)) return Leave(RefuseIfCaptured(target));  // child graphs are not emulated
  auto run = std::make_shared<GraphRun>(exec->graph);
  return Leave(EnqueueItem(target, {"graph", [run](std::chrono::microseconds wait) { return run->Run(wait); }, {}}));
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t stream) {
  if (const cudaError_t error = Enter("cudaGraphUpload"); error != cudaSuccess) return error;
  return Leave(exec != nullptr && FindStream(stream) != nullptr ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  if (const cudaError_t error = Enter("cudaGraphGetNodes"); error != cudaSuccess) return error;
  if (graph == nullptr || num_nodes == nullptr) return Leave(cudaErrorInvalidValue);
  for (size_t i = 0; nodes != nullptr && i < *num_nodes; ++i) {
    nodes[i] = i < graph->nodes.size() ? &graph->nodes[i] : nullptr;
  }
  *num_nodes = graph->nodes.size();
  return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  if (const cudaError_t error = Enter("cudaGraphDestroy"); error != cudaSuccess) return error;
  if (graph == nullptr) return Leave(cudaErrorInvalidValue);
  delete graph;
  return cudaSuccess;
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  if (const cudaError_t error = Enter("cudaGraphExecDestroy"); error != cudaSuccess) return error;
  if (exec == nullptr) return Leave(cudaErrorInvalidValue);
  if (exec->memory != nullptr) Release(exec->memory, MemoryKind::kDevice);
  delete exec;
  return cudaSuccess;
}
