// The keys that count now, and whether a call may be made with what its client presents.  Thread-safe.
//
// A call keeps the role that it began with: a key that a new file lacks makes no further calls, but its open streams
// end as they would.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "server/keys/key_set.h"
#include "server/keys/roles.h"

namespace switchyard::server {

// Where a client puts its key, for errors.
enum class KeyPlace { kMetadata, kHeader };

class KeyRing {
 public:
  // Errors: those of KeySet::Read.
  static absl::StatusOr<std::unique_ptr<KeyRing>> Open(std::string path);

  // Reads the file again.  After an error the old keys stay.  Returns the number of keys.
  absl::StatusOr<size_t> Reload();

  // `authorization`: every value of the call's metadata, or header of HTTP, of that name.  UNAUTHENTICATED, NO_KEY:
  // there is not one value "Bearer KEY" with a key of the file; PERMISSION_DENIED, WRONG_ROLE: the key's role may not
  // call `method`.
  absl::StatusOr<Caller> Admit(absl::string_view method, absl::Span<const absl::string_view> authorization,
                               KeyPlace place = KeyPlace::kMetadata) const;

  // Returns the quota of the key of this name for its jobs' files; 0: it has none, or there is no such key any more.
  int64_t DiskGibOf(absl::string_view name) const;

 private:
  std::shared_ptr<const KeySet> keys() const {
    absl::MutexLock lock(&mu_);
    return keys_;
  }
  KeyRing(std::string path, KeySet keys)
      : path_(std::move(path)), keys_(std::make_shared<const KeySet>(std::move(keys))) {}

  const std::string path_;
  mutable absl::Mutex mu_;
  std::shared_ptr<const KeySet> keys_ ABSL_GUARDED_BY(mu_);  // shared with calls that look for their key
};

}  // namespace switchyard::server
