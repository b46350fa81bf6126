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
  std::vector<TensorToWrite> tensors = {};  // if the name ends in ".safetensors"
  std::string text = {};                    // else
};

// The bytes that the files take on the disk.  InvalidArgument for tensors that no file can hold.
absl::StatusOr<int64_t> BytesOfFiles(absl::Span<const CheckpointFile> files);

// Writes and syncs the files, then syncs the folder.  After an error the leader abandons the folder, without a retry.
// Errors: ResourceExhausted, before anything is written; the file system's and the contents', with the file's name.
absl::StatusOr<std::vector<FileRecord>> WriteFiles(FileSystem* file_system, const std::string& folder,
                                                   absl::Span<const CheckpointFile> files);

// ResourceExhausted "<where>: needs N bytes, M are free".
absl::Status CheckRoom(FileSystem* file_system, const std::string& where, int64_t needed);

// The files that a checkpoint copies from the model that training began with, as far as they exist: config.json, the
// tokenizer's files and the like.  InvalidArgument: one has more than 64 MB; PermissionDenied: a link leads out.
absl::StatusOr<std::vector<CheckpointFile>> SideFiles(const ModelDir& model);

}  // namespace switchyard::checkpoint
