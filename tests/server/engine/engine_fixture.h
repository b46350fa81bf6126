// An engine with scripted workers: change the defaults, start it, connect workers, submit requests.
//
// Tests wait for events with a long deadline; nothing sleeps.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "scheduler/base/clock.h"
#include "server/engine/engine_loop.h"
#include "tests/server/engine/scripted_worker.h"
#include "tests/server/engine/stream_reader.h"
#include "tests/server/engine/watched.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {

inline constexpr int64_t kPid = 31337;  // of every worker

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    config.served_model_name = "tiny";
    config.join_token = config.local_token = "secret";
    config.workers = 1;
    config.batching.max_model_len = 0;
    config.batching.max_num_seqs = 4;
    config.batching.max_batched_tokens = 64;
    model_facts.context = 1000;
    model_facts.vocab_size = kFar;
    model_facts.eos_token_ids = {kEnd};
    model_facts.pid = kPid;
  }
  void TearDown() override {
    stop.Notify();
    if (heart.joinable()) heart.join();
    if (engine) engine->Stop();
  }

  void Start() {
    EngineHooks hooks;
    hooks.on_ready = [this](bool is_ready) {
      ready.Set(is_ready);
      if (is_ready) ups.Change([](int* count) { ++*count; });
    };
    hooks.on_fenced = [](int, int64_t) {};
    hooks.end_of = [this](int index, int64_t pid) { return index == 0 && pid == kPid ? end_of : "not asked for"; };
    hooks.on_epoch = [](const std::string&) {};
    hooks.on_tick = [this](absl::Time now) { last_tick.Set(now); };
    hooks.on_fatal = [this](const std::string& why) {
      fatal.Change([&](std::string* first) { *first = first->empty() ? why : *first; });
    };
    engine = std::make_unique<EngineLoop>(&config, text.get(), metrics.get(), std::move(hooks));
    engine->Start();
    // Sends the workers' heartbeats: the loop's clock is real, and a worker that is silent for 1.5 s is fenced.
    heart = std::thread([this] {
      while (!stop.WaitForNotificationWithTimeout(absl::Milliseconds(100))) {
        for (WorkerId id : hearts.Get()) engine->links()->OnHeartbeat(id);
      }
    });
  }
  std::shared_ptr<ScriptedWorker> Connect(WorkerId id, const std::string& token = "secret", int local_index = 0) {
    auto worker = std::make_shared<ScriptedWorker>(id, engine->links(), script);
    if (on_connect) on_connect(worker.get());
    fleet::WorkerInfo info = model_facts;
    info.incarnation = absl::StrCat("w", id);
    info.join_token = token;
    info.local_index = local_index;
    engine->links()->OnRegister(id, worker, info);
    hearts.Change([&](std::vector<WorkerId>* ids) { ids->push_back(id); });
    return worker;
  }
  void StartReady() {
    Start();
    worker = Connect(1);
    AwaitReady(true);
  }
  void AwaitReady(bool wanted) {
    EXPECT_TRUE(ready.Await([&](bool now) { return now == wanted; })) << "readiness does not turn";
  }
  // Waits until the loop has checked its time limits at `time` or later.
  void AwaitTick(absl::Time time) {
    EXPECT_TRUE(last_tick.Await([&](absl::Time last) { return last >= time; })) << "the loop does not tick";
  }
  // Waits until groups have formed that many times.
  void AwaitUps(int wanted) {
    EXPECT_TRUE(ups.Await([&](int count) { return count >= wanted; })) << ups.Get() << " groups came up";
  }
  std::string AwaitFatal() {
    fatal.Await([](const std::string& why) { return !why.empty(); });
    return fatal.Get();
  }

  std::unique_ptr<InferenceRequest> Request(const std::string& id, int32_t max_tokens) {
    auto request = std::make_unique<InferenceRequest>();
    request->request_id = id;
    request->prompt = {1, 2, 3};
    request->max_tokens = max_tokens;
    request->sampling.temperature = 0;
    request->sampling.stop_ids = {kEnd};
    request->arrival = MonotonicNow();
    return request;
  }
  uint64_t Submit(const Reader& reader, std::unique_ptr<InferenceRequest> request) {
    const uint64_t handle = engine->NextHandle();
    engine->Submit(handle, std::move(request), reader.stream());
    return handle;
  }
  uint64_t Submit(const Reader& reader, const std::string& id, int32_t max_tokens) {
    return Submit(reader, Request(id, max_tokens));
  }
  // Waits until all commands posted so far have run.
  void Finalize() {
    absl::Notification done;
    engine->Abort("nobody", [&](bool) { done.Notify(); });
    ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  }

  // Settings of the server and of every worker:
  ServerConfig config;
  ScriptedWorker::Script script;
  fleet::WorkerInfo model_facts;
  std::function<void(ScriptedWorker*)> on_connect;
  std::string end_of;  // how the worker's process ended, for EngineHooks::end_of

  const std::unique_ptr<const text::TextProcessor> text = TinyText();
  const std::unique_ptr<ServerMetrics> metrics = std::make_unique<ServerMetrics>("tiny");
  std::unique_ptr<EngineLoop> engine;
  std::shared_ptr<ScriptedWorker> worker;
  std::thread heart;
  absl::Notification stop;
  Watched<std::vector<WorkerId>> hearts;
  Watched<bool> ready;
  Watched<int> ups;
  Watched<absl::Time> last_tick{absl::InfinitePast()};
  Watched<std::string> fatal;  // the first fatal error
};

}  // namespace switchyard::server
