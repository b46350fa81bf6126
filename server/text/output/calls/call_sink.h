// What the readers of a call tell about it, in this order: Begin, Arguments any number of times, End.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace switchyard::text {

class CallSink {
 public:
  virtual ~CallSink() = default;
  // `id` is empty if the model wrote none.
  virtual void Begin(absl::string_view name, absl::string_view id) = 0;
  virtual void Arguments(absl::string_view json) = 0;
  // The arguments are a whole object.
  virtual void End() = 0;
};

// What a reader says of a byte.
enum class CallStatus : uint8_t {
  kMore,
  kDone,    // the call ends with this byte
  kFailed,  // this is no call
};

inline constexpr size_t kMaxNameBytes = 256;  // of a function, a parameter, an id

}  // namespace switchyard::text
