#include "scheduler/base/io/input_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "scheduler/base/status_macros.h"

namespace switchyard {

absl::StatusOr<InputFile> InputFile::Open(const ModelDir& dir, const std::string& name) {
  ASSIGN_OR_RETURN(const int fd, dir.OpenFile(name));
  struct stat st = {};
  fstat(fd, &st);
  InputFile file(name, fd, st.st_size, int64_t{st.st_mtim.tv_sec} * 1'000'000'000 + st.st_mtim.tv_nsec);
  if (file.size_ > kMaxLfsPointer) return file;
  std::string whole(static_cast<size_t>(file.size_), '\0');
  RETURN_IF_ERROR(file.Read(0, file.size_, whole.data()));
  if (IsLfsPointer(whole)) return absl::InvalidArgumentError(kLfsAdvice);
  return file;
}

absl::Status InputFile::Read(int64_t begin, int64_t bytes, void* to) const {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t n = pread(fd_.get(), static_cast<char*>(to) + done, static_cast<size_t>(bytes - done), begin + done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0)
      return absl::UnavailableError(absl::StrCat(name_, ": reading at ", begin + done, ": ", std::strerror(errno)));
    if (n == 0) {
      return absl::DataLossError(absl::StrCat(name_, ": ends at byte ", begin + done, ", expected ", begin + bytes,
                                              "; it became shorter while it was read"));
    }
    done += n;
  }
  return absl::OkStatus();
}

}  // namespace switchyard
