// Compares the blocks of a file of weights that are read with their checksums (WeightsFile::block_sums), each block
// once.  If a part of a block is read, the rest is read, too; blocks that are not read are not compared.
// Thread-safe.  Borrows the file.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {

class BlockCheck {
 public:
  // REQUIRES: the file has block sums.
  explicit BlockCheck(const WeightsFile* file);

  // Compares bytes that were read at `begin`.  scratch: memory for whole blocks of which they are a part.
  // DataLoss "<file>: damaged at bytes [a, b), where tensor "…" is: CRC-32C X, the manifest says Y"; Read's errors.
  absl::Status Check(int64_t begin, absl::string_view bytes, std::string* scratch);
  // Reads and compares the blocks with the file's header.
  absl::Status CheckHeader();

 private:
  absl::Status Compare(int64_t block, absl::string_view bytes) const;

  const WeightsFile* const file_;
  std::vector<std::atomic<bool>> seen_;  // by block: it is compared, or being compared
};

}  // namespace switchyard::checkpoint
