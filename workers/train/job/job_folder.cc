#include "workers/train/job/job_folder.h"

#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "scheduler/base/io/model_dir.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/files/posix_file_system.h"

namespace switchyard::train {

absl::StatusOr<std::unique_ptr<checkpoint::FileSystem>> OpenJobFolder(const std::string& checkpoint_root,
                                                                      const std::string& job_id) {
  RETURN_IF_ERROR(CheckPlainName(job_id));
  ASSIGN_OR_RETURN(const RootDir root, RootDir::Open(checkpoint_root, kCheckpointRoot));
  RETURN_IF_ERROR(root.MakeFolders(job_id));
  // No link that leads out.
  ASSIGN_OR_RETURN(const int fd, root.OpenFolder(job_id));
  close(fd);
  // The name is to outlive a crash as what will be in it does.
  ASSIGN_OR_RETURN(const std::unique_ptr<checkpoint::FileSystem> above,
                   checkpoint::OpenPosixFileSystem(checkpoint_root));
  RETURN_IF_ERROR(above->SyncFolder(""));
  return checkpoint::OpenPosixFileSystem(absl::StrCat(checkpoint_root, "/", job_id));
}

}  // namespace switchyard::train
