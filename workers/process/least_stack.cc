// The least stack that a thread of this program is given.
//
// glibc takes a thread's static TLS out of its stack, and cuBLASLt brings 94 KB of that, the CUDA emulation's shared
// memory 108 KB.  The threads of the metrics' page (civetweb) ask for 100 KB, so they could not be created.  This is
// linked into programs that load CUDA's libraries at their start.
#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>

extern "C" int pthread_attr_setstacksize(pthread_attr_t* attributes, size_t bytes) noexcept {
  constexpr size_t kLeast = size_t{512} << 10;
  using SetStackSize = int (*)(pthread_attr_t*, size_t);
  static const auto next = reinterpret_cast<SetStackSize>(dlsym(RTLD_NEXT, "pthread_attr_setstacksize"));
  return next == nullptr ? ENOSYS : next(attributes, std::max(bytes, kLeast));
}
