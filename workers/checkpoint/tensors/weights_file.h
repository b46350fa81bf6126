// WeightsFile: a file of tensors, its table and its bytes, whatever its format (safetensors, GGUF).
//
// Every claim of a table was checked against the file's size before this is made.  Thread-safe, but set_block_sums.
// Errors: InvalidArgument for a file's contents, NotFound, Unimplemented for another format; InputFile's.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "scheduler/base/io/input_file.h"
#include "scheduler/base/io/model_dir.h"

namespace switchyard::checkpoint {

// One tensor as a header describes it.
struct TensorEntry {
  std::string dtype = {};           // as written: "BF16", "F8_E4M3", of GGUF "Q4_K" …
  std::vector<int64_t> shape = {};  // may be empty (a scalar) or hold zeros
  int64_t begin = 0;                // of its bytes, from the start of the file
  int64_t bytes = 0;
  // Of GGUF: rows of heads of this many rows (or elements, of a bias) are stored in the order 0, D/2, 1, D/2 + 1 …; 0:
  // in order.
  int64_t interleaved_head = 0;

  std::string ShapeString() const;  // "[4, 128]"
};

using NamedTensor = std::pair<std::string, TensorEntry>;

class WeightsFile {
 public:
  // tensors: by rising offset; header: the bytes that say so.
  WeightsFile(InputFile file, std::string header, std::vector<NamedTensor> tensors)
      : file_(std::move(file)), header_(std::move(header)), tensors_(std::move(tensors)) {}
  // Opens `name` and checks its header.
  static absl::StatusOr<std::unique_ptr<WeightsFile>> OpenSafetensors(const ModelDir& dir, const std::string& name);

  const std::string& name() const { return file_.name(); }
  int64_t size() const { return file_.size(); }
  int64_t modified_ns() const { return file_.modified_ns(); }  // since the epoch, when it was opened
  const std::string& header() const { return header_; }        // of safetensors: its JSON text
  const std::vector<NamedTensor>& tensors() const { return tensors_; }
  // The blocks' checksums from its folder's manifest (file_sums.h), which readers compare (block_check.h); empty: there
  // are none.  Set while no thread reads.
  const std::vector<uint32_t>& block_sums() const { return block_sums_; }
  void set_block_sums(std::vector<uint32_t> crc32c) { block_sums_ = std::move(crc32c); }
  // Reads exactly `bytes` bytes at `begin` of the file.  Blocks on the disk.
  absl::Status Read(int64_t begin, int64_t bytes, void* to) const { return file_.Read(begin, bytes, to); }

 private:
  const InputFile file_;
  const std::string header_;
  const std::vector<NamedTensor> tensors_;
  std::vector<uint32_t> block_sums_;
};

// The place of a checkpoint's tensor.
struct TensorLocation {
  const WeightsFile* file = nullptr;  // of the Checkpoint
  const TensorEntry* entry = nullptr;
};

}  // namespace switchyard::checkpoint
