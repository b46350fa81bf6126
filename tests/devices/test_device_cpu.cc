#include "tests/devices/test_device.h"
#include "workers/comm/local/local_communicator.h"

namespace switchyard {

Device TestDevice() { return Device::Cpu(); }
bool DeviceIsEmulated() { return false; }
std::vector<std::unique_ptr<Communicator>> MakeTestGroup(int world) { return MakeLocalGroup(world); }

absl::StatusOr<std::unique_ptr<Communicator>> FormTestRank(RendezvousStore*, std::unique_ptr<Communicator> messages,
                                                           std::unique_ptr<Communicator>, absl::Time) {
  return messages;
}

}  // namespace switchyard
