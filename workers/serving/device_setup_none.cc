#include "workers/serving/device_setup.h"

namespace switchyard {

FormDeviceGroupFn SetUpDevices(bool) { return nullptr; }

}  // namespace switchyard
