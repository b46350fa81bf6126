// Gathers the messages of one Generate stream into an answer, and checks that nothing is missing or twice.
//
// Thread-compatible.  The JSON of an answer:
//   {"text", "token_ids", "finish_reason", "stop_string"?, "stop_token_id"?, "logprobs"?, "usage", "timings",
//    "expert_paths"?, "prompt_logprobs"?, "request_id", "model", "seed"}
// and with n > 1 {"choices": [those up to "timings", each with its "index"], "prompt_logprobs"?, "request_id", ...}.
// A position's log probabilities: {"token_id", "text", "logprob", "rank", "top": [the same keys]}; prompt_logprobs
// begins with the prompt's second token.  expert_paths: [tokens - 1, MoE layers, top_k] lists of expert ids, of prompt
// and output; of choices but the first from the end of the prompt on.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "clients/cli/json.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::cli {

class GenerateAnswer {
 public:
  explicit GenerateAnswer(int num_choices) : choices_(static_cast<size_t>(num_choices)) {}

  // DataLoss: the message does not continue its choice (an index is missing or repeated, or it had finished).
  absl::Status Add(const v1::GenerateResponse& message);
  // DataLoss unless every choice has finished.
  absl::Status CheckComplete() const;
  bool empty() const { return num_tokens() == 0; }
  int num_tokens() const;
  uint64_t seed() const { return seed_; }
  const std::string& text(int choice) const { return choices_[static_cast<size_t>(choice)].text; }
  const v1::Finish& finish(int choice) const { return choices_[static_cast<size_t>(choice)].finish; }
  const std::vector<int32_t>& token_ids(int choice) const { return choices_[static_cast<size_t>(choice)].token_ids; }
  // All rows in one, first_position that of the first; empty if not asked for.
  const v1::ExpertPaths& expert_paths(int choice) const { return choices_[static_cast<size_t>(choice)].paths; }

  Json ToJson() const;

 private:
  struct Choice {
    std::string text;
    std::vector<int32_t> token_ids;
    Json logprobs = Json::array();
    v1::ExpertPaths paths;
    bool finished = false;
    v1::Finish finish;
  };
  static absl::Status AddPaths(const v1::ExpertPaths& paths, Choice* choice);
  static Json ChoiceJson(const Choice& choice);

  std::vector<Choice> choices_;
  Json prompt_logprobs_;
  std::string request_id_;
  std::string model_;
  uint64_t seed_ = 0;
};

// What a person reads of an answer's JSON: the text, be it empty, or the token ids where the model has no text (no
// tokenizer); choices each on a line under "[0] ", "[1] " ...
std::string AnswerText(const Json& answer, bool has_text);

// "stop", "length", "abort"
std::string FinishName(v1::FinishReason reason);

}  // namespace switchyard::cli
