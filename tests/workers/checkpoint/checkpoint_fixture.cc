#include "tests/workers/checkpoint/checkpoint_fixture.h"

#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "scheduler/base/status_macros.h"
#include "workers/checkpoint/files/write_files.h"
#include "workers/checkpoint/safetensors/shard_table.h"

namespace switchyard::checkpoint {
namespace {

constexpr int kTensors = 5;  // of the model, shared out over ranks

float ValueOf(int64_t step, int tensor, int i) { return static_cast<float>(1000 * step + 10 * tensor + i); }

std::string BytesOf(int64_t step, int tensor) {
  std::string bytes;
  for (int i = 0; i <= tensor; ++i) {
    const float value = ValueOf(step, tensor, i);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

TensorToWrite Tensor(int64_t step, int tensor, const char* suffix) {
  return {absl::StrCat("layers.", tensor, suffix), DType::kF32, {tensor + 1}, [step, tensor](ByteSink sink) {
            return sink(BytesOf(step, tensor));
          }};
}

std::vector<CheckpointFile> FilesOf(int64_t step, int rank, int world) {
  CheckpointFile model{absl::StrCat("model-0000", rank + 1, "-of-0000", world, ".safetensors"), {}, {}};
  CheckpointFile optimizer{absl::StrCat("optimizer-rank0000", rank, ".safetensors"), {}, {}};
  for (int tensor = rank; tensor < kTensors; tensor += world) {
    model.tensors.push_back(Tensor(step, tensor, ".weight"));
    optimizer.tensors.push_back(Tensor(step, tensor, ".weight.exp_avg"));
  }
  std::vector<CheckpointFile> files = {std::move(model), std::move(optimizer)};
  if (rank == 0) files.push_back({"trainer_state.json", {}, absl::StrCat("{\"step\":", step, "}")});
  return files;
}

testing::AssertionResult HoldsTensors(FileSystem* files, const FoundCheckpoint& found, const char* prefix,
                                      const char* suffix) {
  const absl::StatusOr<ShardTable> table = ShardTable::Open(files, found.folder, found.manifest, prefix);
  if (!table.ok()) return testing::AssertionFailure() << table.status();
  if (table->names().size() != kTensors) return testing::AssertionFailure() << table->names().size() << " tensors";
  for (int tensor = 0; tensor < kTensors; ++tensor) {
    const auto place = table->Find(absl::StrCat("layers.", tensor, suffix));
    if (!place.has_value()) return testing::AssertionFailure() << "no tensor " << tensor << suffix;
    std::string bytes(static_cast<size_t>(place->entry.bytes), '\0');
    const absl::Status status = table->Read(*place, 0, absl::MakeSpan(bytes.data(), bytes.size()));
    if (!status.ok()) return testing::AssertionFailure() << status;
    if (bytes != BytesOf(found.manifest.step, tensor)) {
      return testing::AssertionFailure() << "tensor " << tensor << suffix << " of step " << found.manifest.step;
    }
  }
  return testing::AssertionSuccess();
}

}  // namespace

absl::Status SaveStep(FileSystem* files, CheckpointWriter* writer, int64_t step, int world, int64_t kept_step) {
  Manifest manifest;
  manifest.step = step;
  manifest.saved_by = {world, 3, "avx2", "0.1", "fp32"};
  int64_t needed = 0;
  for (int rank = 0; rank < world; ++rank) {
    int64_t bytes = 0;
    ASSIGN_OR_RETURN(bytes, BytesOfFiles(FilesOf(step, rank, world)));
    needed += bytes;
  }
  std::string folder;
  ASSIGN_OR_RETURN(folder, writer->Begin(step, needed));
  for (int rank = 0; rank < world; ++rank) {
    std::vector<FileRecord> records;
    ASSIGN_OR_RETURN(records, WriteFiles(files, folder, FilesOf(step, rank, world)));
    // As they would travel to the leader.
    ASSIGN_OR_RETURN(records, DecodeFileRecords(EncodeFileRecords(records)));
    for (FileRecord& record : records) manifest.files.push_back(std::move(record));
  }
  return writer->Commit(std::move(manifest), kept_step);
}

absl::Status SaveSteps(FileSystem* files, const CheckpointWriterOptions& options, const std::vector<int64_t>& steps) {
  std::unique_ptr<CheckpointWriter> writer;
  ASSIGN_OR_RETURN(writer, CheckpointWriter::Open(files, options));
  for (const int64_t step : steps) RETURN_IF_ERROR(SaveStep(files, writer.get(), step));
  return absl::OkStatus();
}

testing::AssertionResult HoldsItsStep(FileSystem* files, const FoundCheckpoint& found) {
  if (testing::AssertionResult model = HoldsTensors(files, found, "model-", ".weight"); !model) return model;
  if (testing::AssertionResult moments = HoldsTensors(files, found, "optimizer-", ".weight.exp_avg"); !moments) {
    return moments;
  }
  const auto state = ReadWholeFile(files, absl::StrCat(found.folder, "/trainer_state.json"), 100);
  if (!state.ok()) return testing::AssertionFailure() << state.status();
  if (*state == absl::StrCat("{\"step\":", found.manifest.step, "}")) return testing::AssertionSuccess();
  return testing::AssertionFailure() << *state;
}

}  // namespace switchyard::checkpoint
