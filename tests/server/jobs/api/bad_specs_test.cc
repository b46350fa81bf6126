// The catalogue of specs with bad fields, which the server refuses without looking at any file: each with its code,
// reason and message.  (Those with bad files are in bad_spec_files_test.cc.)
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "switchyard/v1/training.pb.h"
#include "tests/server/jobs/api/bad_specs_fixture.h"

namespace switchyard::server {
namespace {

using testing::HasSubstr;

std::vector<BadSpec> BadNumbers() {
  const double nan = std::numeric_limits<double>::quiet_NaN(), inf = std::numeric_limits<double>::infinity();
  return {
      {"RateNaN", [=](auto* s) { s->mutable_optimizer()->set_learning_rate(nan); }, kBad, "BAD_FIELD",
       "optimizer: learning rate: peak is nan"},
      {"RateInf", [=](auto* s) { s->mutable_optimizer()->set_learning_rate(inf); }, kBad, "BAD_FIELD",
       "optimizer: learning rate: peak is inf, must be positive and finite"},
      {"RateHuge", [](auto* s) { s->mutable_optimizer()->set_learning_rate(1e300); }, kBad, "BAD_FIELD",
       "peak is 1e+300, must be at most 10"},
      {"RateZero", [](auto* s) { s->mutable_optimizer()->set_learning_rate(0); }, kBad, "BAD_FIELD", "peak is 0"},
      {"RateNegative", [](auto* s) { s->mutable_optimizer()->set_learning_rate(-1e-3); }, kBad, "BAD_FIELD",
       "peak is -0.001"},
      {"StepsNegative", [](auto* s) { s->set_steps(-1); }, kBad, "BAD_FIELD", "steps: -1 is outside [1, "},
      {"NoSteps", [](auto* s) { s->set_steps(0); }, kBad, "BAD_FIELD", "steps: 0 is outside [1, "},
      {"TooManySteps", [](auto* s) { s->set_steps((int64_t{1} << 53) + 1); }, kBad, "BAD_FIELD", "steps: "},
      {"SequenceZero", [](auto* s) { s->set_sequence_length(0); }, kBad, "BAD_FIELD",
       "sequence_length: 0 is outside [1, "},
      {"BatchNotInParts", [](auto* s) { s->set_batch_sequences(3); }, kBad, "BAD_FIELD",
       "batch_sequences: 3 cannot be dealt out to 2 workers"},
      {"SaveNever", [](auto* s) { s->mutable_checkpoints()->set_every_steps(0); }, kBad, "BAD_FIELD",
       "checkpoints.every_steps: 0 is outside"},
      {"SaveAfterNegative", [](auto* s) { s->mutable_checkpoints()->set_every_steps(-1); }, kBad, "BAD_FIELD",
       "checkpoints.every_steps: -1 is outside"},
      {"WorkersNegative", [](auto* s) { s->set_workers(-1); }, kBad, "BAD_FIELD", "workers: -1 is outside [1, "},
      {"NoServingWorkers", [](auto* s) { s->set_on_serving_workers(true); }, kCannot, "NO_TRAINING",
       "spec.on_serving_workers: this server's serving workers do not train (--train_on_serving)"},
      {"TooManyWorkers", [](auto* s) { s->set_workers(4); }, kCannot, "TOO_FEW_WORKERS",
       "needs 4 ranks, 0 alive, 2 configured"},
      {"UnknownPrecision", [](auto* s) { s->set_precision(static_cast<v1::TrainPrecision>(7)); }, kBad, "BAD_FIELD",
       "spec.precision: value 7"},
      {"UnknownField", [](auto* s) { s->GetReflection()->MutableUnknownFields(s)->AddVarint(99, 1); }, kBad,
       "BAD_FIELD", "spec: field 99 is not known"},
      {"CapacityNegative", [](auto* s) { s->set_capacity_factor(-1); }, kBad, "BAD_FIELD",
       "capacity_factor (0 = no row is dropped): -1 is outside [0.1, "},
      {"CapacityNaN", [=](auto* s) { s->set_capacity_factor(nan); }, kBad, "BAD_FIELD", "dropped): nan is outside"},
      {"CapacityTooSmall", [](auto* s) { s->set_capacity_factor(1e-6); }, kBad, "BAD_FIELD", "1e-06 is outside [0.1, "},
      {"BiasRateNegative", [](auto* s) { s->set_balance_bias_rate(-1e-3); }, kBad, "BAD_FIELD",
       "balance_bias_rate: -0.001 is outside [0, 1)"},
      {"BiasRateNaN", [=](auto* s) { s->set_balance_bias_rate(nan); }, kBad, "BAD_FIELD", "balance_bias_rate: nan"},
      {"TooMuchData",
       [](auto* s) {
         for (int i = 0; i < 1024; ++i) s->add_datasets("a.bin");
       },
       kBad, "BAD_FIELD", "datasets: 1025 files, at most 1024"},
      {"AThousandProblems",
       [](auto* s) {
         for (int i = 0; i < 1000; ++i) s->add_datasets("/" + std::string(40, 'x'));
       },
       kBad, "BAD_FIELD", "datasets[1]: "},
      {"LargeSpec",
       [](auto* s) {
         for (int i = 0; i < 300; ++i) s->add_datasets(std::string(4000, 'x') + ".bin");
       },
       kBad, "BAD_FIELD", "spec: "},
  };
}

std::vector<BadSpec> BadDropout() {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {
      {"DropoutOfAll", [](auto* s) { s->mutable_dropout()->set_hidden(1); }, kBad, "BAD_FIELD",
       "dropout.hidden: 1 is outside [0, 1)"},
      {"DropoutNaN", [=](auto* s) { s->mutable_dropout()->set_attention(nan); }, kBad, "BAD_FIELD",
       "dropout.attention: nan is outside [0, 1)"},
      {"JitterNegative", [](auto* s) { s->set_router_jitter(-0.5); }, kBad, "BAD_FIELD",
       "router_jitter: -0.5 is outside [0, 1)"},
      {"DropoutOfNoAdapters", [](auto* s) { s->mutable_lora()->set_dropout(0.5); }, kBad, "BAD_FIELD",
       "lora.rank: 0, but the job has other fields of lora"},
  };
}

std::vector<BadSpec> BadCommunication() {
  return {
      {"ModeOfAnOlderClient",
       [](auto* s) {
         v1::CommunicationSpec* const communication = s->mutable_communication();
         communication->GetReflection()->MutableUnknownFields(communication)->AddLengthDelimited(1, "full");
       },
       kBad, "BAD_FIELD", "spec.communication: field 1 is not known"},
      {"SmallPieces", [](auto* s) { s->mutable_communication()->set_piece_bytes(1023); }, kBad, "BAD_FIELD",
       "communication.piece_bytes: 1023 is outside [1024, "},
      {"NoGranularity", [](auto* s) { s->mutable_communication()->set_granularity("65"); }, kBad, "BAD_FIELD",
       "\"65\" is no granularity; must be auto or a number of chunks in [1, 64]"},
      {"NoPacking", [](auto* s) { s->mutable_communication()->set_expert_packing("auto"); }, kBad, "BAD_FIELD",
       "\"auto\" is no packing of experts; must be trials or a number of replicas in [1, 64]"},
  };
}

// How sequences are made of the data.
std::vector<BadSpec> BadSequences() {
  return {
      {"EpochsAndSteps", [](auto* s) { s->set_epochs(2); }, kBad, "BAD_FIELD", "epochs; one of both is wanted"},
      {"EpochsNegative",
       [](auto* s) {
         s->set_steps(0);
         s->set_epochs(-1);
       },
       kBad, "BAD_FIELD", "epochs: -1 is outside [0.001, 1e+06)"},
      {"OneWeight", [](auto* s) { s->add_dataset_weights(2); }, kBad, "BAD_FIELD",
       "dataset_weights: one dataset is all of the data and needs no weight"},
      {"WeightsWithoutDatasets",
       [](auto* s) {
         s->add_dataset_weights(2);
         s->add_dataset_weights(3);
       },
       kBad, "BAD_FIELD", "dataset_weights: 2 for 1 datasets; none, or one for each is wanted"},
      {"WeightNegative",
       [](auto* s) {
         s->add_datasets("a.bin");
         s->add_dataset_weights(1);
         s->add_dataset_weights(-1);
       },
       kBad, "BAD_FIELD", "dataset_weights[1]: -1 is outside [1e-06, 1e+09)"},
      {"BestFitWithoutDocuments",
       [](auto* s) {
         s->set_document_mask(v1::DOCUMENT_MASK_OFF);
         s->set_packing(v1::WINDOW_PACKING_BEST_FIT);
       },
       kBad, "BAD_FIELD", "packing: best_fit keeps documents apart, which wants document_mask on"},
  };
}

std::vector<BadSpec> BadPreferences() {
  return {
      {"DpoOfDrawnWeights",
       [](auto* s) {
         Preferring("pairs.jsonl")(s);
         s->clear_base_checkpoint();
         s->set_architecture("demo");
       },
       kBad, "BAD_FIELD", "dpo: wants a base_checkpoint, which is the reference"},
      {"BetaNegative",
       [](auto* s) {
         Preferring("pairs.jsonl")(s);
         s->mutable_dpo()->set_beta(-1);
       },
       kBad, "BAD_FIELD", "dpo.beta: -1 is outside [1e-06, 1000)"},
      {"SmoothingOfAHalf",
       [](auto* s) {
         Preferring("pairs.jsonl")(s);
         s->mutable_dpo()->set_label_smoothing(0.5);
       },
       kBad, "BAD_FIELD", "dpo.label_smoothing: 0.5 is outside [0, 0.5)"},
      {"DpoOfJoinedDocuments",
       [](auto* s) {
         Preferring("pairs.jsonl")(s);
         s->set_packing(v1::WINDOW_PACKING_CONCATENATE);
       },
       kBad, "BAD_FIELD", "packing: concatenate, but with dpo both answers of a pair are in one sequence: best_fit"},
      {"DpoWithoutAMask",
       [](auto* s) {
         Preferring("pairs.jsonl")(s);
         s->set_document_mask(v1::DOCUMENT_MASK_OFF);
       },
       kBad, "BAD_FIELD", "document_mask: off, but with dpo each answer is a text of its own"},
  };
}

TEST_F(BadSpecsTest, EachIsRefusedWithItsReason) {
  std::vector<BadSpec> catalogue = BadNumbers();
  for (const auto& more : {BadDropout(), BadCommunication(), BadSequences(), BadPreferences()})
    catalogue.insert(catalogue.end(), more.begin(), more.end());
  ExpectEachIsRefused(catalogue);
}

TEST_F(BadSpecsTest, AllProblemsOfASpecAtOnce) {
  v1::SubmitJobRequest request = Request();
  request.mutable_spec()->set_steps(0);
  request.mutable_spec()->set_datasets(0, "/x.bin");
  v1::SubmitJobResponse response;
  const std::string message = Submit(request, &response).error_message();
  EXPECT_THAT(message, HasSubstr("steps: "));
  EXPECT_THAT(message, HasSubstr("datasets[0]: "));
}

}  // namespace
}  // namespace switchyard::server
