// Messages of a worker's link, in both directions.  A struct that was made of a message gives a message that gives the
// same struct.
#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/link/fleet_codec.h"
#include "proto/link/placement_codec.h"
#include "proto/link/step_plan_codec.h"
#include "proto/link/step_result_codec.h"
#include "proto/link/training_assignment_codec.h"
#include "proto/support/raw_message.h"
#include "tests/fuzz/link_round_trip.h"

namespace switchyard::fuzz {
namespace {

void FuzzRequest(const v1::LinkRequest& m) {
  RoundTrip(m.register_(), [](const auto& each) { return link::ToProto(link::FromProto(each)); });
  RoundTrip(m.group_ready(), [](const auto& each) { return link::ToProto(link::FromProto(each)); });
  RoundTrip(m.load_progress(), [](const auto& each) { return link::ToProto(link::FromProto(each)); });
  RoundTrip(m.training_step().progress(), [](const auto& each) { return link::ToProto(link::FromProto(each)); });
  RoundTrip(m.training_evaluated().result(), [](const auto& each) { return link::ToProto(link::FromProto(each)); });
  RoundTrip(m.training_saved().checkpoint(), [](const auto& each) { return link::ToProto(link::FromProto(each)); });
  RoundTrip(m.training_ended(), [](const auto& each) { return link::ToProto(link::FromProto(each), each.epoch()); });
  RoundTrip(m.expert_report(), [](const auto& each) -> absl::StatusOr<v1::ExpertReport> {
    const auto report = link::FromProto(each, 2, 4);
    if (!report.ok()) return report.status();
    return link::ToProto(*report, each.group_epoch());
  });
  RoundTrip(m.step_result(), [](const auto& each) { return link::ToProto(HeadOf(each), link::FromProto(each)); });
  CheckParts(m.step_result());
  batching::RankResult result = link::FromProto(m.step_result());
  (void)link::AddPart(m.step_part(), &result);
}

void FuzzResponse(const v1::LinkResponse& m) {
  RoundTrip(m.step_plan(), [](const auto& each) {
    batching::StepPlan plan;
    absl::Duration limit;
    plan.ranks = {link::FromProto(each, &plan, &limit)};
    return link::ToProto(plan, 0, limit);
  });
  RoundTrip(m.step_masks(), [](const auto& each) {
    batching::StepMasks masks;
    masks.ranks = {link::FromProto(each, &masks)};
    return link::ToProto(masks, 0);
  });
  const auto twice = [](const auto& each) { return ToProtoIfOk(link::FromProto(each)); };
  RoundTrip(m.join_group(), twice);
  RoundTrip(m.start_training(), twice);
  RoundTrip(m.registered().options(), twice);
  (void)link::FromProto(m.stop_training().kind());
}

}  // namespace

void Fuzz(absl::string_view input) {
  const grpc::Slice slice(input.data(), input.size());
  const grpc::ByteBuffer buffer(&slice, 1);
  if (v1::LinkRequest message; rpc::ParseRaw(buffer, &message).ok()) FuzzRequest(message);
  if (v1::LinkResponse message; rpc::ParseRaw(buffer, &message).ok()) FuzzResponse(message);
}

}  // namespace switchyard::fuzz
