#include "tests/devices/test_device.h"

namespace switchyard {

Device TestDevice() { return Device::Cpu(); }
bool DeviceIsEmulated() { return false; }

}  // namespace switchyard
