// A job's own folder of the checkpoint root, where its checkpoints are, and what was packed for it.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "workers/checkpoint/files/file_system.h"

namespace switchyard::train {

inline constexpr char kCheckpointRoot[] = "the checkpoint root";  // in messages

// Made if it is not there: each rank may do it, at once.  job_id: a plain name (model_dir.h).
// Errors: InvalidArgument, NotFound, PermissionDenied; each names the root.
absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>> OpenJobFolder(const std::string& checkpoint_root,
                                                                      const std::string& job_id);

}  // namespace switchyard::train
