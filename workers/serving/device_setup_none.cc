#include "workers/serving/device_setup.h"

namespace switchyard::worker {

FormDeviceGroupFn SetUpDevices(bool) { return nullptr; }

}  // namespace switchyard::worker
