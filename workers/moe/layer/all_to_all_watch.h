// Who is told of a rank's all-to-alls as layers run them: for what shares the network with them, and lets them go
// first.
//
// Calls come from the thread that runs the layers, of each layer: Imminent (of a backward), then Begin before each
// all-to-all and End when it is done on this rank (several may be under way), then LayerEnd.  After an error of a layer
// calls just end.
#pragma once

#include "absl/status/status.h"

namespace switchyard::moe {

class AllToAllWatch {
 public:
  virtual ~AllToAllWatch() = default;
  // A layer's output is being differentiated: its first all-to-all is next.
  virtual void Imminent() = 0;
  // One is ready.  It starts when this returns; an error ends the layer.
  virtual absl::Status Begin() = 0;
  virtual void End() = 0;
  // The layer's last one is done.
  virtual void LayerEnd() = 0;
};

}  // namespace switchyard::moe
