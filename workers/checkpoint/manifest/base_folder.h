// Checks a folder of weights from which a job begins, or that is served.
//
// A checkpoint of ours has a manifest, so a flipped bit of its weights is found and not trained on or served.  A folder
// without MANIFEST.json (a HuggingFace directory) is accepted as it is.  Thread-safe; reads only.
// Does not do: masters, moments and trainer_state.json, which such a job does not read.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/root_dir.h"
#include "workers/checkpoint/files/file_sums.h"
#include "workers/checkpoint/manifest/manifest.h"
#include "workers/checkpoint/tensors/checkpoint.h"

namespace switchyard::checkpoint {

// InvalidArgument if a folder in the path is an unfinished save, or is being removed ("job/step-00000004.tmp-7").
absl::Status CheckFinished(absl::string_view path);

// Compares every byte of the files that the manifest names, less those that such a job does not read.
// dir: `path` beneath the root.  Errors: DataLoss that names the file, what is wrong with it, and an older whole step
// of the same job if there is one; FailedPrecondition for a manifest of a newer format; on_read's.
absl::Status CheckBaseFolder(const RootDir& root, const std::string& path, const ModelDir& dir,
                             const OnRead& on_read = nullptr);

// 64 hex digits over the contents of a folder's files of weights: those of its manifest, or, if it has none, of the
// files, which are read.  Errors: as CheckBaseFolder's, Checkpoint's; on_read's.
absl::StatusOr<std::string> ChecksumOfWeights(const ModelDir& dir, const OnRead& on_read = nullptr);

// The manifest of a folder to serve, without the files that such a job does not read; none if the folder has none.
// Compares the files that it names except weights, which are compared as they are loaded (ExpectManifest).  Errors: as
// CheckBaseFolder's.
absl::StatusOr<std::optional<Manifest>> CheckServedFolder(const ModelDir& dir);

// DataLoss unless the checkpoint's files are those of its folder's manifest; reads their headers.  From now on the
// loader compares what it reads (WeightsFile::block_sums).
absl::Status ExpectManifest(const Manifest& manifest, const Checkpoint& checkpoint);

}  // namespace switchyard::checkpoint
