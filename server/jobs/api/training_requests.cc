#include "server/jobs/api/training_requests.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "proto/support/api_key.h"
#include "proto/support/errors.h"
#include "proto/support/raw_message.h"
#include "scheduler/base/status_macros.h"
#include "server/jobs/api/job_convert.h"

namespace switchyard::server {
namespace {

constexpr size_t kMaxRequestId = 128;
constexpr size_t kMaxJobId = 64;
constexpr int32_t kMaxPage = 1000;
constexpr int32_t kUsualPage = 100;
constexpr int32_t kMaxIntervalMs = 3'600'000;
constexpr size_t kPageBytes = size_t{2} << 20;

absl::Status InRange(const char* field, int64_t value, int64_t most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return rpc::BadField(field, absl::StrCat(value, " is outside [0, ", most, "]"), absl::StrCat(most),
                       absl::StrCat(value));
}

// `suffix`: the required end of the path.
absl::Status CheckPath(const std::string& field, const std::string& path, const char* root, const char* suffix) {
  if (const absl::Status inside = jobs::CheckRelativePath(path, root); !inside.ok()) {
    return rpc::MakeError(inside.code(), v1::BAD_FIELD, absl::StrCat(field, ": ", inside.message()),
                          {{"field", field}});
  }
  if (absl::EndsWith(path, suffix)) return absl::OkStatus();
  return rpc::BadField(field, absl::StrCat(Quote(path), " does not end in ", suffix), suffix, Quote(path));
}

// Returns the error "N UNIT, at most MOST".
absl::Status TooMany(const char* field, size_t count, const char* unit, size_t most) {
  return rpc::BadField(field, absl::StrCat(count, " ", unit, ", at most ", most), absl::StrCat(most),
                       absl::StrCat(count));
}

absl::Status CheckRequestId(const std::string& id) {
  if (id.size() > kMaxRequestId) return TooMany("request_id", id.size(), "bytes", kMaxRequestId);
  const auto prints = [](char c) { return absl::ascii_isprint(static_cast<unsigned char>(c)); };
  if (std::all_of(id.begin(), id.end(), prints)) return absl::OkStatus();
  return rpc::BadField("request_id", absl::StrCat(Quote(id), " has bytes that do not print"), "printable ASCII",
                       Quote(id));
}

}  // namespace

absl::Status ParseTraining(const grpc::ByteBuffer& buffer, google::protobuf::Message* message) {
  RETURN_IF_ERROR(rpc::ParseRaw(buffer, message));
  return CheckNoUnknownFields(*message);
}

absl::StatusOr<SubmitArgs> FromProto(const v1::SubmitJobRequest& message) {
  SubmitArgs args;
  args.request_id = message.request_id();
  RETURN_IF_ERROR(CheckRequestId(args.request_id));
  if (!message.has_spec()) return rpc::BadField("spec", "is missing", "1", "0");
  // This limit is for users' messages: in the journal, with every default written out, a spec may be longer.
  if (const size_t bytes = message.spec().ByteSizeLong(); bytes > kMaxSpecBytes) {
    return TooMany("spec", bytes, "bytes", kMaxSpecBytes);
  }
  ASSIGN_OR_RETURN(args.spec, FromProto(message.spec()));
  // (A journal's spec without it is from before it was a field.)
  if (message.spec().document_mask() == v1::DOCUMENT_MASK_UNSPECIFIED) args.spec.document_mask = true;
  if (message.spec().packing() == v1::WINDOW_PACKING_UNSPECIFIED && args.spec.document_mask) {
    args.spec.packing = jobs::WindowPacking::kBestFit;
  }
  if (args.spec.evaluation_names.empty()) args.spec.evaluation_names = jobs::DefaultSetNames(args.spec.evaluation);
  if (const absl::Status status = jobs::Validate(args.spec); !status.ok()) {
    return rpc::MakeError(status.code(), v1::BAD_FIELD, status.message(), {{"field", "spec"}});
  }
  return args;
}

absl::StatusOr<ForkArgs> FromProto(const v1::ForkJobRequest& message) {
  RETURN_IF_ERROR(CheckRequestId(message.request_id()));
  RETURN_IF_ERROR(CheckJobId(message.id()));
  RETURN_IF_ERROR(InRange("step", message.step(), jobs::kMaxTrainSteps));
  RETURN_IF_ERROR(InRange("skip_batches", message.skip_batches(), kMaxSkippedBatches));
  if (const size_t bytes = message.changes().ByteSizeLong(); bytes > kMaxSpecBytes) {
    return TooMany("changes", bytes, "bytes", kMaxSpecBytes);
  }
  RETURN_IF_ERROR(CheckForkMask(message.mask()));
  ForkArgs args;
  args.id = message.id();
  args.request = {.request_id = message.request_id(), .skip_batches = message.skip_batches()};
  if (message.has_step()) args.request.step = message.step();
  v1::ForkJobRequest without_id = message;
  without_id.clear_request_id();
  args.request.digest = rpc::DigestOfKey(EncodeAlike(without_id));
  args.changes = message.changes();
  args.mask = message.mask();
  return args;
}

absl::StatusOr<JobFilter> FromProto(const v1::ListJobsRequest& message) {
  JobFilter filter;
  RETURN_IF_ERROR(InRange("page_size", message.page_size(), kMaxPage));
  filter.most = static_cast<size_t>(message.page_size() == 0 ? kUsualPage : message.page_size());
  if (!message.page_token().empty() && (!absl::SimpleAtoi(message.page_token(), &filter.before) || filter.before < 1)) {
    return rpc::BadField("page_token", absl::StrCat(Quote(message.page_token()), " is no answer's next_page_token"),
                         "a next_page_token", Quote(message.page_token()));
  }
  for (const int state : message.states()) {
    ASSIGN_OR_RETURN(const jobs::JobState taken, FromProto(static_cast<v1::JobState>(state), "states"));
    filter.states.push_back(taken);
  }
  filter.labels.assign(message.labels().begin(), message.labels().end());
  return filter;
}

absl::StatusOr<PackRequest> FromProto(const v1::PackDataRequest& message) {
  PackRequest request;
  const auto num_inputs = static_cast<size_t>(message.inputs_size());
  if (num_inputs == 0) return rpc::BadField("inputs", "none", "1", "0");
  if (num_inputs > jobs::kMaxDatasets) return TooMany("inputs", num_inputs, "files", jobs::kMaxDatasets);
  for (int i = 0; i < message.inputs_size(); ++i) {
    RETURN_IF_ERROR(CheckPath(absl::StrCat("inputs[", i, "]"), message.inputs(i), "the dataset root", ".jsonl"));
    request.inputs.push_back(message.inputs(i));
  }
  request.output = message.output();
  RETURN_IF_ERROR(CheckPath("output", request.output, "the dataset root", ".bin"));
  request.tokenizer = message.tokenizer();
  if (request.tokenizer.empty()) return request;
  RETURN_IF_ERROR(CheckPath("tokenizer", request.tokenizer, "the checkpoint root", ""));
  return request;
}

absl::Status CheckJobId(const std::string& id) {
  if (!id.empty() && id.size() <= kMaxJobId) return absl::OkStatus();
  return rpc::BadField("id", id.empty() ? "is empty" : absl::StrCat(id.size(), " bytes, at most ", kMaxJobId),
                       absl::StrCat("1 to ", kMaxJobId), absl::StrCat(id.size()));
}

absl::StatusOr<WatchArgs> FromProto(const v1::WatchJobRequest& message) {
  RETURN_IF_ERROR(CheckJobId(message.id()));
  RETURN_IF_ERROR(InRange("min_interval_ms", message.min_interval_ms(), kMaxIntervalMs));
  return WatchArgs{message.id(), absl::Milliseconds(message.min_interval_ms())};
}

v1::ListJobsResponse ToProto(const JobPage& page) {
  v1::ListJobsResponse message;
  size_t bytes = 0;
  bool more = page.more;
  int64_t last = 0;
  for (const JobPtr& job : page.jobs) {
    v1::Job one = ToProto(*job);
    const size_t size = one.ByteSizeLong();
    if (bytes > 0 && bytes + size > kPageBytes) {
      more = true;
      break;
    }
    bytes += size;
    last = job->sequence;
    *message.add_jobs() = std::move(one);
  }
  if (more) message.set_next_page_token(absl::StrCat(last));
  return message;
}

}  // namespace switchyard::server
