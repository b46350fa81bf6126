#include "scheduler/jobs/job_spec.h"

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace switchyard::jobs {
namespace {

JobSpec Good() {
  return {.base_checkpoint = "demo/step-00001000",
          .datasets = {"text/train.jsonl", "more.bin"},
          .steps = 100,
          .sequence_length = 256,
          .batch_sequences = 24,
          .micro_batch_sequences = 4,
          .workers = 2,
          .labels = {{"team", "demo"}}};
}

std::string Wrong(const std::function<void(JobSpec*)>& edit) {
  JobSpec spec = Good();
  edit(&spec);
  const absl::Status status = Validate(spec);
  EXPECT_TRUE(status.ok() || status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(JobSpecTest, AGoodOne) {
  EXPECT_EQ(Wrong([](JobSpec*) {}), "");
}

TEST(JobSpecTest, ItsModelIsInOneFolder) {
  EXPECT_EQ(ModelFolder(Good()), "demo/step-00001000");
  EXPECT_EQ(ModelFolder({.architecture = "demo"}), "demo");
  EXPECT_TRUE(IsText("text/train.jsonl"));
  EXPECT_FALSE(IsText("more.bin"));
}

TEST(JobSpecTest, EpochsStandInForSteps) {
  const auto epochs = [](double epochs, int64_t steps = 0) {
    return Wrong([&](JobSpec* s) {
      s->steps = steps;
      s->epochs = epochs;
      s->optimizer.schedule.warmup_steps = 1000;  // how many steps there are is not known yet
    });
  };
  EXPECT_EQ(epochs(3), "");
  EXPECT_EQ(epochs(0.001), "");
  EXPECT_EQ(epochs(-1), "epochs: -1 is outside [0.001, 1e+06)");
  EXPECT_EQ(epochs(1e6), "epochs: 1e+06 is outside [0.001, 1e+06)");
  EXPECT_EQ(epochs(std::numeric_limits<double>::quiet_NaN()), "epochs: nan is outside [0.001, 1e+06)");
  EXPECT_EQ(epochs(2, 10), "steps, epochs: 10 steps and 2 epochs; one of both is wanted");
}

TEST(JobSpecTest, WeightsAreOneForEachDataset) {
  const auto weights = [](std::vector<double> weights) {
    return Wrong([&](JobSpec* s) { s->dataset_weights = std::move(weights); });
  };
  EXPECT_EQ(weights({3, 1}), "");
  EXPECT_EQ(weights({1, 16383}), "");
  EXPECT_EQ(weights({1, 16384}), "dataset_weights[0]: 1 of 16385 is less than one of 16384 sequences");
  EXPECT_EQ(weights({1}), "dataset_weights: 1 for 2 datasets; none, or one for each is wanted");
  EXPECT_EQ(weights({1, 0}), "dataset_weights[1]: 0 is outside [1e-06, 1e+09)");
  EXPECT_EQ(weights({-1, 1}), "dataset_weights[0]: -1 is outside [1e-06, 1e+09)");
  EXPECT_EQ(weights({1, std::numeric_limits<double>::infinity()}), "dataset_weights[1]: inf is outside [1e-06, 1e+09)");
  EXPECT_EQ(Wrong([](JobSpec* s) {
              s->datasets = {"a.bin"};
              s->dataset_weights = {1};
            }),
            "dataset_weights: one dataset is all of the data and needs no weight");
}

std::vector<std::string> SetsOf(std::vector<std::string> files, std::vector<std::string> names) {
  JobSpec spec = Good();
  spec.evaluation = std::move(files);
  spec.evaluation_names = std::move(names);
  std::vector<std::string> sets;
  for (const EvaluationSet& set : EvaluationSetsOf(spec)) {
    sets.push_back(set.name + ":");
    for (const size_t file : set.files) sets.back() += " " + spec.evaluation[file];
  }
  return sets;
}

TEST(JobSpecTest, FilesOfOneNameAreOneSet) {
  using testing::ElementsAre;
  EXPECT_THAT(SetsOf({}, {}), testing::IsEmpty());
  EXPECT_THAT(SetsOf({"a.bin", "b.jsonl"}, {}), ElementsAre(": a.bin b.jsonl")) << "a journal's from before";
  EXPECT_THAT(SetsOf({"a.bin", "b.jsonl", "c.bin", "b.jsonl"}, {"x", "y", "x", "z"}),
              ElementsAre("x: a.bin c.bin", "y: b.jsonl", "z: b.jsonl"));
}

TEST(JobSpecTest, WithoutNamesAFileIsASet) {
  using testing::ElementsAre;
  EXPECT_THAT(DefaultSetNames({"a.bin", "held/a.b.jsonl", "a.jsonl", ".bin"}),
              ElementsAre("a", "held/a.b", "a", ".bin"));
  EXPECT_THAT(DefaultSetNames({"a\tb.bin"}), ElementsAre("a\\tb")) << "names are parts of lines";
  std::vector<std::string> many;
  for (size_t i = 0; i < kMaxEvaluationSets; ++i) many.push_back(std::to_string(i) + ".bin");
  EXPECT_EQ(DefaultSetNames(many).back(), "63");
  many.push_back("one more.bin");
  EXPECT_THAT(DefaultSetNames(many), testing::Each(kOneSet)) << "so that a spec without names has no limit";
}

TEST(JobSpecTest, NamesAreOneForEachFileOfEvaluation) {
  const auto names = [](std::vector<std::string> names) {
    return Wrong([&](JobSpec* s) {
      s->evaluation = {"a.bin", "b.bin"};
      s->evaluation_names = std::move(names);
    });
  };
  EXPECT_EQ(names({}), "");
  EXPECT_EQ(names({"a", "a"}), "");
  EXPECT_EQ(names({"a"}), "evaluation_names: 1 for 2 files of evaluation; none, or one for each is wanted");
  EXPECT_EQ(names({"a", ""}), "evaluation_names[1]: \"\": 1 to 4096 bytes without control characters are wanted");
  EXPECT_EQ(names({"a\n", "b"}),
            "evaluation_names[0]: \"a\\n\": 1 to 4096 bytes without control characters are wanted");
  EXPECT_EQ(Wrong([](JobSpec* s) {
              for (int i = 0; i < 65; ++i) {
                s->evaluation.push_back("a.bin");
                s->evaluation_names.push_back(std::to_string(i));
              }
            }),
            "evaluation_names: 65 sets, at most 64");
}

TEST(JobSpecTest, WhatEvaluationsDecideWantsEvaluations) {
  const auto with = [](int64_t every, EarlyStopSpec stop, bool keep_best = false, bool files = true) {
    return Wrong([&](JobSpec* s) {
      if (files) s->evaluation = {"a.bin"};
      s->evaluate_every_steps = every;
      s->early_stop = stop;
      s->checkpoints.keep_best = keep_best;
    });
  };
  EXPECT_EQ(with(5, {.patience = 3, .min_improvement = 0.01}, true), "");
  EXPECT_EQ(with(0, {}, true), "") << "the one at the end";
  EXPECT_EQ(with(5, {.patience = -1}), "early_stop.patience: -1 is outside [0, 1000000]");
  EXPECT_EQ(with(5, {.patience = 1, .min_improvement = -1}), "early_stop.min_improvement: -1 is outside [0, 1e+06)");
  EXPECT_EQ(with(5, {.min_improvement = 0.5}),
            "early_stop.min_improvement: 0.5, but early_stop.patience is 0, so the job does not end early");
  EXPECT_EQ(with(0, {.patience = 2}),
            "early_stop.patience: 2, but evaluate_every_steps is 0: the only evaluation is at the end");
  EXPECT_EQ(with(5, {.patience = 2}, false, false), "early_stop.patience: 2, but there are no files of evaluation");
  EXPECT_EQ(with(5, {}, true, false),
            "checkpoints.keep_best: there are no files of evaluation, so no checkpoint is the best");
}

TEST(JobSpecTest, RulesOfParameters) {
  const auto rule = [](ParameterRule rule) {
    return Wrong([&](JobSpec* s) { s->parameters = {{.pattern = "*.bias", .frozen = true}, rule}; });
  };
  EXPECT_EQ(rule({.pattern = "*.experts.*", .frozen = true}), "");
  EXPECT_EQ(rule({.pattern = "*norm*", .rate = 0.1, .weight_decay = 0}), "");
  EXPECT_EQ(rule({.pattern = "*"}), "");  // as ever, whatever the later rules say
  const std::string wanted = ": 1 to 256 bytes without control characters are wanted";
  EXPECT_EQ(rule({}), "parameters[1]: pattern \"\"" + wanted);
  EXPECT_THAT(rule({.pattern = std::string(257, 'a')}), testing::HasSubstr(wanted));
  EXPECT_THAT(rule({.pattern = "a\n"}), testing::HasSubstr(wanted));
  EXPECT_EQ(rule({.pattern = "a", .frozen = true, .rate = 1}),
            "parameters[1]: \"a\" is frozen, so it has no rate and no weight_decay");
  EXPECT_EQ(rule({.pattern = "a", .rate = 0}), "parameters[1].rate: 0 is outside [1e-06, 1e+06)");
  EXPECT_EQ(rule({.pattern = "a", .rate = 1e5}), "parameters[1]: learning rate 30, at most 10");
  EXPECT_EQ(rule({.pattern = "a", .weight_decay = -1}), "parameters[1].weight_decay: -1 is outside [0, 10)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->parameters.resize(65); }), "parameters: 65 rules, at most 64");
}

TEST(JobSpecTest, DropoutAndJitter) {
  const auto wrong = [](DropoutSpec dropout, std::optional<double> jitter = {}) {
    return Wrong([&](JobSpec* s) {
      s->dropout = dropout;
      s->router_jitter = jitter;
    });
  };
  EXPECT_EQ(wrong({.embedding = 0, .hidden = 0.999, .attention = 0.5}, 0.5), "");
  EXPECT_EQ(wrong({.embedding = -0.1}), "dropout.embedding: -0.1 is outside [0, 1)");
  EXPECT_EQ(wrong({.hidden = 1}), "dropout.hidden: 1 is outside [0, 1)");
  EXPECT_EQ(wrong({.attention = std::nan("")}), "dropout.attention: nan is outside [0, 1)");
  EXPECT_EQ(wrong({}, 1), "router_jitter: 1 is outside [0, 1)");
  EXPECT_EQ(wrong({}, std::numeric_limits<double>::infinity()), "router_jitter: inf is outside [0, 1)");
}

TEST(JobSpecTest, Adapters) {
  const auto lora = [](
                        LoraSpec lora, const std::function<void(JobSpec*)>& edit = [](JobSpec*) {}) {
    return Wrong([&](JobSpec* s) {
      s->lora = lora;
      edit(s);
    });
  };
  EXPECT_EQ(lora({.rank = 8}), "");
  EXPECT_EQ(lora({.rank = 8, .alpha = 0.5, .targets = {"q_proj", "o_proj"}}), "");
  EXPECT_EQ(LoraSpec({.rank = 8}).scale(), 1);
  EXPECT_EQ(LoraSpec({.rank = 8, .alpha = 16}).scale(), 2);
  EXPECT_EQ(lora({.alpha = 16}), "lora.rank: 0, but the job has other fields of lora");
  EXPECT_EQ(lora({.dropout = 0.5}), "lora.rank: 0, but the job has other fields of lora");
  EXPECT_EQ(lora({.rank = 8, .dropout = 0.5}), "");
  EXPECT_EQ(lora({.rank = 8, .dropout = 1}), "lora.dropout: 1 is outside [0, 1)");
  EXPECT_EQ(lora({.rank = -1}), "lora.rank: -1 is outside [1, 1024]");
  EXPECT_EQ(lora({.rank = 1025}), "lora.rank: 1025 is outside [1, 1024]");
  EXPECT_EQ(lora({.rank = 8, .alpha = -2}), "lora.alpha: -2 is outside [1e-06, 1e+06)");
  EXPECT_EQ(lora({.rank = 8, .targets = {"q_proj", "gate_up_proj", "down_proj"}}), "");
  EXPECT_EQ(lora({.rank = 8, .targets = {"q_proj", "gate"}}),
            "lora.targets[1]: \"gate\"; known are q_proj, k_proj, v_proj, o_proj of attention and gate_up_proj, "
            "down_proj of experts; routers, embeddings and other feed-forwards have no adapters");
  for (const std::string target : {"gate_proj", "up_proj"}) {
    EXPECT_EQ(lora({.rank = 8, .targets = {target, "down_proj"}}),
              "lora.targets[0]: \"" + target +
                  "\"; gate and up of an expert are one matrix, as in PEFT, which gate_up_proj adapts; "
                  "shared experts have no adapters");
  }
  EXPECT_EQ(lora({.rank = 8, .targets = {"q_proj", "down_proj"}, .dropout = 0.1}),
            "lora.dropout: 0.1, but adapters of experts have none, as in PEFT, which refuses it");
  EXPECT_EQ(lora({.rank = 8, .targets = {"q_proj", "q_proj"}}), "lora.targets[1]: \"q_proj\" is there twice");
  EXPECT_EQ(lora({.rank = 8},
                 [](JobSpec* s) {
                   s->architecture = s->base_checkpoint;
                   s->base_checkpoint.clear();
                 }),
            "lora: wants a base_checkpoint, whose weights adapters go with");
  EXPECT_EQ(lora({.rank = 8}, [](JobSpec* s) { s->balance_bias_rate = 0.1; }),
            "balance_bias_rate: with lora routers' biases are the base's");
  for (const PackingChoice packing : {PackingChoice{.rule = PackingRule::kTrials, .replicas = 0},
                                      PackingChoice{.rule = PackingRule::kFixed, .replicas = 2}}) {
    EXPECT_THAT(lora({.rank = 8}, [&](JobSpec* s) { s->communication.packing = packing; }),
                testing::StartsWith("communication.expert_packing: with lora experts have one replica"));
  }
  EXPECT_EQ(lora({.rank = 8}, [](JobSpec* s) { s->offload = OffloadPolicy::kAlways; }),
            "offload: always, but with lora nothing is offloaded: masters and moments of adapters stay in memory");
  EXPECT_EQ(
      lora({.rank = 8}, [](JobSpec* s) { s->zero = 1; }),
      "zero: 1, but with lora nothing is sharded: every worker has the state of attention's adapters, and of experts' "
      "those of its own experts");
}

TEST(JobSpecTest, Preferences) {
  const auto dpo = [](
                       DpoSpec dpo, const std::function<void(JobSpec*)>& edit = [](JobSpec*) {}) {
    return Wrong([&](JobSpec* s) {
      s->dpo = dpo;
      s->document_mask = true;
      s->packing = WindowPacking::kBestFit;
      edit(s);
    });
  };
  EXPECT_EQ(dpo({.beta = 0.1}), "");
  EXPECT_EQ(dpo({.beta = 0.1, .label_smoothing = 0.49}), "");
  EXPECT_EQ(dpo({.beta = -0.1}), "dpo.beta: -0.1 is outside [1e-06, 1000)");
  EXPECT_EQ(dpo({.beta = std::numeric_limits<double>::infinity()}), "dpo.beta: inf is outside [1e-06, 1000)");
  EXPECT_EQ(dpo({.beta = std::numeric_limits<double>::quiet_NaN()}), "dpo.beta: nan is outside [1e-06, 1000)");
  EXPECT_EQ(dpo({.beta = 0.1, .label_smoothing = 0.5}), "dpo.label_smoothing: 0.5 is outside [0, 0.5)");
  EXPECT_EQ(dpo({.beta = 0.1, .label_smoothing = -0.1}), "dpo.label_smoothing: -0.1 is outside [0, 0.5)");
  EXPECT_EQ(dpo({.label_smoothing = 0.1}),
            "dpo.label_smoothing: 0.1, but dpo.beta is 0, so the job has no preferences");
  EXPECT_EQ(dpo({.beta = 0.1}, [](JobSpec* s) { s->packing = WindowPacking::kConcatenate; }),
            "packing: concatenate, but with dpo both answers of a pair are in one sequence: best_fit");
  EXPECT_EQ(dpo({.beta = 0.1},
                [](JobSpec* s) {
                  s->document_mask = false;
                  s->packing = WindowPacking::kConcatenate;
                }),
            "document_mask: off, but with dpo each answer is a text of its own\n"
            "packing: concatenate, but with dpo both answers of a pair are in one sequence: best_fit");
  EXPECT_EQ(dpo({.beta = 0.1},
                [](JobSpec* s) {
                  s->architecture = s->base_checkpoint;
                  s->base_checkpoint.clear();
                }),
            "dpo: wants a base_checkpoint, which is the reference");
}

TEST(JobSpecTest, WholeDocumentsAreApart) {
  EXPECT_EQ(Wrong([](JobSpec* s) { s->packing = WindowPacking::kBestFit; }),
            "packing: best_fit keeps documents apart, which wants document_mask on; concatenate goes with off");
  EXPECT_EQ(Wrong([](JobSpec* s) {
              s->packing = WindowPacking::kBestFit;
              s->document_mask = true;
            }),
            "");
}

TEST(JobSpecTest, ReplicasOfExpertsDivideTheWorkers) {
  EXPECT_EQ(Wrong([](JobSpec* s) {
              s->workers = 4;
              s->micro_batch_sequences = 0;
              s->communication.packing = {.rule = PackingRule::kFixed, .replicas = 3};
            }),
            "communication.expert_packing: 3 replicas of each expert do not divide 4 workers");
}

TEST(JobSpecTest, PiecesHaveASizeOrTheLinks) {
  EXPECT_EQ(Wrong([](JobSpec* s) { s->communication.piece_bytes = 1; }),
            "communication.piece_bytes: 1 is outside [1024, 1099511627776]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->communication.piece_bytes = -1; }),
            "communication.piece_bytes: -1 is outside [1024, 1099511627776]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->communication.piece_bytes = kPiecesByLink; }), "");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->communication.piece_bytes = 1024; }), "");
}

TEST(JobSpecTest, EachFieldHasItsLimits) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Wrong([](JobSpec* s) { s->architecture = "a"; }), "base_checkpoint, architecture: exactly one is wanted");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->base_checkpoint = ""; }), "base_checkpoint, architecture: exactly one is wanted");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->datasets.clear(); }), "datasets: none");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->datasets[1] = "x.txt"; }),
            "datasets[1]: \"x.txt\" ends neither in .jsonl nor in .bin");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->steps = 0; }), "steps: 0 is outside [1, 9007199254740992]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->steps = kMaxTrainSteps + 1; }),
            "steps: 9007199254740993 is outside [1, 9007199254740992]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->sequence_length = -1; }), "sequence_length: -1 is outside [1, 1048576]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->workers = 5; }),
            "batch_sequences: 24 cannot be dealt out to 5 workers in equal parts");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->micro_batch_sequences = 5; }),
            "micro_batch_sequences: 5 does not divide a worker's 12 sequences of a step (0 = all of them)");
  EXPECT_EQ(Wrong([&](JobSpec* s) { s->optimizer.schedule.peak = nan; }),
            "optimizer: learning rate: peak is nan, must be positive and finite");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->optimizer.schedule.peak = 1e300; }),
            "optimizer: learning rate: peak is 1e+300, must be at most 10");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->optimizer.schedule.peak = 10; }), "");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->optimizer.epsilon = 1e-300; }),
            "optimizer.epsilon: 1e-300 is outside [1e-30, 1)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->optimizer.schedule.warmup_steps = 101; }),
            "optimizer: learning rate: warmup_steps is 101, must be in [0, total_steps]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->optimizer.beta2 = 1; }), "optimizer.beta2: 1 is outside [0, 1)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->optimizer.epsilon = 0; }), "optimizer.epsilon: 0 is outside [1e-30, 1)");
  EXPECT_EQ(Wrong([&](JobSpec* s) { s->optimizer.weight_decay = nan; }),
            "optimizer.weight_decay: nan is outside [0, 10)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->optimizer.clip_norm = -1; }), "optimizer.clip_norm: -1 is outside [0, 1e+30)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->communication.granularity = {.rule = ChunkRule::kFixed, .chunks = 65}; }),
            "communication.granularity: 65 chunks are outside [1, 64]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->balance_weight = -0.1; }), "balance_weight: -0.1 is outside [0, 1e+06)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->capacity_factor = kMinCapacityFactor; }), "");
  const std::string capacity = "capacity_factor (0 = no row is dropped): ";
  EXPECT_EQ(Wrong([](JobSpec* s) { s->capacity_factor = -1; }), capacity + "-1 is outside [0.1, 1e+06)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->capacity_factor = 1e-9; }), capacity + "1e-09 is outside [0.1, 1e+06)");
  EXPECT_EQ(Wrong([&](JobSpec* s) { s->capacity_factor = nan; }), capacity + "nan is outside [0.1, 1e+06)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->capacity_factor = std::numeric_limits<double>::infinity(); }),
            capacity + "inf is outside [0.1, 1e+06)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->balance_bias_rate = -0.001; }), "balance_bias_rate: -0.001 is outside [0, 1)");
  EXPECT_EQ(Wrong([&](JobSpec* s) { s->balance_bias_rate = nan; }), "balance_bias_rate: nan is outside [0, 1)");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->checkpoints.every_steps = 0; }),
            "checkpoints.every_steps: 0 is outside [1, 9007199254740992]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->checkpoints.keep_last = 0; }),
            "checkpoints.keep_last: 0 is outside [1, 1000000]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->labels.push_back({"team", "x"}); }), "labels: \"team\" is there twice");
  EXPECT_EQ(Wrong([](JobSpec* s) {
              s->labels = {{"", "x"}};
            }),
            "labels: \"\" = \"x\": a name of 1 to 63 bytes and a value of at most as many are wanted");
  // They are printed in tables of one line a job.
  for (const char* text : {"a\nb", "a\tb", "\x1b[2J", "a\x7f"}) {
    EXPECT_THAT(Wrong([&](JobSpec* s) { s->labels = {{text, "x"}}; }), testing::EndsWith("no control characters"));
    EXPECT_THAT(Wrong([&](JobSpec* s) { s->labels = {{"x", text}}; }), testing::EndsWith("no control characters"));
  }
  EXPECT_EQ(Wrong([](JobSpec* s) { s->labels = {{"équipe", "ß x"}}; }), "");
}

TEST(JobSpecTest, DenseStateIsShardedOrNot) {
  EXPECT_EQ(Wrong([](JobSpec* s) { s->zero = 1; }), "");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->zero = 2; }), "zero: 2 is outside [0, 1]");
  EXPECT_EQ(Wrong([](JobSpec* s) { s->zero = -1; }), "zero: -1 is outside [0, 1]");
}

TEST(JobSpecTest, AllProblemsAtOnce) {
  EXPECT_EQ(Wrong([](JobSpec* s) {
              s->steps = 0;
              s->datasets = {"/etc/passwd.bin"};
              s->z_weight = -1;
            }),
            "datasets[0]: \"/etc/passwd.bin\": path must be under the dataset root: it is absolute\n"
            "steps: 0 is outside [1, 9007199254740992]\n"
            "z_weight: -1 is outside [0, 1e+06)");
}

TEST(JobSpecTest, PathsStayBeneath) {
  const auto why = [](const std::string& path) {
    const std::string message(CheckRelativePath(path, "R").message());
    return message.substr(std::min(message.size(), message.find(": path must be under R: ")));
  };
  const std::string head = ": path must be under R: ";
  EXPECT_TRUE(CheckRelativePath("a/b-c_1.bin", "R").ok());
  EXPECT_TRUE(CheckRelativePath("..a/b..", "R").ok());
  EXPECT_EQ(why(""), head + "it is empty");
  EXPECT_EQ(why("/a"), head + "it is absolute");
  EXPECT_EQ(why("~/a"), head + "it begins with ~");
  EXPECT_EQ(why("http://a/b"), head + "it is a URL");
  EXPECT_EQ(why(std::string("a\0b", 3)), head + "it has a NUL");
  EXPECT_EQ(why(std::string(5000, 'a')), head + "5000 bytes, at most 4096");
  for (const char* path : {"..", "a/../b", "a/..", "./a", "a//b", "a/"}) {
    EXPECT_EQ(why(path), head + "it has an empty part, . or ..") << path;
  }
  // No more than 64 bytes of it, and none that a terminal would obey.
  EXPECT_LT(CheckRelativePath("/" + std::string(4000, '\x1b'), "R").message().size(), 400u);
}

TEST(JobSpecTest, OffloadGoesWithAllModes) {
  JobSpec spec = Good();
  for (const CommMode mode : {CommMode::kPriority, CommMode::kPipelining, CommMode::kFull}) {
    spec.communication.mode = mode;
    for (const OffloadPolicy offload : {OffloadPolicy::kNever, OffloadPolicy::kAuto, OffloadPolicy::kAlways}) {
      spec.offload = offload;
      EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
    }
  }
}

TEST(JobSpecTest, WhatIsNotKeptIsNotRestored) {
  JobSpec spec = Good();
  spec.restore.hidden = pipeline::HiddenRestore::kRecompute;
  EXPECT_TRUE(Validate(spec).ok()) << Validate(spec);
  spec.recompute = true;
  EXPECT_EQ(Validate(spec).message(),
            "restore_input, restore_hidden: with recompute layers keep nothing that could be restored");
}

}  // namespace
}  // namespace switchyard::jobs
