// For link_fuzz.cc: messages that go through a codec, there and back.
#pragma once

#include <string>
#include <type_traits>
#include <vector>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"
#include "proto/link/step_result_codec.h"
#include "tests/fuzz/fuzz.h"

namespace switchyard::fuzz {

// The message's bytes, maps in order.
template <class Message>
std::string BytesOf(const Message& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    SY_CHECK(message.SerializeToCodedStream(&coded));
  }
  return bytes;
}

template <class Struct>
auto ToProtoIfOk(const absl::StatusOr<Struct>& made) -> absl::StatusOr<decltype(link::ToProto(*made))> {
  if (!made.ok()) return made.status();
  return link::ToProto(*made);
}

// there_and_back: a message → a message or its StatusOr.  What comes back comes back again.
template <class Message, class ThereAndBack>
void RoundTrip(const Message& message, ThereAndBack there_and_back) {
  const absl::StatusOr<Message> once = there_and_back(message);
  if (!once.ok()) return;
  const absl::StatusOr<Message> again = there_and_back(*once);
  SY_CHECK_OK(again.status());
  SY_CHECK(BytesOf(*again) == BytesOf(*once));
}

inline batching::StepPlan HeadOf(const v1::StepResult& message) {
  batching::StepPlan head;
  head.step = message.step();
  head.group_epoch = message.group_epoch();
  return head;
}

// A result that is cut into parts is whole again with them.
inline void CheckParts(const v1::StepResult& message) {
  const batching::StepPlan head = HeadOf(message);
  batching::RankResult result = link::FromProto(message);
  const std::string whole = BytesOf(link::ToProto(head, result));
  const std::vector<v1::StepPart> parts = link::CutIntoParts(head, &result, 2);
  for (const v1::StepPart& part : parts) SY_CHECK(link::AddPart(part, &result));
  SY_CHECK(BytesOf(link::ToProto(head, result)) == whole);
}

}  // namespace switchyard::fuzz
