#include "server/jobs/fork/fork_spec.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "google/protobuf/util/field_mask_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "proto/link/job_spec_codec.h"
#include "proto/support/errors.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/api/job_convert.h"

namespace switchyard::server {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::FieldMask;
using google::protobuf::util::FieldMaskUtil;

// Adds the paths of all fields that are set, those of inner messages singly.
void AddSetFields(const google::protobuf::Message& message, const std::string& prefix, FieldMask* mask) {
  std::vector<const FieldDescriptor*> fields;
  message.GetReflection()->ListFields(message, &fields);
  for (const FieldDescriptor* field : fields) {
    const std::string path = absl::StrCat(prefix, field->name());
    if (field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE && !field->is_repeated()) {
      AddSetFields(message.GetReflection()->GetMessage(message, field), absl::StrCat(path, "."), mask);
    } else {
      mask->add_paths(path);
    }
  }
}

// The checkpoint has tensors of one model in one data type.
absl::Status CheckForm(const v1::JobSpec& parent, const v1::JobSpec& wanted) {
  const auto check = [](const char* field, const std::string& was, const std::string& is) {
    if (was == is) return absl::OkStatus();
    return rpc::BadField(absl::StrCat("spec.", field),
                         absl::StrCat("the parent's is ", was, ", wanted is ", is,
                                      ": a fork has its parent's model and precision, as its checkpoint has"),
                         was, is);
  };
  RETURN_IF_ERROR(check("base_checkpoint", Quote(parent.base_checkpoint()), Quote(wanted.base_checkpoint())));
  RETURN_IF_ERROR(check("architecture", Quote(parent.architecture()), Quote(wanted.architecture())));
  RETURN_IF_ERROR(
      check("precision", v1::TrainPrecision_Name(parent.precision()), v1::TrainPrecision_Name(wanted.precision())));
  // (Label smoothing without beta is another problem, which Validate names.)
  const auto has_pairs = [](const v1::JobSpec& spec) { return spec.dpo().beta() != 0; };
  if (has_pairs(parent) != has_pairs(wanted)) {
    const auto text = [&](const v1::JobSpec& spec) { return has_pairs(spec) ? "dpo" : "no dpo"; };
    return rpc::BadField("spec.dpo",
                         absl::StrCat("the parent has ", text(parent), ", the fork has ", text(wanted),
                                      ": a fork trains as its parent does; begin a new job with the parent's "
                                      "checkpoint as its base_checkpoint"),
                         text(parent), text(wanted));
  }
  // (Rates, decays and dropout may be others.)
  const auto trained = [](const v1::JobSpec& spec) {
    v1::JobSpec part;
    *part.mutable_parameters() = spec.parameters();
    for (v1::ParameterRule& rule : *part.mutable_parameters()) {
      rule.clear_rate();
      rule.clear_weight_decay();
    }
    if (spec.has_lora()) *part.mutable_lora() = spec.lora();
    if (spec.has_lora()) part.mutable_lora()->clear_dropout();
    return part;
  };
  const v1::JobSpec was = trained(parent), is = trained(wanted);
  if (google::protobuf::util::MessageDifferencer::Equals(was, is)) return absl::OkStatus();
  return rpc::BadField(
      "spec.parameters, spec.lora",
      absl::StrCat("the parent's are {", was.ShortDebugString(), "}, wanted are {", is.ShortDebugString(),
                   "}: a fork has its parent's patterns and adapters, as its checkpoint has moments of what they "
                   "train; rates and decays of patterns may be others"),
      was.ShortDebugString(), is.ShortDebugString());
}

// Whether they are the same adapters, whatever is left to defaults, and in any order.
bool SameAdapters(const jobs::LoraSpec& a, const jobs::LoraSpec& b) {
  const auto targets = [](const jobs::LoraSpec& lora) {
    if (lora.targets.empty())
      return std::set<std::string>(std::begin(jobs::kLoraTargets), std::end(jobs::kLoraTargets));
    return std::set<std::string>(lora.targets.begin(), lora.targets.end());
  };
  return a.rank == b.rank && a.Alpha() == b.Alpha() && targets(a) == targets(b);
}

// Whether samples are others, or in another order.
bool HasOtherData(const jobs::JobSpec& a, const jobs::JobSpec& b) {
  return a.datasets != b.datasets || a.dataset_weights != b.dataset_weights || a.packing != b.packing ||
         a.seed != b.seed || a.sequence_length != b.sequence_length;
}

}  // namespace

absl::Status CheckForkMask(const FieldMask& mask) {
  if (mask.paths_size() > kMaxMaskPaths) {
    return rpc::BadField("mask", absl::StrCat(mask.paths_size(), " paths, at most ", kMaxMaskPaths),
                         absl::StrCat(kMaxMaskPaths), absl::StrCat(mask.paths_size()));
  }
  for (const std::string& path : mask.paths()) {
    if (FieldMaskUtil::IsValidPath<v1::JobSpec>(path)) continue;
    return rpc::BadField("mask", absl::StrCat(Quote(path), " names no field of a JobSpec"), "fields of JobSpec",
                         Quote(path));
  }
  return absl::OkStatus();
}

absl::StatusOr<jobs::JobSpec> ForkedSpec(const jobs::JobSpec& parent, const v1::JobSpec& changes,
                                         const FieldMask& mask) {
  RETURN_IF_ERROR(CheckForkMask(mask));
  FieldMask changed = mask;
  if (changed.paths().empty()) AddSetFields(changes, "", &changed);
  const auto named = [&](const char* path) {
    const auto& paths = changed.paths();
    return std::find(paths.begin(), paths.end(), path) != paths.end();
  };
  // Steps and epochs are instead of each other, and weights are those of the datasets.
  if (named("steps") && changes.steps() > 0) changed.add_paths("epochs");
  if (named("epochs") && changes.epochs() > 0) changed.add_paths("steps");
  if (named("datasets")) changed.add_paths("dataset_weights");
  // Names are those of the files of evaluation.
  if (named("evaluation")) changed.add_paths("evaluation_names");
  const v1::JobSpec before = link::ToProto(parent);
  v1::JobSpec message = before;
  FieldMaskUtil::MergeOptions replace;
  replace.set_replace_message_fields(true);
  replace.set_replace_repeated_fields(true);
  FieldMaskUtil::MergeMessageTo(changes, changed, replace, &message);
  ASSIGN_OR_RETURN(jobs::JobSpec spec, FromProto(message));
  // (Unset again, it is what a submitted spec without it has.)
  if (message.document_mask() == v1::DOCUMENT_MASK_UNSPECIFIED) spec.document_mask = true;
  if (message.packing() == v1::WINDOW_PACKING_UNSPECIFIED && spec.document_mask)
    spec.packing = jobs::WindowPacking::kBestFit;
  // (Names that nothing has changed are none in a job from before they were a field, which has one set.)
  if (named("evaluation_names") && spec.evaluation_names.empty()) {
    spec.evaluation_names = jobs::DefaultSetNames(spec.evaluation);
  }
  // Best fit is of documents that are apart.
  if (!spec.document_mask && !named("packing")) spec.packing = jobs::WindowPacking::kConcatenate;
  if (SameAdapters(parent.lora, spec.lora)) {
    const double dropout = spec.lora.dropout;
    spec.lora = parent.lora;  // as the checkpoint says it
    spec.lora.dropout = dropout;
  }
  RETURN_IF_ERROR(CheckForm(before, link::ToProto(spec)));
  if (const absl::Status status = jobs::Validate(spec); !status.ok()) {
    return rpc::MakeError(status.code(), v1::BAD_FIELD, status.message(), {{"field", "spec"}});
  }
  return spec;
}

absl::Status CheckStepsLeft(const jobs::JobSpec& spec, int64_t step) {
  if (spec.steps > step || spec.steps == 0) return absl::OkStatus();  // 0: CheckEpochs
  return rpc::BadField("spec.steps",
                       absl::StrCat(spec.steps, ", but the fork begins after step ", step, ": nothing is left to do"),
                       absl::StrCat(step + 1), absl::StrCat(spec.steps));
}

absl::Status CheckEpochs(const Job& parent, const jobs::JobSpec& spec, int64_t step, int64_t skip_batches) {
  if (spec.epochs == 0) return absl::OkStatus();
  const jobs::JobSpec& was = parent.spec;
  const int64_t total = parent.progress.has_value() ? parent.progress->total_steps : 0;
  const std::string limit = total > 0 ? absl::StrCat("steps (the parent has ", total, ")") : "steps";
  const std::string epochs = absl::StrCat(spec.epochs);
  if (spec.epochs != was.epochs || HasOtherData(was, spec) || spec.batch_sequences != was.batch_sequences ||
      skip_batches > 0) {
    return rpc::BadField("spec.epochs",
                         absl::StrCat(epochs, ": a fork with other data, batches or epochs than its parent's counts ",
                                      limit, " instead"),
                         limit, epochs);
  }
  if (total == 0 || step < total) return absl::OkStatus();
  return rpc::BadField("spec.epochs",
                       absl::StrCat(epochs, ", which are ", total, " steps, but the fork begins after step ", step,
                                    ": nothing is left to do; set steps instead"),
                       limit, epochs);
}

jobs::ForkOrigin ForkOriginOf(const Job& parent, const jobs::JobSpec& spec, int64_t step, int64_t skip_batches) {
  jobs::ForkOrigin origin = {.job = parent.id, .step = step, .attempts = parent.attempt};
  origin.other_data = HasOtherData(parent.spec, spec);
  if (!origin.other_data && parent.origin.has_value() && parent.origin->step == step) {
    origin.other_data = parent.origin->other_data;
    origin.skipped_sequences = parent.origin->skipped_sequences;
  }
  origin.skipped_sequences += skip_batches * spec.batch_sequences;
  return origin;
}

std::string DescribeFork(const jobs::ForkOrigin& origin) {
  return absl::StrCat(
      "forked from ", origin.job, " at step ", origin.step,
      origin.other_data ? "; its data begin at their first sequence" : "",
      origin.skipped_sequences > 0 ? absl::StrCat("; ", origin.skipped_sequences, " sequences are passed over") : "");
}

std::string WayOutOfNotFinite(const Job& job, int64_t done, const std::vector<int64_t>& checkpoints) {
  if (checkpoints.empty()) return "";
  // (The steps of epochs are known once a step was done.)
  const int64_t counted = job.progress.has_value() ? job.progress->total_steps : 0;
  const int64_t total = job.spec.steps > 0 ? job.spec.steps : counted;
  const int64_t end = total > 0 ? std::min(done, total) : done;
  const auto early = std::find_if(checkpoints.begin(), checkpoints.end(), [end](int64_t step) { return step < end; });
  if (early == checkpoints.end()) {
    return absl::StrCat("; no checkpoint is from before step ", end, ", so a lower rate would not help");
  }
  return absl::StrFormat(
      "; to go on from step %d at half the rate: switchyard train fork %s --step=%d --learning_rate=%g", *early, job.id,
      *early, job.spec.optimizer.schedule.peak / 2);
}

}  // namespace switchyard::server
