// Copies bytes where there may be none.
#pragma once

#include <cstdint>
#include <cstring>

namespace switchyard {

// As memcpy, but null for no bytes is fine.
inline void CopyBytes(void* to, const void* from, int64_t bytes) {
  if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
}

}  // namespace switchyard
