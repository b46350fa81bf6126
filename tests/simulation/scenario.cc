#include "tests/simulation/scenario.h"

#include <algorithm>

#include "tests/simulation/serving/token_model.h"

namespace switchyard::simulation {
namespace {

constexpr char kSharedToken[] = "shared secret", kLocalToken[] = "local secret";

void DrawCluster(Random* random, Scenario* scenario) {
  server::ServerConfig& config = scenario->config;
  config.served_model_name = "simulated";
  config.join_token = kSharedToken;
  config.local_token = kLocalToken;
  config.workers = static_cast<int>(random->Between(1, 3));
  config.local_workers = static_cast<int>(random->OneIn(3) ? random->Between(0, config.workers) : config.workers);
  batching::BatchingPolicy& batching = config.batching;
  batching.block_size = 4;
  batching.max_num_seqs = static_cast<int32_t>(random->Between(1, 4));
  batching.max_batched_tokens = static_cast<int32_t>(random->Between(4, 48));
  batching.prefill_chunk = random->OneIn(3) ? static_cast<int32_t>(random->Between(1, 8)) : 0;
  batching.max_model_len = 64;
  batching.max_queue = static_cast<int32_t>(random->Between(4, 24));
  batching.prefix_reuse = !random->OneIn(4);
  batching.preempt_every_step = random->OneIn(10);
  config.slow_client_timeout = kSlowReader;
  config.drain_timeout = absl::Seconds(1);
  config.start_timeout = absl::Seconds(random->Between(8, 20));
  config.step_timeout = absl::Seconds(3);
  config.row_timeout = absl::Milliseconds(50);
  ServingWorker::Model& model = scenario->model;
  model.block_size = batching.block_size;
  model.num_slots = batching.max_num_seqs;
  model.num_blocks = static_cast<int32_t>(random->Between(10, 48));
  model.context = 64;
  model.load = random->Skewed(absl::Milliseconds(10), absl::Milliseconds(800));
  // Long requests meet more faults.
  if (random->OneIn(2)) model.step = random->Between(absl::Milliseconds(5), absl::Milliseconds(80));
  model.says_again = random->OneIn(2);
  scenario->max_context = std::min(batching.max_model_len, model.num_blocks * model.block_size);
}

std::vector<int32_t> DrawPrompt(Random* random, int32_t longest) {
  std::vector<int32_t> prompt;
  const int64_t length = random->Between(1, random->OneIn(3) ? longest : std::min(longest, 12));
  // Few beginnings, so that prefixes are shared.
  const int64_t family = random->Between(0, 2), shared = random->Between(0, length);
  for (int64_t i = 0; i < length; ++i)
    prompt.push_back(static_cast<int32_t>(i < shared ? (family * 11 + i) % (kPoison - 1) : random->Below(kPoison)));
  return prompt;
}

Wish DrawWish(Random* random, const Scenario& scenario, int id) {
  Wish wish;
  wish.id = id;
  wish.prompt = DrawPrompt(random, scenario.max_context - 2);
  wish.num_choices = random->OneIn(4) ? static_cast<int32_t>(random->Between(2, 4)) : 1;
  wish.max_tokens = static_cast<int32_t>(random->OneIn(4) ? random->Between(1, 50) : random->Between(1, 16));
  wish.seed = random->Next();
  wish.constrained = wish.seed % 3 == 0;
  wish.logprobs = random->OneIn(6);
  wish.calls = static_cast<int>(random->Between(1, 4));
  if (random->OneIn(5)) wish.deadline = random->Skewed(absl::Milliseconds(1), absl::Seconds(8));
  if (random->OneIn(5)) {
    wish.cancel_after = random->Skewed(absl::Microseconds(100), absl::Seconds(3));
    wish.aborts = random->OneIn(3);
  }
  if (random->OneIn(6)) wish.read_pause = random->Skewed(absl::Milliseconds(1), absl::Milliseconds(300));
  if (random->OneIn(8)) {
    wish.stall_at = static_cast<int32_t>(random->Between(0, 3));
    wish.stall = random->Between(absl::Milliseconds(500), absl::Seconds(3));
  }
  return wish;
}

// How long a worker computes for this request, its choices one after the other.
absl::Duration WorkOf(const Wish& wish, const Scenario& scenario) {
  const batching::BatchingPolicy& batching = scenario.config.batching;
  const int64_t chunk = batching.prefill_chunk > 0 ? std::min(batching.prefill_chunk, batching.max_batched_tokens)
                                                   : batching.max_batched_tokens;
  const int64_t tokens =
      std::min<int64_t>(static_cast<int64_t>(wish.prompt.size()) + wish.max_tokens, scenario.max_context);
  // With preempt_every_step all is computed again for each output.
  const int64_t prefills = batching.preempt_every_step ? wish.max_tokens : 1;
  return wish.num_choices * (prefills * (tokens / chunk + 1) + wish.max_tokens) * scenario.model.step;
}

void DrawTrainers(Random* random, Scenario* scenario) {
  scenario->num_trainers = static_cast<int>(random->Between(1, 3));
  scenario->num_local_trainers =
      random->OneIn(3) ? static_cast<int>(random->Between(0, scenario->num_trainers)) : scenario->num_trainers;
  server::JobManager::Options& jobs = scenario->jobs;
  jobs.trainers.configured = scenario->num_trainers;
  jobs.trainers.tokens = {.shared = kSharedToken, .local = kLocalToken};
  jobs.limits = {.form = absl::Seconds(6),
                 .stall = absl::Seconds(8),
                 .stop_now = absl::Seconds(2),
                 .cancel_save = absl::Seconds(3),
                 .last_ranks = absl::Seconds(2),
                 .abort = absl::Seconds(2)};
  jobs.max_losses = 1000;
  jobs.longest_pause = absl::Seconds(2);
  jobs.save_progress = absl::Milliseconds(300);
  jobs.form_deadline_ms = 4000;
}

JobUser::Plan DrawUser(Random* random, const Scenario& scenario, int id) {
  JobUser::Plan plan;
  plan.id = id;
  plan.names_request = !random->OneIn(3);
  jobs::JobSpec& spec = plan.spec;
  spec.architecture = "demo";
  spec.datasets = {random->OneIn(3) ? "a.jsonl" : "a.bin"};
  spec.steps = random->Between(1, 60);
  spec.sequence_length = 8;
  spec.batch_sequences = 12;
  spec.workers = static_cast<int32_t>(random->Between(1, scenario.num_trainers));
  spec.optimizer.schedule.total_steps = spec.steps;
  spec.checkpoints.every_steps = random->Between(2, 20);
  if (random->OneIn(3)) plan.pause = random->Skewed(absl::Milliseconds(50), absl::Seconds(6));
  if (random->OneIn(4)) plan.resume = random->Skewed(absl::Milliseconds(50), absl::Seconds(8));
  if (random->OneIn(4)) plan.cancel = random->Skewed(absl::Milliseconds(50), absl::Seconds(8));
  return plan;
}

}  // namespace

Scenario DrawScenario(Random* random) {
  Scenario scenario;
  DrawCluster(random, &scenario);
  scenario.faults_end = random->Between(absl::Seconds(2), absl::Seconds(8));
  scenario.num_faults = static_cast<int>(random->OneIn(8) ? random->Between(8, 20) : random->Between(0, 5));
  scenario.num_forming_faults = random->OneIn(2) ? static_cast<int>(random->Between(1, 3)) : 0;
  const bool trains = random->OneIn(2);
  if (trains) DrawTrainers(random, &scenario);
  const int64_t num_users = trains ? random->Between(1, 4) : 0;
  for (int id = 0; id < num_users; ++id) {
    scenario.users.emplace_back(random->Between(absl::ZeroDuration(), scenario.faults_end),
                                DrawUser(random, scenario, id));
  }
  const int64_t num_requests = random->Between(1, trains ? 4 : 12);
  scenario.poisoned = random->OneIn(12);
  for (int id = 0; id < num_requests; ++id) {
    Wish wish = DrawWish(random, scenario, id);
    if (scenario.poisoned && id == 0) wish.prompt[0] = kPoison;
    scenario.work += WorkOf(wish, scenario);
    scenario.requests.emplace_back(random->Between(absl::ZeroDuration(), scenario.faults_end), std::move(wish));
  }
  return scenario;
}

}  // namespace switchyard::simulation
