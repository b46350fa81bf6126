// switchyard train submit: a job as flags, as a file, or both.
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_replace.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cli/request_fields.h"
#include "google/protobuf/util/json_util.h"
#include "tests/clients/cli/train_fixture.h"

namespace switchyard::cli {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// Returns a valid spec, padded to this many bytes.
std::string SpecOfBytes(size_t bytes) {
  const std::string spec = R"({"steps": 8})";
  return spec + std::string(bytes - spec.size(), ' ');
}

TEST_F(TrainCommandTest, SubmitSendsFlagsAndPrintsTheId) {
  const client::CliRun run =
      Train({"submit", "--architecture=demo", "--dataset=a.jsonl", "--dataset=b.bin", "--steps=20",
             "--learning_rate=1e-3", "--schedule=wsd", "--precision=bf16", "--recompute", "--zero=1",
             "--checkpoint_every_steps=5", "--piece_bytes=65536", "--granularity=4", "--expert_packing=2",
             "--label=try=2", "--seed=18446744073709551615", "--request_id=r1"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(run.out, "job-1\n");
  const v1::JobSpec& spec = training_.submitted.spec();
  EXPECT_EQ(training_.submitted.request_id(), "r1");
  EXPECT_EQ(spec.architecture(), "demo");
  EXPECT_THAT(spec.datasets(), ElementsAre("a.jsonl", "b.bin"));
  EXPECT_EQ(spec.steps(), 20);
  EXPECT_EQ(spec.optimizer().learning_rate(), 1e-3);
  EXPECT_FALSE(spec.optimizer().has_beta1());
  EXPECT_EQ(spec.optimizer().schedule(), v1::LR_SHAPE_WSD);
  EXPECT_EQ(spec.precision(), v1::TRAIN_PRECISION_BF16);
  EXPECT_TRUE(spec.recompute());
  EXPECT_EQ(spec.zero(), 1);
  EXPECT_EQ(spec.checkpoints().every_steps(), 5);
  EXPECT_EQ(spec.communication().piece_bytes(), 65536);
  EXPECT_EQ(spec.communication().granularity(), "4");
  EXPECT_EQ(spec.communication().expert_packing(), "2");
  EXPECT_EQ(spec.labels().at("try"), "2");
  EXPECT_EQ(spec.seed(), 18446744073709551615u);
}

TEST_F(TrainCommandTest, FlagsWinOverTheFile) {
  const client::CliRun run =
      Train({"submit", SpecFile(R"({"architecture": "demo", "datasets": ["a.bin"], "steps": 7, "seed": 9,
                                         "optimizer": {"learning_rate": 0.5, "schedule": "linear"},
                                         "labels": {"a": "b"}})"),
             "--dataset=c.bin", "--steps=8", "--clip_norm=0"});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  const v1::JobSpec& spec = training_.submitted.spec();
  EXPECT_THAT(spec.datasets(), ElementsAre("c.bin"));
  EXPECT_EQ(spec.steps(), 8);
  EXPECT_EQ(spec.seed(), 9u);
  EXPECT_EQ(spec.optimizer().learning_rate(), 0.5);
  EXPECT_TRUE(spec.optimizer().has_clip_norm());
  EXPECT_EQ(spec.labels().at("a"), "b");
}

// What a job's JSON shows can be submitted again.
TEST_F(TrainCommandTest, SpecsComeBack) {
  ASSERT_EQ(Train({"submit", "--architecture=demo", "--dataset=a.bin", "--beta2=0.99", "--balance=per_layer",
                   "--label=a=b", "--label=c=d"})
                .exit_code,
            0);
  const v1::JobSpec first = training_.submitted.spec();
  const client::CliRun run = Train({"submit", SpecFile(Dump(ToJson(first)))});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(ToJson(training_.submitted.spec()), ToJson(first));
  EXPECT_EQ(ToJson(first)["labels"], Json({{"a", "b"}, {"c", "d"}}));
}

TEST_F(TrainCommandTest, ADatasetMayHaveAWeight) {
  const auto sent = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "submit");
    const client::CliRun run = Train(flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return training_.submitted.spec();
  };
  const v1::JobSpec first =
      sent({"--dataset=a.jsonl:3", "--dataset=b:c.bin", "--dataset=d:1.bin:0.5", "--epochs=1.5", "--packing=best_fit"});
  EXPECT_THAT(first.datasets(), ElementsAre("a.jsonl", "b:c.bin", "d:1.bin"));
  EXPECT_THAT(first.dataset_weights(), ElementsAre(3, 1, 0.5));
  EXPECT_EQ(first.epochs(), 1.5);
  EXPECT_EQ(first.steps(), 0);
  EXPECT_EQ(first.packing(), v1::WINDOW_PACKING_BEST_FIT);
  EXPECT_EQ(ToJson(sent({SpecFile(Dump(ToJson(first)))})), ToJson(first)) << "a job's JSON can be submitted again";
  EXPECT_TRUE(sent({"--dataset=a.jsonl", "--dataset=b.bin"}).dataset_weights().empty());
  for (const std::string weight : {"many", "", "0", "-1", "nan"}) {
    const client::CliRun run = Train({"submit", "--dataset=a.jsonl:" + weight});
    EXPECT_EQ(run.exit_code, 2) << weight;
    EXPECT_THAT(
        run.err,
        HasSubstr("--dataset must be PATH or PATH:WEIGHT with a positive weight, is \"a.jsonl:" + weight + "\""));
  }
  const client::CliRun run = Train({"submit", SpecFile(R"({"dataset_weights": [1, "x"]})")});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("dataset_weights item 1 must be a number, is \"x\""));
}

// As protobuf's own printer writes it, with all of its spellings.
TEST_F(TrainCommandTest, ASpecMayBeProtobufsJson) {
  const std::string text = R"({"architecture": "demo", "datasets": ["a.bin"], "datasetWeights": ["1.5", 2],
      "precision": "TRAIN_PRECISION_BF16", "steps": "9007199254740993", "seed": "18446744073709551615", "workers": 2,
      "balance": 3, "evaluation": null, "documentMask": "DOCUMENT_MASK_OFF", "packing": "concatenate",
      "optimizer": {"learningRate": "1e-3", "schedule": "LR_SHAPE_WSD", "clipNorm": 0}, "recompute": true,
      "checkpoints": {"everySteps": "5", "keepBest": true}, "earlyStop": {"patience": 3}, "labels": {"a_b": "c"}})";
  v1::JobSpec wanted;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      absl::StrReplaceAll(text, {{"\"concatenate\"", "\"WINDOW_PACKING_CONCATENATE\""}}), &wanted);
  ASSERT_TRUE(parsed.ok()) << parsed.ToString();
  const client::CliRun run = Train({"submit", SpecFile(text)});
  ASSERT_EQ(run.exit_code, 0) << run.err;
  EXPECT_EQ(training_.submitted.spec().DebugString(), wanted.DebugString());
  EXPECT_EQ(wanted.steps(), 9007199254740993);
  EXPECT_EQ(wanted.balance(), v1::BALANCE_LOSS_PER_LAYER);
  EXPECT_TRUE(wanted.optimizer().has_clip_norm());
}

// What `get --spec` prints is protobuf's JSON, and can be submitted again, also through a pipe.
TEST_F(TrainCommandTest, GetSpecComesBack) {
  ASSERT_EQ(Train({"submit", "--architecture=demo", "--dataset=a.bin:2", "--dataset=b.bin", "--beta2=0.1",
                   "--balance=per_layer", "--label=a=b", "--seed=18446744073709551615", "--steps=9007199254740993",
                   "--evaluation=c.bin:held out", "--keep_best", "--early_stop_patience=4", "--clip_norm=0",
                   "--early_stop_min_improvement=0.1", "--packing=concatenate"})
                .exit_code,
            0);
  const v1::JobSpec first = training_.submitted.spec();
  *training_.job.mutable_spec() = first;
  const std::string text = Train({"get", "job-1", "--spec"}).out;
  v1::JobSpec parsed;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(text, &parsed).ok()) << text;
  EXPECT_EQ(parsed.DebugString(), first.DebugString());
  for (const std::string& from : {SpecFile(text), std::string("--spec=-")}) {
    training_.submitted.Clear();
    const client::CliRun run = Train({"submit", from}, text);
    ASSERT_EQ(run.exit_code, 0) << run.err;
    EXPECT_EQ(training_.submitted.spec().DebugString(), first.DebugString());
  }
  EXPECT_THAT(Train({"submit", "--spec=-"}, "{").err, HasSubstr("-: "));
  EXPECT_THAT(Train({"submit", "--spec=-"}, SpecOfBytes((1 << 20) + 1)).err,
              HasSubstr("-: has more bytes than the limit of 1048576"));
}

TEST_F(TrainCommandTest, EvaluationMayHaveNames) {
  const auto sent = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "submit");
    const client::CliRun run = Train(flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return training_.submitted.spec();
  };
  const v1::JobSpec first =
      sent({"--evaluation=a.jsonl:code", "--evaluation=held/b:c.bin", "--evaluation=d:1.bin:code"});
  EXPECT_THAT(first.evaluation(), ElementsAre("a.jsonl", "held/b:c.bin", "d:1.bin"));
  EXPECT_THAT(first.evaluation_names(), ElementsAre("code", "held/b:c", "code"));
  EXPECT_TRUE(sent({"--evaluation=a.jsonl", "--evaluation=b.bin"}).evaluation_names().empty())
      << "the server's default";
  const client::CliRun run = Train({"submit", "--evaluation=a.jsonl:"});
  EXPECT_EQ(run.exit_code, 2);
  EXPECT_THAT(run.err, HasSubstr("--evaluation must be PATH or PATH:NAME with a name, is \"a.jsonl:\""));
}

TEST_F(TrainCommandTest, PartsOfAModel) {
  const auto sent = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), "submit");
    const client::CliRun run = Train(flags);
    EXPECT_EQ(run.exit_code, 0) << run.err;
    return training_.submitted.spec();
  };
  const std::string file =
      SpecFile(R"({"parameters": [{"pattern": "f", "frozen": true}, {"pattern": "c", "weight_decay": 0}]})");
  const v1::JobSpec ruled =
      sent({file, "--rate=a:b:0.5", "--freeze=*.experts.*", "--rate=*norm*:2", "--freeze=lm_head*"});
  // Those of --freeze first, then rates, then the file's, which may be frozen ones, too.
  std::string rules;
  for (const v1::ParameterRule& rule : ruled.parameters()) rules += rule.ShortDebugString() + "\n";
  ASSERT_EQ(ruled.parameters_size(), 6) << rules;
  EXPECT_EQ(ruled.parameters(0).pattern(), "*.experts.*");
  EXPECT_TRUE(ruled.parameters(0).frozen());
  EXPECT_EQ(ruled.parameters(1).pattern(), "lm_head*");
  EXPECT_EQ(ruled.parameters(2).pattern(), "a:b");
  EXPECT_EQ(ruled.parameters(2).rate(), 0.5);
  EXPECT_FALSE(ruled.parameters(2).frozen());
  EXPECT_EQ(ruled.parameters(3).pattern(), "*norm*");
  EXPECT_EQ(ruled.parameters(4).pattern(), "f");
  EXPECT_TRUE(ruled.parameters(4).frozen());
  EXPECT_EQ(ruled.parameters(5).weight_decay(), 0);
  EXPECT_TRUE(ruled.parameters(5).has_weight_decay());
  EXPECT_EQ(ToJson(sent({SpecFile(Dump(ToJson(ruled)))})), ToJson(ruled));
  const v1::JobSpec adapted =
      sent({"--lora_rank=8", "--lora_alpha=16", "--lora_target=q_proj", "--lora_target=v_proj"});
  EXPECT_EQ(adapted.lora().rank(), 8);
  EXPECT_EQ(adapted.lora().alpha(), 16);
  EXPECT_THAT(adapted.lora().targets(), ElementsAre("q_proj", "v_proj"));
  const v1::JobSpec preferring = sent({"--dpo_beta=0.1", "--dpo_label_smoothing=0.05"});
  EXPECT_EQ(preferring.dpo().beta(), 0.1);
  EXPECT_EQ(preferring.dpo().label_smoothing(), 0.05);
  const v1::JobSpec dropping = sent({"--lora_rank=8", "--lora_dropout=0.5", "--dropout_embedding=0.1",
                                     "--dropout_hidden=0", "--dropout_attention=0.25", "--router_jitter=0.125"});
  EXPECT_EQ(dropping.lora().dropout(), 0.5);
  EXPECT_EQ(dropping.dropout().embedding(), 0.1);
  EXPECT_TRUE(dropping.dropout().has_hidden()) << "0 is not what config.json says";
  EXPECT_EQ(dropping.dropout().attention(), 0.25);
  EXPECT_EQ(dropping.router_jitter(), 0.125);
  EXPECT_FALSE(adapted.has_dropout());
  EXPECT_FALSE(adapted.has_router_jitter());
  for (const std::string rate : {"a", ":2", "a:", "a:0", "a:x", "a:-1"}) {
    const client::CliRun run = Train({"submit", "--rate=" + rate});
    EXPECT_EQ(run.exit_code, 2) << rate;
    EXPECT_THAT(run.err, HasSubstr("--rate must be PATTERN:FACTOR with a positive factor, is \"" + rate + "\""));
  }
}

TEST_F(TrainCommandTest, WrongSpecsAreNotSent) {
  struct Case {
    std::vector<std::string> args;
    std::string complaint;
  };
  const auto file = [&](const std::string& text) { return std::vector<std::string>{SpecFile(text)}; };
  for (const auto& [text, complaint] : std::vector<std::pair<std::string, std::string>>{
           {R"({"step": 1})", R"(unknown field "step"; did you mean "steps"?)"},
           {R"({"optimizer": {"learning_rat": 1}})",
            R"(unknown field "optimizer.learning_rat"; did you mean "learning_rate"?)"},
           {R"({"optimizer": 3})", "optimizer must be an object"},
           {R"({"steps": "x"})", "steps must be an integer, is \"x\""},
           {R"({"steps": 1.5})", "steps must be an integer"},
           {R"({"workers": 3000000000})", "workers must be an integer of 32 bits"},
           {R"({"balance": "al_layers"})", "balance is \"al_layers\"; did you mean \"all_layers\"?"},
           {R"({"labels": {"a": 1}})", "labels must be an object of texts"},
           {R"({"batchSequence": 1})", R"(unknown field "batchSequence"; did you mean "batchSequences"?)"},
           {R"({"batchSequences": 1, "batch_sequences": 2})",
            R"(batchSequences is there a second time, as "batch_sequences")"},
           {R"({"steps": "1.5"})", "steps must be an integer, is \"1.5\""},
           {R"({"precision": "TRAIN_PRECISION_BF17"})", "precision is \"TRAIN_PRECISION_BF17\""},
           {R"({"precision": 77})", "precision must be"},
           {R"({"earlyStop": {"patience": "x"}})", "earlyStop.patience must be an integer"},
           {R"([1])", "must be an object"},
           {"{", "not valid JSON"},
           {R"({"labels": )" + std::string(128, '[') + std::string(128, ']') + "}", "nested 129 deep, limit 128"},
           {R"({"labels": )" + std::string(127, '[') + std::string(127, ']') + "}", "labels must be an object"},
           {SpecOfBytes((1 << 20) + 1), "has more bytes than the limit of 1048576"}}) {
    std::vector<std::string> args = file(text);
    args.insert(args.begin(), "submit");
    const client::CliRun run = Train(args);
    EXPECT_EQ(run.exit_code, 2) << complaint;
    EXPECT_THAT(run.err, AllOf(HasSubstr(file_), HasSubstr(complaint)));
  }
  for (const auto& [flag, complaint] : std::vector<std::pair<std::string, std::string>>{
           {"--steps=many", "--steps must be a number"},
           {"--schedule=cosin", "--schedule is \"cosin\"; did you mean \"cosine\"?"},
           {"--label=a", "--label must be an object of texts, or KEY=TEXT, is \"a\""},
           {"--interval=7200", "--interval=7200: must be a number from 0 to 3600"},
           {"--learning_rat=1", "did you mean \"--learning_rate\"?"},
           {"--spec=/none", "/none: cannot be read"}}) {
    const client::CliRun run = Train({"submit", flag});
    EXPECT_EQ(run.exit_code, 2) << flag;
    EXPECT_THAT(run.err, HasSubstr(complaint));
  }
  EXPECT_FALSE(training_.submitted.has_spec());
}

TEST_F(TrainCommandTest, ASpecAtTheLimitIsSent) {
  EXPECT_EQ(Train({"submit", SpecFile(SpecOfBytes(1 << 20))}).exit_code, 0);
  EXPECT_EQ(training_.submitted.spec().steps(), 8);
}

TEST_F(TrainCommandTest, EveryFieldOfASpecHasAFlag) {
  v1::JobSpec spec;
  const auto names = [](const google::protobuf::Descriptor* type) {
    std::set<std::string> names;
    for (int i = 0; i < type->field_count(); ++i) {
      if (type->field(i)->message_type() == nullptr || type->field(i)->is_map()) names.insert(type->field(i)->name());
    }
    return names.size();
  };
  // (A dataset's weight is part of --dataset, a set's name part of --evaluation; --freeze and --rate are of
  // parameters.)
  EXPECT_EQ(RequestFields<v1::JobSpec>().size() + 2,
            names(v1::JobSpec::descriptor()) + names(v1::OptimizerSpec::descriptor()) +
                names(v1::CheckpointSpec::descriptor()) + names(v1::CommunicationSpec::descriptor()) +
                names(v1::EarlyStopSpec::descriptor()) + names(v1::LoraSpec::descriptor()) +
                names(v1::DpoSpec::descriptor()) + names(v1::DropoutSpec::descriptor()) + 2);
  // Each sets a field of its own.
  std::set<std::string> set;
  for (const RequestField<v1::JobSpec>& field : RequestFields<v1::JobSpec>()) {
    v1::JobSpec one;
    const std::string name = field.name;
    const Json value = name == "precision"                ? Json("fp64")
                       : name == "schedule"               ? Json("wsd")
                       : name == "balance"                ? Json("none")
                       : name == "document_mask"          ? Json("off")
                       : name == "packing"                ? Json("best_fit")
                       : name == "offload"                ? Json("always")
                       : name == "restore_input"          ? Json("resend")
                       : name == "restore_hidden"         ? Json("recompute")
                       : name == "label"                  ? Json({"a=b"})
                       : name == "rate"                   ? Json({"a:2"})
                       : field.kind == FieldKind::kNumber ? Json(3)
                       : field.kind == FieldKind::kBool   ? Json(true)
                                                          : Json("text");
    ASSERT_TRUE(field.set(value, &one).ok()) << name;
    EXPECT_TRUE(set.insert(one.SerializeAsString()).second) << name;
  }
  EXPECT_EQ(set.count(""), 0u);
}

TEST_F(TrainCommandTest, WhatTheServerSaysIsShown) {
  training_.status = rpc::ToGrpcStatus(
      rpc::MakeError(absl::StatusCode::kFailedPrecondition, v1::TOO_FEW_WORKERS, "workers: needs 4, this server has 2"),
      "");
  const client::CliRun run = Train({"submit", "--workers=4"});
  EXPECT_EQ(run.exit_code, 1);
  EXPECT_THAT(run.err, AllOf(HasSubstr("needs 4, this server has 2 [FAILED_PRECONDITION TOO_FEW_WORKERS]"),
                             HasSubstr("lower --workers")));
  EXPECT_EQ(run.out, "");
}

TEST_F(TrainCommandTest, TheSameRequestAgainSaysSo) {
  const client::CliRun run = Train({"submit", "--request_id=again"});
  EXPECT_EQ(run.out, "job-1\n");
  EXPECT_THAT(run.err, HasSubstr("submitted before"));
  const Json json = Json::parse(Train({"submit", "--request_id=again", "--json"}).out);
  EXPECT_EQ(json["job"]["id"], "job-1");
  EXPECT_EQ(json["job"]["state"], "pending");
  EXPECT_EQ(json["existed"], true);
}

TEST_F(TrainCommandTest, SubmitCanWatch) {
  training_.watch = {JobIn(v1::JOB_STATE_RUNNING, 1), JobIn(v1::JOB_STATE_SUCCEEDED, 2000)};
  const client::CliRun run = Train({"submit", "--watch", "--interval=0.25"});
  EXPECT_EQ(run.exit_code, 0) << run.err;
  EXPECT_THAT(run.out, testing::StartsWith("job-1\nstep 1/2000 | loss 3.2500"));
  EXPECT_EQ(training_.watched.id(), "job-1");
  EXPECT_EQ(training_.watched.min_interval_ms(), 250);
}

}  // namespace
}  // namespace switchyard::cli
