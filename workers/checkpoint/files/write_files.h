// Writes a rank's part of a checkpoint into the folder that the leader has made.  Any rank, any thread; blocks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "scheduler/base/io/model_dir.h"
#include "workers/checkpoint/files/file_system.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/checkpoint/safetensors/safetensors_writer.h"

namespace switchyard::checkpoint {

struct CheckpointFile {
  std::string name;
  std::vector<TensorToWrite> tensors = {};  // of a name that ends in ".safetensors"
  std::string text = {};                    // of any other
};

// What these will take on the disk.  InvalidArgument for tensors that no file can hold.
absl::StatusOr<int64_t> BytesOfFiles(absl::Span<const CheckpointFile> files);

// Makes the files and syncs them, then the folder.  After an error what is there is void, also if a retry would
// succeed: the leader gives the folder up.
// Errors: ResourceExhausted, before anything is written, if they do not fit; the file system's and the contents', with
// the file's name.
absl::StatusOr<std::vector<FileRecord>> WriteFiles(FileSystem* file_system, const std::string& folder,
                                                   absl::Span<const CheckpointFile> files);

// ResourceExhausted "<where>: needs N bytes, M are free".
absl::Status CheckRoom(FileSystem* file_system, const std::string& where, int64_t needed);

// What a checkpoint takes over from the model that the training began with, as far as it is there: config.json, the
// tokenizer's files and the like.  InvalidArgument for one of more than 64 MB; PermissionDenied for links that lead
// out.
absl::StatusOr<std::vector<CheckpointFile>> SideFiles(const ModelDir& model);

}  // namespace switchyard::checkpoint
