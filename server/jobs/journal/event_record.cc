#include "server/jobs/journal/event_record.h"

#include <cstdint>

#include "scheduler/base/io/byte_io.h"
#include "scheduler/base/io/crc32c.h"

namespace switchyard::server {
namespace {

// A CRC over bytes that have CRCs in them is weak, so the format turns them.
uint32_t MaskedCrc(absl::string_view bytes) {
  const uint32_t crc = Crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace

std::string EventRecord(const tensorboard::Event& event) {
  const std::string message = event.SerializeAsString();
  std::string record;
  AppendInt(uint64_t{message.size()}, &record);
  AppendInt(MaskedCrc(record), &record);
  record += message;
  AppendInt(MaskedCrc(message), &record);
  return record;
}

}  // namespace switchyard::server
