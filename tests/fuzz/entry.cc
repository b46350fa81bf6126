// What libFuzzer and replay_main.cc call.
#include <cstddef>
#include <cstdint>

#include "tests/fuzz/fuzz.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t count) {
  switchyard::fuzz::Fuzz({reinterpret_cast<const char*>(bytes), count});
  return 0;
}
