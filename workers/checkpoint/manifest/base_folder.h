// A folder of weights that a job is to begin from, or that is to be served, before it is believed.
//
// A checkpoint of ours has a manifest, so a flipped bit of its weights is found and not trained on or served.  A folder
// without MANIFEST.json (a HuggingFace directory) says nothing of its files and is taken as it is.
// Thread-safe; reads only.  Does not do: masters, moments and trainer_state.json, which such a job does not read.
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
#include "workers/checkpoint/safetensors/safetensors.h"

namespace switchyard::checkpoint {

// InvalidArgument if a folder of the path is one that a save has not finished, or that is being removed
// ("job/step-00000004.tmp-7").
absl::Status CheckFinished(absl::string_view path);

// That all which its manifest names, less what such a job does not read, is what it says; every byte is read.
// `dir`: `path` beneath the root.  Errors: DataLoss that names the file, what is wrong with it, and where the path is
// a step's of a job with an older whole one, that; FailedPrecondition for a manifest of a newer format; on_read's.
absl::Status CheckBaseFolder(const RootDir& root, const std::string& path, const ModelDir& dir,
                             const OnRead& on_read = nullptr);

// For who serves the folder: its manifest, without the files above; none if it has none of ours.  All that it names is
// compared, but weights: ExpectManifest has those compared as they are loaded.  Errors: as CheckBaseFolder's.
absl::StatusOr<std::optional<Manifest>> CheckServedFolder(const ModelDir& dir);

// The checkpoint's files are those of its folder's manifest, or DataLoss names one that is not; their headers are read.
// From now on the loader compares what it reads (SafetensorsFile::block_sums).
absl::Status ExpectManifest(const Manifest& manifest, const Checkpoint& checkpoint);

}  // namespace switchyard::checkpoint
