// The lines of the request log, and the figures of a request.
#include "server/observe/request_line.h"

#include <string>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/observe/observed_request.h"
#include "tests/server/observe/record_fixture.h"

namespace switchyard::server {
namespace {

using nlohmann::json;

TEST(RequestLineTest, HasTheseMembers) {
  EXPECT_EQ(RequestLine(TestRecord()),
            R"({"time":"2026-12-10T05:20:00.100000Z","id":"req-1","key":"alice","client":"10.0.0.1",)"
            R"("api":"/v1/chat/completions","model":"demo","stream":true,"prompts":1,"n":2,"prompt_tokens":12,)"
            R"("cached_tokens":4,"output_tokens":21,"queue_seconds":0.002,"prefill_seconds":0.017,)"
            R"("decode_seconds":0.07,"ttft_seconds":0.02,"total_seconds":0.1,"outcome":"length","code":"OK",)"
            R"("reason":null,"http_status":200,"trace_id":"0af7651916cd43dd8448eb211c80319c"})"
            "\n");
}

TEST(RequestLineTest, OfARefusedRequestMostIsNull) {
  EXPECT_EQ(RequestLine(RefusedRecord()),
            R"({"time":"1970-01-12T13:46:40.001500Z","id":null,"key":null,"client":"::1","api":"grpc","model":"demo",)"
            R"("stream":null,"prompts":0,"n":null,"prompt_tokens":0,"cached_tokens":0,"output_tokens":0,)"
            R"("queue_seconds":null,"prefill_seconds":null,"decode_seconds":null,"ttft_seconds":null,)"
            R"("total_seconds":0.0015,"outcome":"error","code":"RESOURCE_EXHAUSTED","reason":"QUEUE_FULL",)"
            R"("http_status":null,"trace_id":null})"
            "\n");
}

TEST(RequestLineTest, WhatClientsWriteStaysInItsLine) {
  RequestRecord record = TestRecord();
  record.id = "a\"b\\c\n{\"id\":\"forged\"}\r\x1b[31m\x01";
  record.model = "\xff\xfe broken";
  const std::string line = RequestLine(record);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  for (const char c : line.substr(0, line.size() - 1)) EXPECT_GE(static_cast<unsigned char>(c), 0x20);
  const json parsed = json::parse(line);
  EXPECT_EQ(parsed["id"], record.id);
  EXPECT_EQ(parsed["model"], "\xef\xbf\xbd\xef\xbf\xbd broken");
}

TEST(RequestRecordTest, Outcomes) {
  RequestRecord record = TestRecord();
  record.choices.resize(1);
  EXPECT_EQ(OutcomeOf(record), "stop");
  record.choices.push_back(record.choices[0]);
  record.choices[0].reason = batching::FinishReason::kLength;
  EXPECT_EQ(OutcomeOf(record), "length");
  record.choices[0].reason = batching::FinishReason::kAbort;
  EXPECT_EQ(OutcomeOf(record), "abort");
  record.code = "CANCELLED";
  EXPECT_EQ(OutcomeOf(record), "abort");
  record.code = "UNAVAILABLE";
  EXPECT_EQ(OutcomeOf(record), "error");
}

TEST(RequestRecordTest, OneThatOnlyWaitedHasItsQueueTime) {
  RequestRecord record = TestRecord();
  record.choices.resize(1);
  record.choices[0].timings = {.queued = kArrival, .finished = kArrival + absl::Seconds(2)};
  const RequestTotals totals = TotalsOf(record);
  EXPECT_EQ(totals.queue, absl::Seconds(2));
  EXPECT_FALSE(totals.prefill.has_value());
  EXPECT_FALSE(totals.decode.has_value());
  EXPECT_FALSE(totals.ttft.has_value());
}

// The record is finished once, by whoever lets go last.
TEST(ObservedRequestTest, TheLastOwnerFinishesIt) {
  int finished = 0;
  RequestRecord seen;
  auto observed = std::make_shared<ObservedRequest>(RefusedRecord(), [&](RequestRecord record) {
    ++finished;
    seen = std::move(record);
  });
  auto engine = observed;
  observed->SetAsked({.id = std::string(500, 'x'), .model = "other", .is_chat = true});
  observed->AddAccepted({.prompt_tokens = 3, .num_choices = 2, .sampling = {}});
  observed->AddAccepted({.prompt_tokens = 4, .num_choices = 2, .sampling = {}});
  observed->SetHttpStatus(200);
  observed->SetHttpStatus(500);
  observed = nullptr;
  EXPECT_EQ(finished, 0);
  engine->AddChoice({.choice = 1});
  engine = nullptr;
  ASSERT_EQ(finished, 1);
  EXPECT_EQ(seen.id, std::string(128, 'x')) << "as long as an id may be";
  EXPECT_EQ(seen.model, "other");
  EXPECT_EQ(seen.num_prompts, 2);
  EXPECT_EQ(seen.prompt_tokens, 7);
  EXPECT_EQ(seen.http_status, 200);
  EXPECT_EQ(seen.choices.size(), 1u);
}

TEST(ObservedRequestTest, TheFirstEndCountsAndWithoutOneItIsAborted) {
  RequestRecord begun, seen;
  begun.arrival = begun.end = kArrival;
  const auto finish = [&seen](RequestRecord record) { seen = std::move(record); };
  {
    ObservedRequest observed(begun, finish);
    observed.SetEnd(absl::CancelledError("gone"), kArrival + absl::Seconds(1));
    observed.SetEnd(absl::OkStatus(), kArrival + absl::Seconds(2));
  }
  EXPECT_EQ(seen.code, "CANCELLED");
  EXPECT_EQ(seen.end, kArrival + absl::Seconds(1));
  { ObservedRequest observed(begun, finish); }
  EXPECT_EQ(seen.code, "ABORTED");
}

}  // namespace
}  // namespace switchyard::server
