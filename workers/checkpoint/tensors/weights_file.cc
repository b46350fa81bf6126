#include "workers/checkpoint/tensors/weights_file.h"

#include "absl/strings/str_cat.h"
#include "scheduler/base/text/quote.h"
#include "workers/checkpoint/safetensors/safetensors_header.h"

namespace switchyard::checkpoint {

absl::StatusOr<std::unique_ptr<WeightsFile>> WeightsFile::OpenSafetensors(const ModelDir& dir,
                                                                          const std::string& name) {
  const std::string shard = absl::StrCat("shard ", Excerpt(name));
  absl::StatusOr<InputFile> file = InputFile::Open(dir, name);
  if (!file.ok()) return InFile(shard, file.status());
  std::string header;
  absl::StatusOr<std::vector<NamedTensor>> tensors = ReadSafetensorsHeader(
      file->size(),
      [&](int64_t begin, absl::Span<char> to) { return file->Read(begin, static_cast<int64_t>(to.size()), to.data()); },
      &header);
  if (!tensors.ok()) return InFile(shard, tensors.status());
  return std::make_unique<WeightsFile>(*std::move(file), std::move(header), *std::move(tensors));
}

}  // namespace switchyard::checkpoint
