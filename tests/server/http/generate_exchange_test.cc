// Errors of calls over HTTP are counted once, whoever finds them: the call itself or the engine.
#include "server/http/generate_exchange.h"

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "server/http/apis/completions.h"
#include "tests/becomes.h"
#include "tests/server/api/generation_fixture.h"

namespace switchyard::server {
namespace {

// A connection whose strand is the test's thread.
class FakeExchange final : public HttpExchange {
 public:
  explicit FakeExchange(const std::string& body) {
    request_.body = body;
    request_.peer = "ipv4:10.0.0.1:4711";
  }

  const HttpRequest& request() const override { return request_; }
  void Post(std::function<void()> work) override {
    posted_.Change([&](std::deque<std::function<void()>>* posted) { posted->push_back(std::move(work)); });
  }
  void DropBody() override {}
  void Reply(HttpReply reply) override { status_ = reply.status; }
  void Begin(HttpReply reply) override { status_ = reply.status; }
  void Write(std::string) override {}
  void End(std::string) override {}
  bool is_writing() const override { return is_writing_; }
  void SetEvents(Events events) override { events_ = std::move(events); }

  // Runs what was posted until the answer has a head.
  void RunUntilAnswered() {
    while (status_ == 0 && !testing::Test::HasFatalFailure()) RunNext();
  }
  void RunNext() {
    ASSERT_TRUE(posted_.Await([](const auto& posted) { return !posted.empty(); })) << "the call hangs";
    std::function<void()> work;
    posted_.Change([&](std::deque<std::function<void()>>* posted) {
      work = std::move(posted->front());
      posted->pop_front();
    });
    work();
  }
  // Does not read from now on.
  void Stall() { is_writing_ = true; }
  void Gone(bool is_slow) { std::exchange(events_, {}).on_gone(is_slow); }
  // Drops what holds this object.
  void Drop() {
    events_ = {};
    std::deque<std::function<void()>> dropped;
    posted_.Change([&](std::deque<std::function<void()>>* posted) { posted->swap(dropped); });
  }
  int status() const { return status_; }

 private:
  HttpRequest request_;
  Watched<std::deque<std::function<void()>>> posted_;
  Events events_;
  bool is_writing_ = false;
  int status_ = 0;  // 0: no answer yet
};

class GenerateExchangeTest : public GenerationTest {
 protected:
  void TearDown() override {
    GenerationTest::TearDown();
    exchange_->Drop();
  }
  void Call(const std::string& body) {
    exchange_ = std::make_shared<FakeExchange>(body);
    AnswerByGenerating(&context, exchange_, Caller(), NewCompletionsWriter(text.get(), 5));
  }

  std::shared_ptr<FakeExchange> exchange_;
};

TEST_F(GenerateExchangeTest, AnErrorOfTheCallIsCountedOnce) {
  StartReady();
  UseEngine();
  Call("{");
  exchange_->RunUntilAnswered();
  EXPECT_EQ(exchange_->status(), 400);
  Finalize();
  EXPECT_EQ(Errors(absl::StatusCode::kInvalidArgument), 1);
}

TEST_F(GenerateExchangeTest, AnErrorOfTheEngineIsCountedOnce) {
  config.default_deadline = absl::Milliseconds(50);
  StartReady();
  UseEngine();
  worker->Allow(0);
  Call(R"({"prompt": "ab", "max_tokens": 5})");
  exchange_->RunUntilAnswered();
  EXPECT_EQ(exchange_->status(), 504);
  Finalize();
  EXPECT_EQ(Errors(absl::StatusCode::kDeadlineExceeded), 1);
  worker->Allow(-1);
}

TEST_F(GenerateExchangeTest, ASlowReaderOfARunningRequestIsCountedOnce) {
  StartReady();
  UseEngine();
  worker->Allow(2);
  Call(R"({"prompt": "ab", "max_tokens": 5, "stream": true})");
  exchange_->RunUntilAnswered();
  EXPECT_EQ(exchange_->status(), 200);
  exchange_->Gone(/*is_slow=*/true);
  Finalize();
  EXPECT_EQ(Errors(absl::StatusCode::kResourceExhausted), 1);
  worker->Allow(-1);
}

TEST_F(GenerateExchangeTest, ASlowReaderOfAWholeAnswerIsCountedOnce) {
  StartReady();
  UseEngine();
  worker->Allow(1);
  Call(R"({"prompt": "ab", "max_tokens": 5, "stream": true})");
  exchange_->RunUntilAnswered();
  exchange_->Stall();
  worker->Allow(-1);
  ASSERT_TRUE(Becomes([&] { return metrics->request_success(batching::FinishReason::kLength).Value() == 1; }));
  Finalize();
  exchange_->Gone(/*is_slow=*/true);
  Finalize();
  EXPECT_EQ(Errors(absl::StatusCode::kResourceExhausted), 1);
}

}  // namespace
}  // namespace switchyard::server
