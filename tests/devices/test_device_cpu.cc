#include "tests/devices/test_device.h"
#include "workers/comm/local/local_communicator.h"

namespace switchyard {

Device TestDevice() { return Device::Cpu(); }
bool DeviceIsEmulated() { return false; }
std::vector<std::unique_ptr<comm::Communicator>> MakeTestGroup(int world) { return comm::MakeLocalGroup(world); }

absl::StatusOr<std::unique_ptr<comm::Communicator>> FormTestRank(comm::RendezvousStore*,
                                                                 std::unique_ptr<comm::Communicator> messages,
                                                                 std::unique_ptr<comm::Communicator>, absl::Time) {
  return messages;
}

}  // namespace switchyard
