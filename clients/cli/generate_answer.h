// The answer of one Generate call: collects the stream's messages and checks that nothing is missing or repeated.
//
// Thread-compatible.  The JSON of an answer:
//   {"text", "token_ids", "finish_reason", "stop_string"?, "stop_token_id"?, "logprobs"?, "usage", "timings",
//    "expert_paths"?, "prompt_logprobs"?, "request_id", "model", "seed"}
// and with n > 1 {"choices": [those up to "timings", each with its "index"], "prompt_logprobs"?, "request_id", ...}.  A
// position's log probabilities: {"token_id", "text", "logprob", "rank", "top": [the same keys]}; prompt_logprobs begin
// with the prompt's second token.  expert_paths: [tokens - 1, MoE layers, top_k] lists of expert ids, for prompt and
// output; for choices after the first they start at the end of the prompt.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "clients/cli/json.h"
#include "switchyard/v1/inference.pb.h"

namespace switchyard::client {
class Client;
}  // namespace switchyard::client

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
  // All rows joined, with the first row's first_position; empty if they were not asked for.
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

// Runs one request; OK: the answer is complete, else it has what was received.  `on_message`, which may be null, gets
// each message after it was added, on another thread.  REQUIRES: *answer is new.
absl::Status CollectAnswer(client::Client* client, const v1::GenerateRequest& request, GenerateAnswer* answer,
                           const std::function<void(const v1::GenerateResponse&)>& on_message = nullptr);

// Returns the part of an answer's JSON that a person reads: the text, even if it is empty, or token ids if the model
// has no tokenizer.  Several choices are on lines of their own, after "[0] ", "[1] " ...
std::string AnswerText(const Json& answer, bool has_text);

// "stop", "length", "abort"
std::string FinishName(v1::FinishReason reason);

}  // namespace switchyard::cli
