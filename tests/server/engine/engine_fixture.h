// An engine loop with fake workers that answer plans at once: token n of a sequence is 'a' + n % 26.
//
// The fakes call back on the engine's own thread, as gRPC would on its threads: the loop must not mind.  Tests wait for
// events with a long deadline; nothing sleeps.
#pragma once

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "server/clock.h"
#include "server/engine/engine_loop.h"
#include "tests/server/tiny_text.h"

namespace switchyard {

inline constexpr absl::Duration kPatience = absl::Seconds(60);
inline constexpr int64_t kPid = 31337;  // of every worker

// A worker with slots, as far as the engine can see one.  `hold` keeps answers back until Release.
class ScriptedWorker final : public WorkerClient {
 public:
  ScriptedWorker(WorkerId id, EngineLoop* engine, int32_t num_blocks) : id_(id), engine_(engine), blocks_(num_blocks) {}

  void Join(const GroupSeat& seat) override {
    begins_with_ = seat.placement;
    engine_->OnGroupReady(id_, seat.epoch, blocks_);
  }
  void Execute(const StepPlan& plan, int rank, absl::Duration) override {
    if (plan.train_slice_ms > 0) {
      EXPECT_EQ(plan.step, 0);
      ++slices_;
      return;
    }
    if (const int ms = step_ms_; ms > 0) absl::SleepFor(absl::Milliseconds(ms));
    RankResult result;
    result.expert_counts = expert_counts_;
    if (counts_items_) CountItems(plan.ranks[rank].items, &result);
    for (const int64_t count : result.expert_counts) result.expert_rows += count;
    result.layer_rows = layer_rows_.empty() ? std::vector<int64_t>{result.expert_rows} : layer_rows_;
    result.timings.expert_seconds = 1e-6 * static_cast<double>(result.expert_rows);
    placement_epoch_ = plan.placement_epoch;
    for (const StepItem& item : plan.ranks[rank].items) {
      Slot& slot = slots_[item.slot];
      if (item.init) slot = {static_cast<int32_t>(item.init->tokens.size()) - item.init->num_prompt_tokens};
      ItemResult out;
      if (item.sample) out.tokens.push_back('a' + slot.outputs++ % 26);
      result.items.push_back(std::move(out));
    }
    absl::MutexLock lock(&mu_);
    answers_.push_back({plan.group_epoch, plan.step, std::move(result)});
    Flush();
  }
  void AbortGroup(int64_t, const std::string&) override {
    slots_.clear();
    absl::MutexLock lock(&mu_);
    answers_.clear();
  }
  void PreparePlacement(const PlacementStage& stage, int64_t group_epoch) override {
    ++asked_;
    if (prepares_) engine_->OnPlacementPrepared(id_, group_epoch, stage.epoch, cannot_prepare_);
  }
  void DropPlacement(int64_t, int64_t) override { ++dropped_; }
  void ReleasePlacement(int64_t group_epoch, int64_t placement_epoch) override {
    engine_->OnPlacementReleased(id_, group_epoch, placement_epoch);
  }
  void SendProfile(int64_t group_epoch, int64_t request, int64_t offset) override {
    ++profile_asked_;
    if (profile_.empty()) return;
    engine_->OnProfilePart(id_, group_epoch,
                           {.request = request,
                            .offset = offset,
                            .total_bytes = static_cast<int64_t>(profile_.size()),
                            .data = profile_.substr(static_cast<size_t>(offset), 4),
                            .error = ""});
  }
  void Close(const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    closed_ = status;
  }

  // Of the engine's thread, or before it has this worker.
  // What every step counts [L * E]: `counts` of prompts.
  void set_expert_counts(std::vector<int64_t> counts) { expert_counts_ = std::move(counts); }
  // Every step counts its own rows, all of expert 0, and those of decodes apart: none where it is idle.
  void set_counts_items() { counts_items_ = true; }
  // Rows of each layer that every step computes here.
  void set_layer_rows(std::vector<int64_t> rows) { layer_rows_ = std::move(rows); }
  // Whether it answers PreparePlacement, and with what; empty: it has what arrives.
  void set_prepares(bool prepares, std::string error = "") {
    prepares_ = prepares;
    cannot_prepare_ = std::move(error);
  }
  // What it answers, four bytes at a time, when it is asked for what it learned; empty: nothing.
  void set_profile(std::string profile) { profile_ = std::move(profile); }
  int profile_asked() const { return profile_asked_; }  // SendProfile, how often
  int64_t placement_epoch() const { return placement_epoch_; }
  int slices() const { return slices_; }  // of its time for training, so far; any thread
  // How long a step takes from now on, on the engine's thread; any thread.
  void set_step_ms(int ms) { step_ms_ = ms; }
  int asked() const { return asked_; }  // PreparePlacement, how often
  int dropped() const { return dropped_; }
  const GroupPlacement& begins_with() const { return begins_with_; }

  // From now on `count` more answers go out, then none: -1 = all.
  void Allow(int count) {
    absl::MutexLock lock(&mu_);
    allowed_ = count;
    Flush();
  }
  // Waits until the worker has answers that it may not send.
  void AwaitHeld() {
    absl::MutexLock lock(&mu_);
    const auto held = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !answers_.empty(); };
    ASSERT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&held), kPatience));
  }
  absl::Status AwaitClosed() {
    absl::MutexLock lock(&mu_);
    const auto closed = [this]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return !closed_.ok(); };
    mu_.AwaitWithTimeout(absl::Condition(&closed), kPatience);
    return closed_;
  }

 private:
  struct Slot {
    int32_t outputs = 0;
  };
  struct Answer {
    int64_t epoch;
    int64_t step;
    RankResult result;
  };

  static void CountItems(const std::vector<StepItem>& items, RankResult* result) {
    std::vector<int64_t> decoded(result->expert_counts.size(), 0);
    result->expert_counts = decoded;
    for (const StepItem& item : items) {
      result->expert_counts[0] += item.num_query;
      if (!item.init) decoded[0] += item.num_query;
    }
    if (decoded[0] > 0) result->decode_expert_counts = decoded;
  }
  void Flush() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!answers_.empty() && allowed_ != 0) {
      if (allowed_ > 0) --allowed_;
      Answer answer = std::move(answers_.front());
      answers_.erase(answers_.begin());
      engine_->OnStepResult(id_, answer.epoch, answer.step, std::move(answer.result));
    }
  }

  const WorkerId id_;
  EngineLoop* const engine_;
  const int32_t blocks_;
  std::map<SlotId, Slot> slots_;
  std::vector<int64_t> layer_rows_;
  bool counts_items_ = false;
  std::vector<int64_t> expert_counts_;
  std::string profile_;
  std::atomic<int> profile_asked_{0};
  std::atomic<int> slices_{0}, step_ms_{0};
  bool prepares_ = true;
  std::string cannot_prepare_;
  std::atomic<int64_t> placement_epoch_ = 0;  // of the last plan
  std::atomic<int> asked_ = 0, dropped_ = 0;
  GroupPlacement begins_with_;
  absl::Mutex mu_;
  int allowed_ ABSL_GUARDED_BY(mu_) = -1;
  std::vector<Answer> answers_ ABSL_GUARDED_BY(mu_);
  absl::Status closed_ ABSL_GUARDED_BY(mu_);
};

// Reads a stream to its end, or until it is told to stop reading.
class Reader {
 public:
  explicit Reader(bool reads = true) : reads_(reads), stream_(std::make_shared<TokenStream>()) {
    stream_->Attach([this] { Read(); });
  }
  ~Reader() { stream_->Detach(); }

  const std::shared_ptr<TokenStream>& stream() const { return stream_; }
  absl::Status End() {
    EXPECT_TRUE(done_.WaitForNotificationWithTimeout(kPatience)) << "the call hangs";
    return done_.HasBeenNotified() ? end_ : absl::InternalError("hangs");
  }
  std::string Reason() { return ViewError(ToGrpcStatus(End(), "")).reason; }
  void AwaitTokens(size_t count) {
    absl::MutexLock lock(&mu_);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu_) { return tokens_.size() >= count; };
    EXPECT_TRUE(mu_.AwaitWithTimeout(absl::Condition(&enough), kPatience)) << tokens_.size() << " tokens";
  }
  std::string text() const {
    absl::MutexLock lock(&mu_);
    return text_;
  }
  std::vector<int32_t> tokens() const {
    absl::MutexLock lock(&mu_);
    return tokens_;
  }
  OutputChunk last() const {
    absl::MutexLock lock(&mu_);
    return last_;
  }
  int finished_choices() const {
    absl::MutexLock lock(&mu_);
    return finished_;
  }

 private:
  void Read() {
    while (reads_) {
      std::optional<OutputChunk> chunk = stream_->Pop(MonotonicNow());
      if (!chunk) break;
      absl::MutexLock lock(&mu_);
      if (chunk->choice == 0 && !chunk->tokens.empty()) {
        EXPECT_EQ(chunk->index, static_cast<int>(tokens_.size()));
      }
      if (chunk->choice == 0) tokens_.insert(tokens_.end(), chunk->tokens.begin(), chunk->tokens.end());
      if (chunk->choice == 0) text_ += chunk->text;
      finished_ += chunk->finished ? 1 : 0;
      last_ = *std::move(chunk);
    }
    absl::Status end;
    if (stream_->Finished(&end) && !done_.HasBeenNotified()) {
      end_ = end;
      done_.Notify();
    }
  }

  const bool reads_;
  const std::shared_ptr<TokenStream> stream_;
  mutable absl::Mutex mu_;
  std::vector<int32_t> tokens_ ABSL_GUARDED_BY(mu_);
  std::string text_ ABSL_GUARDED_BY(mu_);
  OutputChunk last_ ABSL_GUARDED_BY(mu_);
  int finished_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status end_;
  absl::Notification done_;
};

class EngineTest : public testing::Test {
 protected:
  void SetUp() override {
    config.served_model_name = "tiny";
    config.join_token = config.local_token = "secret";
    config.workers = 1;
    config.batching.max_model_len = 0;
    config.batching.max_num_seqs = 4;
    config.batching.max_batched_tokens = 64;
    text = TinyText();
    metrics = std::make_unique<ServerMetrics>("tiny");
  }
  void TearDown() override {
    {
      absl::MutexLock lock(&mu);
      stop = true;
    }
    if (heart.joinable()) heart.join();
    if (engine) engine->Stop();
  }

  void Start() {
    EngineLoop::Hooks hooks;
    hooks.on_ready = [this](bool ready) { SetReady(ready); };
    hooks.on_fenced = [](int, int64_t) {};
    hooks.end_of = [this](int index, int64_t pid) { return index == 0 && pid == kPid ? end_of : "not asked for"; };
    hooks.on_epoch = [](const std::string&) {};
    hooks.on_tick = [this](absl::Time now) {
      absl::MutexLock lock(&mu);
      last_tick = now;
    };
    hooks.on_fatal = [this](std::string why) {
      absl::MutexLock lock(&mu);
      if (fatal.empty()) fatal = std::move(why);
    };
    engine = std::make_unique<EngineLoop>(&config, text.get(), metrics.get(), std::move(hooks));
    engine->Start();
    heart = std::thread([this] { Beat(); });
  }
  // The workers' hearts: the loop's clock is real, and a worker that is silent for 1.5 s is fenced.
  void Beat() {
    absl::MutexLock lock(&mu);
    while (!mu.AwaitWithTimeout(absl::Condition(&stop), absl::Milliseconds(100))) {
      for (WorkerId id : hearts) engine->OnHeartbeat(id);
    }
  }
  std::shared_ptr<ScriptedWorker> Connect(WorkerId id, const std::string& token = "secret", int local_index = 0) {
    auto worker = std::make_shared<ScriptedWorker>(id, engine.get(), num_blocks);
    if (on_connect) on_connect(worker.get());
    WorkerInfo info = model_facts;
    info.incarnation = absl::StrCat("w", id);
    info.join_token = token;
    info.context = 1000;
    info.vocab_size = kFar;
    info.eos_token_ids = {kEnd};
    info.local_index = local_index;
    info.pid = kPid;
    engine->OnRegister(id, worker, info);
    absl::MutexLock lock(&mu);
    hearts.push_back(id);
    return worker;
  }
  void StartReady() {
    Start();
    worker = Connect(1);
    AwaitReady(true);
  }
  void AwaitReady(bool wanted) {
    absl::MutexLock lock(&mu);
    const auto turned = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return ready == wanted; };
    EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&turned), kPatience)) << "readiness does not turn";
  }
  // Until the loop has looked at its time limits at `time` or later.
  void AwaitTick(absl::Time time) {
    absl::MutexLock lock(&mu);
    const auto reached = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return last_tick >= time; };
    EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&reached), kPatience)) << "the loop does not tick";
  }
  // Until groups have come up that often.
  void AwaitUps(int wanted) {
    absl::MutexLock lock(&mu);
    const auto enough = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return ups >= wanted; };
    EXPECT_TRUE(mu.AwaitWithTimeout(absl::Condition(&enough), kPatience)) << ups << " groups came up";
  }
  std::string AwaitFatal() {
    absl::MutexLock lock(&mu);
    const auto told = [&]() ABSL_SHARED_LOCKS_REQUIRED(mu) { return !fatal.empty(); };
    mu.AwaitWithTimeout(absl::Condition(&told), kPatience);
    return fatal;
  }
  void SetReady(bool value) {
    absl::MutexLock lock(&mu);
    ready = value;
    ups += value ? 1 : 0;
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
  // After all that was posted so far.
  void Settle() {
    absl::Notification done;
    engine->Abort("nobody", [&](bool) { done.Notify(); });
    ASSERT_TRUE(done.WaitForNotificationWithTimeout(kPatience));
  }

  ServerConfig config;
  int32_t num_blocks = 100;
  WorkerInfo model_facts;  // of every worker
  std::function<void(ScriptedWorker*)> on_connect;
  std::string end_of;  // how the worker's process ended, for whoever asks
  std::unique_ptr<const TextRoom> text;
  std::unique_ptr<ServerMetrics> metrics;
  std::unique_ptr<EngineLoop> engine;
  std::shared_ptr<ScriptedWorker> worker;
  std::thread heart;
  absl::Mutex mu;
  std::vector<WorkerId> hearts ABSL_GUARDED_BY(mu);
  bool stop ABSL_GUARDED_BY(mu) = false;
  bool ready ABSL_GUARDED_BY(mu) = false;
  int ups ABSL_GUARDED_BY(mu) = 0;
  absl::Time last_tick ABSL_GUARDED_BY(mu) = absl::InfinitePast();
  std::string fatal ABSL_GUARDED_BY(mu);
};

}  // namespace switchyard
