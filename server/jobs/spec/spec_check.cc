#include "server/jobs/spec/spec_check.h"

#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "proto/support/errors.h"
#include "scheduler/base/log.h"
#include "scheduler/base/status_macros.h"
#include "scheduler/jobs/token_format.h"
#include "server/jobs/job_folder.h"
#include "server/jobs/pack/document_encoder.h"
#include "server/jobs/pack/text_check.h"
#include "server/jobs/pack/token_header.h"
#include "server/jobs/spec/job_bytes.h"

namespace switchyard::server {
namespace {

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr absl::string_view kDatasets = "datasets", kEvaluation = "evaluation";  // lists of a spec
constexpr int64_t kMaxScannedBytes = 64 << 20;  // of tokens or text, over all files of a list
constexpr int64_t kMaxEncodedBytes = 1 << 20;   // of text, likewise; at least kLeastEncodedBytes of each file
constexpr int64_t kLeastEncodedBytes = 16 << 10;

// Keeps the reason and the place (VisitLines) of an error that has them.
absl::Status BadFile(absl::string_view field, const absl::Status& status) {
  const v1::ErrorReason own = rpc::ReasonOf(status);
  const v1::ErrorReason reason = own == v1::ERROR_REASON_UNSPECIFIED ? v1::BAD_FILE : own;
  const std::string message = absl::StrCat(field, ": ", status.message()), name(field);
  google::rpc::ErrorInfo info;
  const google::rpc::Status wire = rpc::ToRpcStatus(status);
  for (const google::protobuf::Any& detail : wire.details()) {
    if (detail.UnpackTo(&info)) break;
  }
  if (info.metadata().count("line") == 0) return rpc::MakeError(status.code(), reason, message, {{"field", name}});
  const auto& place = info.metadata();
  return rpc::MakeError(
      status.code(), reason, message,
      {{"field", name}, {"file", place.at("file")}, {"line", place.at("line")}, {"byte", place.at("byte")}});
}

// Facts about all files of a list together.
struct DataFacts {
  bool text_is_packed = false;  // the job has its tokens already
  bool text = false;            // some files are text; their tokens are counted when they are packed
  int64_t tokens = 0;           // of the .bin files
  bool has_target = false;      // some .bin file has a target
};

absl::Status CheckPairs(const jobs::JobSpec& spec, const std::string& name, const jobs::TokenFileHeader& header) {
  if (header.pairs == spec.has_pairs()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      Quote(name), header.pairs ? ": has pairs of answers, which only a job with dpo trains on (--dpo_beta)"
                                : ": has no pairs of answers, which a job with dpo wants"));
}

absl::Status NoFittingPair(const jobs::JobSpec& spec, absl::string_view which) {
  return absl::InvalidArgumentError(absl::StrCat(which, " fits into sequence_length ", spec.sequence_length,
                                                 ", which has to hold the prompt twice and both answers"));
}

// Why files have nothing to train on, or to evaluate with.
absl::Status NoTarget(const jobs::JobSpec& spec, size_t files, int64_t tokens) {
  if (!spec.has_pairs()) return jobs::NoTargetError(files, tokens, spec.sequence_length);
  return NoFittingPair(spec, absl::StrCat("none of the pairs of answers in ", files, files == 1 ? " file" : " files"));
}

// Where files are, and what they are checked by.
struct DataCheck {
  const RootDir& root;
  int64_t vocab = 0;
  const DocumentEncoder* encoder = nullptr;  // null: all text is packed
  const std::function<bool()>* cancelled = nullptr;
};

// files: indices into the list of those that are checked: all, or those of one set of evaluation.
absl::Status CheckData(const jobs::JobSpec& spec, absl::string_view list, const std::vector<size_t>& files,
                       const DataCheck& by, DataFacts* facts) {
  const bool evaluation = list == kEvaluation;
  const std::vector<std::string>& names = evaluation ? spec.evaluation : spec.datasets;
  const bool weighted = !evaluation && !spec.dataset_weights.empty();
  const jobs::TargetSearch search = jobs::TargetSearchOf(spec);
  const auto share = kMaxScannedBytes / std::max<int64_t>(1, static_cast<int64_t>(names.size()));
  const TextCheck text = {.encoder = by.encoder,
                          .cancelled = by.cancelled,
                          .read_bytes = share,
                          .pairs = spec.has_pairs(),
                          .encoded_bytes = std::max(share * kMaxEncodedBytes / kMaxScannedBytes, kLeastEncodedBytes)};
  for (const size_t i : files) {
    const std::string field = absl::StrCat("spec.", list, "[", i, "]");
    if (jobs::IsText(names[i])) {
      if (!facts->text_is_packed) {
        const absl::Status status = CheckTextFile(by.root, names[i], text);
        if (absl::IsCancelled(status)) return status;
        if (!status.ok()) return BadFile(field, status);
      }
      facts->text = true;
      continue;
    }
    const absl::StatusOr<jobs::TokenFileHeader> header = ReadTokenHeader(by.root, names[i]);
    if (!header.ok()) return BadFile(field, header.status());
    if (const absl::Status kind = CheckPairs(spec, names[i], *header); !kind.ok()) return BadFile(field, kind);
    if (header->vocab_size > by.vocab) {
      return BadFile(field, absl::InvalidArgumentError(absl::StrCat(Quote(names[i]), ": made for a vocabulary of ",
                                                                    header->vocab_size, ", the model has ", by.vocab)));
    }
    if (weighted && !spec.has_pairs() && !jobs::HasWindow(spec, header->num_tokens, header->num_documents)) {
      return BadFile(field, jobs::NoWindowError(Quote(names[i]), header->num_tokens, spec.sequence_length));
    }
    const absl::Status inside = ScanTokens(by.root, names[i], *header, by.vocab, share);
    if (!inside.ok()) return BadFile(field, inside);
    facts->tokens += header->num_tokens;
    if (spec.has_pairs()) {
      const absl::StatusOr<bool> fits = ReadHasFittingPair(by.root, names[i], *header, spec.sequence_length, share);
      if (!fits.ok()) return BadFile(field, fits.status());
      if (!*fits && weighted)
        return BadFile(field, NoFittingPair(spec, absl::StrCat(Quote(names[i]),
                                                               " has a weight, but none of its pairs of answers")));
      facts->has_target = facts->has_target || *fits;  // each answer has a token
      continue;
    }
    if (facts->has_target) continue;
    const absl::StatusOr<bool> found = ReadHasTarget(by.root, names[i], *header, search);
    if (!found.ok()) return BadFile(field, found.status());
    facts->has_target = *found;
  }
  return absl::OkStatus();
}

absl::Status CheckDatasets(const jobs::JobSpec& spec, const DataCheck& by, bool text_is_packed) {
  DataFacts data = {.text_is_packed = text_is_packed};
  std::vector<size_t> all(spec.datasets.size());
  std::iota(all.begin(), all.end(), size_t{0});
  RETURN_IF_ERROR(CheckData(spec, kDatasets, all, by, &data));
  const int64_t batch = spec.batch_sequences * spec.sequence_length + 1;
  // (Otherwise a window may have few tokens; workers count windows before step 1.)
  const bool needs_batch = spec.packing == jobs::WindowPacking::kConcatenate && spec.dataset_weights.empty();
  if (needs_batch && !data.text && data.tokens < batch) {
    return BadFile("spec.datasets", absl::InvalidArgumentError(
                                        absl::StrCat("dataset has ", data.tokens, " tokens, batch needs ", batch)));
  }
  // (For text this is checked when it is packed.)
  if (data.text || data.has_target) return absl::OkStatus();
  return BadFile("spec.datasets", NoTarget(spec, spec.datasets.size(), data.tokens));
}

absl::Status CheckEvaluation(const jobs::JobSpec& spec, const DataCheck& by, bool text_is_packed) {
  for (const jobs::EvaluationSet& set : jobs::EvaluationSetsOf(spec)) {
    DataFacts facts = {.text_is_packed = text_is_packed};
    RETURN_IF_ERROR(CheckData(spec, kEvaluation, set.files, by, &facts));
    if (facts.text || facts.has_target) continue;
    const absl::Status none = NoTarget(spec, set.files.size(), facts.tokens);
    const bool several = set.files.size() < spec.evaluation.size();
    return BadFile("spec.evaluation",
                   absl::Status(none.code(), absl::StrCat(several ? absl::StrCat("set ", Quote(set.name), ": ") : "",
                                                          none.message())));
  }
  return absl::OkStatus();
}

std::string Counted(int64_t count, absl::string_view noun) {
  return absl::StrCat(count, " ", noun, count == 1 ? "" : "s");
}

absl::Status CheckExperts(const jobs::JobSpec& spec, const TrainedModelFacts& facts, absl::string_view field) {
  const int64_t most = facts.experts * jobs::FirstPacking(spec.communication);
  if (most >= spec.workers) return absl::OkStatus();
  return rpc::BadField(
      field,
      absl::StrCat(Counted(spec.workers, "worker"), ", but a layer has ", Counted(facts.experts, "expert"),
                   ", and each worker needs at least one of them; ", "at most ", Counted(most, "worker")),
      absl::StrCat(most), absl::StrCat(spec.workers));
}

absl::Status CheckFits(const jobs::JobSpec& spec, const TrainedModelFacts& facts) {
  if (spec.sequence_length > facts.context) {
    return rpc::BadField("spec.sequence_length",
                         absl::StrCat(spec.sequence_length, " is beyond the model's context of ", facts.context),
                         absl::StrCat(facts.context), absl::StrCat(spec.sequence_length));
  }
  RETURN_IF_ERROR(CheckExperts(spec, facts, "spec.workers"));
  if (spec.balance_bias_rate > 0 && !facts.router_bias) {
    return rpc::BadField("spec.balance_bias_rate",
                         absl::StrCat(spec.balance_bias_rate, ", but this ", facts.architecture,
                                      " has no router bias (config.json: topk_method is not noaux_tc)"),
                         "0", absl::StrCat(spec.balance_bias_rate));
  }
  return absl::OkStatus();
}

absl::Status CheckRoom(const jobs::JobSpec& spec, const TrainedModelFacts& facts, const RootDir& root) {
  ASSIGN_OR_RETURN(const int fd, root.OpenFolder("."));
  struct statvfs disk = {};
  const bool known = fstatvfs(fd, &disk) == 0;
  close(fd);
  const double wanted = CheckpointBytes(spec, facts);
  const double available = static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize);
  if (!known || wanted <= available) return absl::OkStatus();
  const auto bytes = [](double value) { return absl::StrCat(static_cast<int64_t>(std::min(value, 9e18))); };
  return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::DISK_FULL,
                        absl::StrCat("spec.checkpoints: about ", bytes(wanted), " bytes of checkpoints, ",
                                     bytes(available), " bytes are free in the checkpoint root"),
                        {{"field", "spec.checkpoints"}, {"limit", bytes(available)}, {"actual", bytes(wanted)}});
}

bool HasText(const jobs::JobSpec& spec) {
  return std::any_of(spec.datasets.begin(), spec.datasets.end(), jobs::IsText) ||
         std::any_of(spec.evaluation.begin(), spec.evaluation.end(), jobs::IsText);
}

absl::Status CheckModelFolder(const jobs::JobSpec& spec, const RootDir& root, absl::string_view field,
                              const std::string& folder) {
  const absl::StatusOr<int> fd = root.OpenFolder(folder);
  if (!fd.ok()) return BadFile(field, fd.status());
  close(*fd);
  if (!spec.base_checkpoint.empty() && !root.HasFile(folder + "/model.safetensors") &&
      !root.HasFile(folder + "/model.safetensors.index.json")) {
    if (root.HasFile(folder + "/adapter_config.json")) {
      return BadFile(field, absl::InvalidArgumentError(
                                absl::StrCat(Quote(folder),
                                             ": has adapters of a model (adapter_config.json), but not the model "
                                             "itself; to train them further fork their job (train fork)")));
    }
    return BadFile(field, absl::NotFoundError(absl::StrCat(
                              Quote(folder), ": has neither model.safetensors nor model.safetensors.index.json")));
  }
  if (HasText(spec) && !root.HasFile(folder + "/tokenizer.json")) {
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::NO_TOKENIZER,
                          absl::StrCat(field, ": ", Quote(folder), " has no tokenizer.json, which .jsonl data wants"),
                          {{"field", std::string(field)}});
  }
  return absl::OkStatus();
}

// The model's folder and the spec's field that names it.
struct ModelFolder {
  std::string field, folder;
};
ModelFolder ModelFolderOf(const jobs::JobSpec& spec) {
  return {spec.base_checkpoint.empty() ? "spec.architecture" : "spec.base_checkpoint", jobs::ModelFolder(spec)};
}

// Converts the refusal of the workers' program to the API's error.
absl::Status Refusal(const ModelFolder& model, const absl::Status& said) {
  if (absl::IsResourceExhausted(said) || absl::IsFailedPrecondition(said)) {  // not the model, but this machine
    return rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::TOO_FEW_WORKERS,
                          absl::StrCat("spec: ", said.message()), {{"field", "spec"}});
  }
  if (absl::StartsWith(said.message(), "parameters")) {  // (parameter_rules.h)
    return rpc::MakeError(said.code(), v1::BAD_FIELD,
                          absl::StrCat("spec.", said.message(), "; the model is ", Quote(model.folder)),
                          {{"field", "spec.parameters"}});
  }
  if (absl::IsNotFound(said)) return BadFile(model.field, said);
  return BadFile(model.field, absl::InvalidArgumentError(absl::StrCat(Quote(model.folder), ": ", said.message())));
}

absl::StatusOr<TrainedModelFacts> ReadFacts(const jobs::JobSpec& spec, const ModelFolder& model,
                                            const RootDir& checkpoints, const CheckModelFn& check_model) {
  if (check_model) {
    const absl::StatusOr<TrainedModelFacts> said = check_model(spec);
    if (said.ok()) return said;
    if (!absl::IsUnavailable(said.status())) return Refusal(model, said.status());
    LogWarn(model.field, ": ", Quote(model.folder),
            " is checked by a few keys of its config.json alone: ", said.status().message());
  }
  const absl::StatusOr<std::string> config = checkpoints.ReadSmallFile(model.folder + "/config.json", kMaxConfigBytes);
  if (!config.ok()) return BadFile(model.field, config.status());
  const absl::StatusOr<TrainedModelFacts> facts = ReadModelFacts(*config);
  if (!facts.ok()) return BadFile(model.field, facts.status());
  return *facts;
}

// The encoder that packs the job's text.
absl::StatusOr<DocumentEncoder> LoadEncoder(const ModelFolder& model, const RootDir& checkpoints,
                                            const TrainedModelFacts& facts) {
  const absl::StatusOr<ModelDir> dir = ModelDir::Beneath(checkpoints, model.folder);
  if (!dir.ok()) return BadFile(model.field, dir.status());
  absl::StatusOr<DocumentEncoder> encoder = DocumentEncoder::Load(*dir, model.folder);
  if (!encoder.ok()) return BadFile(model.field, encoder.status());
  if (const int64_t ids = encoder->tokenizer().id_end(); ids > facts.vocab) {
    return BadFile(model.field,
                   absl::InvalidArgumentError(absl::StrCat(Quote(model.folder), ": its tokenizer has ids below ", ids,
                                                           ", the model's vocab_size is ", facts.vocab)));
  }
  return encoder;
}

}  // namespace

absl::StatusOr<double> CheckSpecFiles(const jobs::JobSpec& spec, const RootDir& datasets, const RootDir& checkpoints,
                                      const CheckModelFn& check_model, const std::function<bool()>& cancelled,
                                      int32_t files_ready) {
  const ModelFolder model = ModelFolderOf(spec);
  RETURN_IF_ERROR(CheckModelFolder(spec, checkpoints, model.field, model.folder));
  ASSIGN_OR_RETURN(TrainedModelFacts facts, ReadFacts(spec, model, checkpoints, check_model));
  RETURN_IF_ERROR(CheckFits(spec, facts));
  // (Text of datasets with weights is packed one by one, before that of evaluation.)
  const auto packs =
      spec.dataset_weights.empty()
          ? 1
          : static_cast<int32_t>(std::count_if(spec.datasets.begin(), spec.datasets.end(), jobs::IsText));
  const auto sets = static_cast<int32_t>(jobs::EvaluationSetsOf(spec).size());
  std::optional<DocumentEncoder> encoder;
  if (HasText(spec) && files_ready < packs + sets) {
    ASSIGN_OR_RETURN(encoder, LoadEncoder(model, checkpoints, facts));
  }
  const DataCheck by = {datasets, facts.vocab, encoder.has_value() ? &*encoder : nullptr, &cancelled};
  RETURN_IF_ERROR(CheckDatasets(spec, by, files_ready >= packs));
  RETURN_IF_ERROR(CheckEvaluation(spec, by, files_ready >= packs + sets));
  RETURN_IF_ERROR(CheckRoom(spec, facts, checkpoints));
  if (cancelled && cancelled()) return absl::CancelledError("the check of the job is no longer wanted");
  return JobBytes(spec, facts, ReadDataBytes(spec, datasets, files_ready >= packs, files_ready >= packs + sets));
}

absl::Status KeepBase(const jobs::JobSpec& spec, const RootDir& checkpoints) {
  const ModelFolder model = ModelFolderOf(spec);
  const absl::Status kept = KeepCheckpoint(checkpoints, model.folder);
  if (absl::IsNotFound(kept)) return BadFile(model.field, kept);
  if (!kept.ok()) LogWarn(model.field, ": ", Quote(model.folder), ": its job may remove it: ", kept.message());
  return absl::OkStatus();
}

absl::Status CheckWorkersOfModel(const jobs::JobSpec& spec, const RootDir& checkpoints,
                                 const CheckModelFn& check_model) {
  ASSIGN_OR_RETURN(TrainedModelFacts facts, ReadFacts(spec, ModelFolderOf(spec), checkpoints, check_model));
  return CheckExperts(spec, facts, "workers");
}

}  // namespace switchyard::server
