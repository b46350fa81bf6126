// Builds one expert file: takes its room, has it filled, writes its checksums and header.
//
// One on a disk comes through memory in parts, past the page cache where the file system can, so that what is written
// takes no memory.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "workers/moe/experts/expert_file.h"
#include "workers/moe/experts/expert_file_format.h"

namespace switchyard::moe {

class ExpertFileBuilder : public ExpertFile::Places {
 public:
  // `fd`: the file, empty or to be emptied; this process has its exclusive lock.
  ExpertFileBuilder(const ExpertFileOptions& options, const ExpertFileFormat& format, int fd, ExpertFile::Fill fill,
                    ExpertFile::Progress progress)
      : options_(options), format_(format), fd_(fd), fill_(fill), progress_(progress) {}

  // Errors: as ExpertFile::Open.  What it leaves then is incomplete.
  absl::Status Build();

  char* At(int layer, int expert) override;
  bool Report(int64_t bytes_done) override;

 private:
  absl::Status TakeRoom();
  absl::Status CheckRoom() const;
  absl::Status FillMapped();
  absl::Status FillOnDisk();
  // Writes the experts that are staged to their place.
  absl::Status WriteStaged(int to);

  const ExpertFileOptions& options_;
  const ExpertFileFormat& format_;
  const int fd_;
  const ExpertFile::Fill fill_;
  const ExpertFile::Progress progress_;
  ExpertFileMapping mapping_;
  // The experts that FillOnDisk has in memory.
  char* staging_ = nullptr;
  int64_t staged_first_ = 0, staged_count_ = 0;
  int64_t part_ = 0;  // of building
};

// The parts of building: taking the room, filling, and, if it is mapped, the checksums; each as long as the file.
constexpr int64_t PartsOfBuilding(const ExpertFileOptions& options) { return options.on_disk ? 2 : 3; }

}  // namespace switchyard::moe
