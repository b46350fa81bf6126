#include "server/jobs/pack/packer.h"

#include <deque>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/io/root_dir.h"
#include "scheduler/base/io/unique_fd.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/job_spec.h"
#include "server/jobs/pack/document.h"
#include "server/jobs/pack/encoder_pool.h"
#include "server/jobs/pack/token_header.h"
#include "server/jobs/pack/token_writer.h"
#include "server/text/model_files.h"

namespace switchyard::server {
namespace {

constexpr absl::Duration kProgressEvery = absl::Milliseconds(250);
constexpr int kTasksPerThread = 3;  // one being encoded, the others waiting

constexpr char kDatasetRoot[] = "the dataset root", kCheckpointRoot[] = "the checkpoint root";

absl::StatusOr<RootDir> OpenRoot(const std::string& path, const char* name) {
  if (path.empty()) return absl::FailedPreconditionError(absl::StrCat("this server has no directory as ", name));
  return RootDir::Open(path, name);
}

absl::Status CheckRequest(const PackRequest& request) {
  if (request.inputs.empty()) return absl::InvalidArgumentError("inputs: none");
  if (request.inputs.size() > jobs::kMaxDatasets) {
    return absl::InvalidArgumentError(
        absl::StrCat("inputs: ", request.inputs.size(), " files, limit ", jobs::kMaxDatasets));
  }
  const auto check = [](const std::string& path, const char* suffix, const char* root) {
    RETURN_IF_ERROR(jobs::CheckRelativePath(path, root));
    if (absl::EndsWith(path, suffix)) return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(Quote(path), " does not end in ", suffix));
  };
  for (const std::string& input : request.inputs) RETURN_IF_ERROR(check(input, ".jsonl", kDatasetRoot));
  const bool datasets = request.output_root == PackRoot::kDatasets;
  return check(request.output, ".bin", datasets ? kDatasetRoot : kCheckpointRoot);
}

// Returns the inputs' bytes in all, or the error of the first that cannot be opened.
absl::StatusOr<int64_t> Measure(const RootDir& root, const std::vector<std::string>& inputs) {
  int64_t bytes = 0;
  for (const std::string& input : inputs) {
    ASSIGN_OR_RETURN(const int opened, root.OpenFile(input));
    const UniqueFd fd(opened);
    struct stat st = {};
    if (fstat(fd.get(), &st) == 0) bytes += st.st_size;
  }
  return bytes;
}

// Counts the tokens of token files, which were valid when the job was submitted.
absl::StatusOr<int64_t> CountTokens(const RootDir& root, const std::vector<std::string>& names) {
  int64_t tokens = 0;
  for (const std::string& name : names) {
    const absl::StatusOr<jobs::TokenFileHeader> header = ReadTokenHeader(root, name);
    if (absl::IsInvalidArgument(header.status())) {
      return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DATASET_CHANGED, header.status().message());
    }
    RETURN_IF_ERROR(header.status());
    tokens += header->num_tokens;
  }
  return tokens;
}

// Whether the first line of a file is a pair; false where it is none, which packing then says.
absl::StatusOr<bool> BeginsWithPair(const RootDir& root, const std::string& name, int64_t max_line_bytes) {
  ASSIGN_OR_RETURN(const int opened, root.OpenFile(name));
  const UniqueFd fd(opened);
  ASSIGN_OR_RETURN(BlockReader reader, BlockReader::Create(fd.get(), name, max_line_bytes));
  for (;;) {
    const absl::StatusOr<LineBlock> block = reader.Next();
    if (!block.ok() || block->bytes.empty()) return false;
    std::optional<bool> found;
    const absl::Status visited = VisitLines(name, *block, max_line_bytes, [&](absl::string_view line) -> absl::Status {
      const absl::StatusOr<Document> document = ParseDocument(line);
      found = document.ok() && document->kind == DocumentKind::kPair;
      return absl::CancelledError("one line is enough");
    });
    if (found.has_value() || !visited.ok()) return found.value_or(false);
  }
}

// One call of Pack.
class Packing {
 public:
  Packing(const DocumentEncoder& encoder, int num_threads, TokenWriter* writer, bool pairs, int64_t total_bytes,
          absl::FunctionRef<bool(int64_t, int64_t)> progress)
      : pool_(encoder, num_threads),
        most_tasks_(static_cast<size_t>(num_threads * kTasksPerThread)),
        writer_(writer),
        pairs_(pairs),
        total_bytes_(total_bytes),
        progress_(progress) {}

  absl::Status AppendFile(const RootDir& root, const std::string& input, int64_t max_line_bytes) {
    ASSIGN_OR_RETURN(const int opened, root.OpenFile(input));
    const UniqueFd fd(opened);
    ASSIGN_OR_RETURN(BlockReader reader, BlockReader::Create(fd.get(), input, max_line_bytes));
    const int64_t documents = writer_->num_documents();
    for (;;) {
      absl::StatusOr<LineBlock> block = reader.Next();
      if (!block.ok()) {
        RETURN_IF_ERROR(FinishTasks(0));  // an error in an earlier line comes first
        return block.status();
      }
      if (block->bytes.empty()) break;
      tasks_.push_back(std::make_unique<EncodeTask>(
          EncodeTask{.name = input, .block = *std::move(block), .max_line_bytes = max_line_bytes, .pairs = pairs_}));
      pool_.Post(tasks_.back().get());
      RETURN_IF_ERROR(FinishTasks(most_tasks_ - 1));
    }
    RETURN_IF_ERROR(FinishTasks(0));
    if (writer_->num_documents() > documents) return absl::OkStatus();
    return NoDocumentsError(input);
  }

  absl::Status Report() const {
    if (progress_(done_bytes_, std::max(total_bytes_, done_bytes_))) return absl::OkStatus();
    return absl::CancelledError("packing is no longer wanted");
  }
  int64_t done_bytes() const { return done_bytes_; }

 private:
  // Finishes the oldest tasks until at most `left` are under way.
  absl::Status FinishTasks(size_t left) {
    while (tasks_.size() > left) {
      const EncodeTask& task = *tasks_.front();
      while (!pool_.Wait(&task, kProgressEvery)) RETURN_IF_ERROR(Report());
      RETURN_IF_ERROR(task.status);
      RETURN_IF_ERROR(writer_->Append(task.tokens));
      done_bytes_ += static_cast<int64_t>(task.block.bytes.size());
      tasks_.pop_front();
      RETURN_IF_ERROR(Report());
    }
    return absl::OkStatus();
  }

  std::deque<std::unique_ptr<EncodeTask>> tasks_;  // oldest first; outlive the pool
  EncoderPool pool_;
  const size_t most_tasks_;
  TokenWriter* const writer_;
  const bool pairs_;
  const int64_t total_bytes_;
  const absl::FunctionRef<bool(int64_t, int64_t)> progress_;
  int64_t done_bytes_ = 0;
};

}  // namespace

absl::StatusOr<DocumentEncoder> Packer::Encoder(const std::string& folder) const {
  if (folder.empty()) {
    if (options_.tokenizer == nullptr) {
      return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_TOKENIZER,
                            "tokenizer: the served model has none; name a folder of the checkpoint root that has one");
    }
    ASSIGN_OR_RETURN(const ModelDir dir, text::OpenModelFiles(options_.model, /*tokenizer=*/false));
    return DocumentEncoder::Borrow(dir, options_.model, options_.tokenizer, options_.chat_template);
  }
  RETURN_IF_ERROR(jobs::CheckRelativePath(folder, kCheckpointRoot));
  ASSIGN_OR_RETURN(const RootDir root, OpenRoot(options_.checkpoint_root, kCheckpointRoot));
  const absl::StatusOr<ModelDir> dir = ModelDir::Beneath(root, folder);
  if (!dir.ok()) return absl::Status(dir.status().code(), absl::StrCat("tokenizer: ", dir.status().message()));
  return DocumentEncoder::Load(*dir, folder);
}

absl::StatusOr<PackedData> Packer::Pack(const PackRequest& request,
                                        absl::FunctionRef<bool(int64_t, int64_t)> progress) {
  RETURN_IF_ERROR(CheckRequest(request));
  ASSIGN_OR_RETURN(const RootDir datasets, OpenRoot(options_.dataset_root, kDatasetRoot));
  const bool beside = request.output_root == PackRoot::kDatasets;
  ASSIGN_OR_RETURN(const RootDir outputs, OpenRoot(beside ? options_.dataset_root : options_.checkpoint_root,
                                                   beside ? kDatasetRoot : kCheckpointRoot));
  ASSIGN_OR_RETURN(const int64_t total_bytes, Measure(datasets, request.inputs));
  ASSIGN_OR_RETURN(const int64_t counted_tokens, CountTokens(datasets, request.counted));
  ASSIGN_OR_RETURN(const DocumentEncoder encoder, Encoder(request.tokenizer));
  bool pairs = request.pairs.value_or(false);
  if (!request.pairs.has_value()) {
    ASSIGN_OR_RETURN(pairs, BeginsWithPair(datasets, request.inputs.front(), options_.max_line_bytes));
  }
  const size_t slash = request.output.rfind('/');
  const bool in_root = slash == std::string::npos;
  const std::string folder = in_root ? "." : request.output.substr(0, slash);
  if (!in_root) RETURN_IF_ERROR(outputs.MakeFolders(folder));
  ASSIGN_OR_RETURN(const int folder_fd, outputs.OpenFolder(folder));
  ASSIGN_OR_RETURN(std::unique_ptr<TokenWriter> writer,
                   TokenWriter::Create(UniqueFd(folder_fd), {.name = request.output.substr(in_root ? 0 : slash + 1),
                                                             .path = request.output,
                                                             .replace = request.replace,
                                                             .vocab_size = encoder.tokenizer().id_end(),
                                                             .tokenizer = encoder.tokenizer().file_hash(),
                                                             .pairs = pairs}));
  Packing packing(encoder, options_.num_threads, writer.get(), pairs, total_bytes, progress);
  RETURN_IF_ERROR(packing.Report());
  for (const std::string& input : request.inputs) {
    RETURN_IF_ERROR(packing.AppendFile(datasets, input, options_.max_line_bytes));
  }
  RETURN_IF_ERROR(writer->Finish([&packing] { return packing.Report(); }));
  return PackedData{.documents = writer->num_documents(),
                    .tokens = writer->num_tokens(),
                    .trained_tokens = writer->num_trained(),
                    .bytes = packing.done_bytes(),
                    .counted_tokens = counted_tokens};
}

}  // namespace switchyard::server
