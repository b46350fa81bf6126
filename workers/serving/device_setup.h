// The devices that this program is linked with: device_setup_cuda.cc where CUDA is built, else device_setup_none.cc.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "workers/comm/core/communicator.h"
#include "workers/comm/group/rendezvous_store.h"
#include "workers/tensor/device.h"

namespace switchyard::worker {

// Forms the group's collectives on a device.
struct DeviceGroup {
  Device device;
  bool deterministic = false;
  absl::Time deadline;
  comm::RendezvousStore* store = nullptr;        // borrowed for the call
  std::unique_ptr<comm::Communicator> messages;  // the same ranks on their hosts
  std::unique_ptr<comm::Communicator> watch;     // the same again, for PeerWatch
};
using FormDeviceGroupFn = std::function<absl::StatusOr<std::unique_ptr<comm::Communicator>>(DeviceGroup)>;

// Makes this program's devices known.  Before any other thread runs: it may set environment variables.
// Returns what forms groups on them; null without any.
FormDeviceGroupFn SetUpDevices(bool deterministic);

}  // namespace switchyard::worker
