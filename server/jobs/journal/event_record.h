// Event files of TensorBoard, a TFRecord each event: u64 length, u32 masked CRC-32C of these 8 bytes, the message, u32
// masked CRC-32C of it; all little-endian.  Pure.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "switchyard/tensorboard/event.pb.h"

namespace switchyard::server {

std::string EventRecord(const tensorboard::Event& event);

}  // namespace switchyard::server
