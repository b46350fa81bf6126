// The exporter against a collector that takes, refuses, delays or is not there.
#include "server/observe/otlp_exporter.h"

#include <atomic>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/server/observe/otlp_receiver.h"
#include "tests/server/observe/record_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

class OtlpExporterTest : public testing::Test {
 protected:
  OtlpExporter::Options Options() {
    OtlpExporter::Options options;
    options.endpoint = receiver_.endpoint();
    options.resource = {.version = "1", .instance_id = "i", .address = "127.0.0.1"};
    options.random = [this] { return ++drawn_; };
    options.on_spans = [this](OtlpExporter::Result result, int64_t spans) {
      counts_[static_cast<size_t>(result)] += spans;
    };
    options.batch_delay = absl::Milliseconds(1);
    options.first_pause = absl::Milliseconds(1);
    return options;
  }
  // A record of one span.
  static std::shared_ptr<const RequestRecord> Small() {
    RequestRecord record = TestRecord();
    record.choices.clear();
    return std::make_shared<const RequestRecord>(std::move(record));
  }
  int64_t sent() const { return counts_[0]; }
  int64_t dropped() const { return counts_[1]; }
  int64_t failed() const { return counts_[2]; }

  uint64_t drawn_ = 0;
  std::atomic<int64_t> counts_[3] = {};
  OtlpReceiver receiver_;
};

TEST_F(OtlpExporterTest, SpansArrive) {
  {
    OtlpExporter exporter(Options());
    exporter.Add(std::make_shared<const RequestRecord>(TestRecord()));
    EXPECT_TRUE(receiver_.Wait([](const auto& spans) { return spans.size() == 11; }));
  }
  EXPECT_EQ(sent(), 11);
  EXPECT_EQ(dropped() + failed(), 0);
  EXPECT_EQ(receiver_.resource()["service.name"], "switchyard");
}

TEST_F(OtlpExporterTest, ABatchHasSoManySpansAndTheEndSendsTheRest) {
  OtlpExporter::Options options = Options();
  options.spans_in_batch = 4;
  options.batch_delay = absl::Hours(1);
  {
    OtlpExporter exporter(options);
    for (int i = 0; i < 10; ++i) exporter.Add(Small());
    EXPECT_TRUE(receiver_.WaitPosts(2)) << "full ones do not wait";
    exporter.Stop(absl::Seconds(60));
  }
  EXPECT_EQ(receiver_.posts(), 3);
  EXPECT_EQ(receiver_.spans().size(), 10u);
  EXPECT_EQ(sent(), 10);
}

TEST_F(OtlpExporterTest, BusyCollectorsGetABatchAgain) {
  receiver_.AnswerNext({{.status = 503}, {.status = 429, .headers = "Retry-After: 0\r\n"}, {.status = 502}});
  OtlpExporter exporter(Options());
  exporter.Add(Small());
  EXPECT_TRUE(receiver_.Wait([](const auto& spans) { return spans.size() == 1; }));
  exporter.Stop();
  EXPECT_EQ(receiver_.posts(), 4);
  EXPECT_EQ(sent(), 1);
  EXPECT_EQ(failed(), 0);
}

TEST_F(OtlpExporterTest, TriesAreBoundedAndThenEachBatchHasOne) {
  receiver_.AnswerNext({{.status = 503}, {.status = 503}, {.status = 503}, {.status = 504}, {.status = 503}});
  testing::internal::CaptureStderr();
  OtlpExporter exporter(Options());
  exporter.Add(Small());
  EXPECT_TRUE(receiver_.WaitPosts(4));
  while (failed() < 1) absl::SleepFor(absl::Milliseconds(1));
  exporter.Add(Small());
  EXPECT_TRUE(receiver_.WaitPosts(5));
  while (failed() < 2) absl::SleepFor(absl::Milliseconds(1));
  exporter.Add(Small());  // it answers again
  EXPECT_TRUE(receiver_.Wait([](const auto& spans) { return spans.size() == 1; }));
  exporter.Stop();
  const std::string log = testing::internal::GetCapturedStderr();
  EXPECT_EQ(receiver_.posts(), 6);
  EXPECT_EQ(sent(), 1);
  EXPECT_EQ(failed(), 2);
  EXPECT_THAT(log, HasSubstr("spans are lost: it answered 504"));
  EXPECT_EQ(log.find("spans are lost"), log.rfind("spans are lost")) << "once a minute: " << log;
}

TEST_F(OtlpExporterTest, WhatACollectorRefusesIsNotSentAgain) {
  receiver_.AnswerNext({{.status = 400, .body = "bad\nspans"}});
  testing::internal::CaptureStderr();
  OtlpExporter exporter(Options());
  exporter.Add(Small());
  EXPECT_TRUE(receiver_.WaitPosts(1));
  exporter.Stop();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("it answered 400 \"bad\\nspans\""));
  EXPECT_EQ(receiver_.posts(), 1);
  EXPECT_EQ(failed(), 1);
}

TEST_F(OtlpExporterTest, ThePartThatItRejectsHasFailed) {
  receiver_.AnswerNext({{.body = R"({"partialSuccess":{"rejectedSpans":"3","errorMessage":"too old"}})"}});
  testing::internal::CaptureStderr();
  OtlpExporter exporter(Options());
  exporter.Add(std::make_shared<const RequestRecord>(TestRecord()));
  EXPECT_TRUE(receiver_.WaitPosts(1));
  exporter.Stop();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("rejected 3 spans: \"too old\""));
  EXPECT_EQ(sent(), 8);
  EXPECT_EQ(failed(), 3);
}

TEST_F(OtlpExporterTest, WhatDoesNotFitIsDropped) {
  OtlpExporter::Options options = Options();
  options.most_waiting_spans = 11;
  options.batch_delay = absl::Hours(1);  // nothing leaves the queue
  OtlpExporter exporter(options);
  exporter.Add(std::make_shared<const RequestRecord>(TestRecord()));
  exporter.Add(Small());
  exporter.Add(std::make_shared<const RequestRecord>(TestRecord()));
  EXPECT_EQ(dropped(), 12);
  exporter.Stop(absl::Seconds(60));
  EXPECT_EQ(sent(), 11);
  exporter.Add(Small());
  EXPECT_EQ(dropped(), 13) << "after the end";
}

// Nobody listens, or nobody answers: requests are not held up, and the end comes within its limit.
TEST_F(OtlpExporterTest, WithoutACollectorSpansFail) {
  OtlpExporter::Options options = Options();
  {
    OtlpReceiver gone;
    options.endpoint = gone.endpoint();
  }
  testing::internal::CaptureStderr();
  OtlpExporter exporter(options);
  exporter.Add(Small());
  while (failed() < 1) absl::SleepFor(absl::Milliseconds(1));
  exporter.Stop();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("spans are lost: "));
  EXPECT_EQ(sent(), 0);
}

TEST_F(OtlpExporterTest, TheEndDoesNotWaitForASilentCollector) {
  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  ASSERT_EQ(bind(listener, reinterpret_cast<sockaddr*>(&address), size), 0);
  ASSERT_EQ(getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size), 0);
  ASSERT_EQ(listen(listener, 4), 0);
  OtlpExporter::Options options = Options();
  options.endpoint = absl::StrCat("http://127.0.0.1:", ntohs(address.sin_port));
  options.timeout = absl::Hours(1);
  testing::internal::CaptureStderr();
  OtlpExporter exporter(options);
  exporter.Add(Small());
  exporter.Stop(absl::Milliseconds(10));
  (void)testing::internal::GetCapturedStderr();
  EXPECT_EQ(failed(), 1);
  close(listener);
}

TEST(OtlpEndpointTest, BadOnesAreNamed) {
  for (const char* good : {"http://collector:4318", "https://[::1]:4318/", "http://127.0.0.1:4318/v1/traces"})
    EXPECT_TRUE(OtlpExporter::CheckEndpoint(good).ok()) << good;
  for (const auto& [bad, why] : {std::pair("collector:4318", "must begin with http"),
                                 {"ftp://x", "must begin with http"},
                                 {"http://", "not a URL"},
                                 {"http://u:p@x:4318", "must have no user"},
                                 {"http://x:4318/?a=b", "must have no query"},
                                 {"http://x:99999", "not a URL"}}) {
    EXPECT_THAT(std::string(OtlpExporter::CheckEndpoint(bad).message()), HasSubstr(why)) << bad;
  }
}

}  // namespace
}  // namespace switchyard::server
