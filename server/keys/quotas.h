// What each key has used of its quotas: a token bucket for its requests and one for its tokens.
//
// A bucket holds a minute's quota, is full at first and fills evenly.  A request takes its prompt and the most that it
// may be answered, and gives back at its end what it did not use; one that asks for more than a minute's quota needs a
// full bucket, which it then owes the rest.  Thread-safe; reads no clock.
#pragma once

#include <cstdint>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "server/keys/roles.h"

namespace switchyard::server {

class KeyQuotas {
 public:
  // Take one request, or `tokens`, of the caller's quota.  RESOURCE_EXHAUSTED, QUOTA, names limit, actual value and
  // when there is enough; then nothing is taken.
  absl::Status TakeRequest(const Caller& caller, absl::Time now);
  absl::Status TakeTokens(const Caller& caller, int64_t tokens, absl::Time now);
  void GiveBackTokens(const Caller& caller, int64_t tokens);

 private:
  struct Bucket {
    double left = 0;
    absl::Time filled = absl::InfinitePast();  // when `left` was right
  };
  // Takes `amount`, which may leave the bucket below 0; returns zero, or how long until there is enough.
  static absl::Duration Take(Bucket* bucket, int64_t per_minute, int64_t amount, absl::Time now);

  absl::Mutex mu_;
  // By key's name; has the names of keys that were in the file and have a quota.
  absl::flat_hash_map<std::string, Bucket> requests_ ABSL_GUARDED_BY(mu_), tokens_ ABSL_GUARDED_BY(mu_);
};

}  // namespace switchyard::server
