#include "clients/cli/generate_answer.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "clients/cli/json.h"
#include "clients/cli/message_json.h"
#include "clients/cpp/client.h"

namespace switchyard::cli {
namespace {

Json TokenJson(const v1::TokenLogprob& token) {
  Json bytes = Json::array();
  for (const char byte : token.bytes()) bytes.push_back(static_cast<unsigned char>(byte));
  return {{"token_id", token.token_id()},
          {"text", token.text()},
          {"logprob", token.logprob()},
          {"rank", token.rank()},
          {"bytes", std::move(bytes)}};
}

Json PositionJson(const v1::PositionLogprobs& position) {
  Json out = TokenJson(position.chosen());
  Json top = Json::array();
  for (const v1::TokenLogprob& token : position.top()) top.push_back(TokenJson(token));
  out["top"] = std::move(top);
  return out;
}

int64_t BytesPerRow(const v1::ExpertPaths& paths) {
  return int64_t{paths.num_moe_layers()} * paths.top_k() * static_cast<int64_t>(sizeof(int16_t));
}

int64_t NumRows(const v1::ExpertPaths& paths) {
  return static_cast<int64_t>(paths.experts().size()) / std::max<int64_t>(BytesPerRow(paths), 1);
}

Json PathsJson(const v1::ExpertPaths& paths) {
  Json rows = Json::array();
  const char* at = paths.experts().data();
  for (int64_t row = 0; row < NumRows(paths); ++row) {
    Json layers = Json::array();
    for (int l = 0; l < paths.num_moe_layers(); ++l) {
      Json experts = Json::array();
      for (int k = 0; k < paths.top_k(); ++k, at += sizeof(int16_t)) {
        experts.push_back(static_cast<int16_t>(static_cast<uint8_t>(at[0]) | static_cast<uint8_t>(at[1]) << 8));
      }
      layers.push_back(std::move(experts));
    }
    rows.push_back(std::move(layers));
  }
  return rows;
}

}  // namespace

std::string FinishName(v1::FinishReason reason) {
  const bool known = v1::FinishReason_IsValid(reason);
  const std::string name = known ? EnumName(v1::FinishReason_descriptor(), reason) : "";
  return name.empty() ? "unknown" : name;
}

absl::Status GenerateAnswer::Add(const v1::GenerateResponse& message) {
  if (message.choice() < 0 || static_cast<size_t>(message.choice()) >= choices_.size()) {
    return absl::DataLossError(absl::StrCat("the server sent choice ", message.choice(), " of ", choices_.size()));
  }
  if (!message.request_id().empty()) {
    request_id_ = message.request_id();
    model_ = message.model();
    seed_ = message.seed();
  }
  Choice& choice = choices_[static_cast<size_t>(message.choice())];
  if (choice.finished) return absl::DataLossError(absl::StrCat("choice ", message.choice(), " goes on after its end"));
  if (message.token_ids_size() > 0 && static_cast<size_t>(message.index()) != choice.token_ids.size()) {
    return absl::DataLossError(absl::StrCat("choice ", message.choice(), ": token ", message.index(), " came, ",
                                            choice.token_ids.size(), " is next"));
  }
  if (message.has_expert_paths()) {
    if (const absl::Status status = AddPaths(message.expert_paths(), &choice); !status.ok()) {
      return absl::DataLossError(absl::StrCat("choice ", message.choice(), ": ", status.message()));
    }
  }
  choice.token_ids.insert(choice.token_ids.end(), message.token_ids().begin(), message.token_ids().end());
  choice.text += message.text();
  for (const v1::PositionLogprobs& position : message.logprobs()) choice.logprobs.push_back(PositionJson(position));
  for (const v1::PositionLogprobs& position : message.prompt_logprobs())
    prompt_logprobs_.push_back(PositionJson(position));
  if (message.has_finish()) {
    choice.finished = true;
    choice.finish = message.finish();
  }
  return absl::OkStatus();
}

absl::Status GenerateAnswer::AddPaths(const v1::ExpertPaths& paths, Choice* choice) {
  const int64_t row_bytes = BytesPerRow(paths), bytes = static_cast<int64_t>(paths.experts().size());
  if (row_bytes <= 0 || bytes % row_bytes != 0) {
    return absl::DataLossError(absl::StrCat(bytes, " bytes of expert paths, in rows of ", row_bytes));
  }
  v1::ExpertPaths& all = choice->paths;
  if (all.experts().empty()) {
    all = paths;
    return absl::OkStatus();
  }
  const int64_t next = all.first_position() + NumRows(all);
  if (paths.first_position() != next || row_bytes != BytesPerRow(all)) {
    return absl::DataLossError(absl::StrCat("expert paths of position ", paths.first_position(), " in rows of ",
                                            row_bytes, " bytes came, ", next, " in rows of ", BytesPerRow(all),
                                            " is next"));
  }
  all.mutable_experts()->append(paths.experts());
  return absl::OkStatus();
}

absl::Status GenerateAnswer::CheckComplete() const {
  for (size_t i = 0; i < choices_.size(); ++i) {
    if (!choices_[i].finished) return absl::DataLossError(absl::StrCat("the stream ended before choice ", i, " did"));
  }
  return absl::OkStatus();
}

int GenerateAnswer::num_tokens() const {
  size_t count = 0;
  for (const Choice& choice : choices_) count += choice.token_ids.size();
  return static_cast<int>(count);
}

Json GenerateAnswer::ChoiceJson(const Choice& choice) {
  Json out = {{"text", choice.text}, {"token_ids", choice.token_ids}};
  if (choice.finished) out["finish_reason"] = FinishName(choice.finish.reason());
  if (choice.finish.has_stop_string()) out["stop_string"] = choice.finish.stop_string();
  if (choice.finish.has_stop_token_id()) out["stop_token_id"] = choice.finish.stop_token_id();
  if (!choice.logprobs.empty()) out["logprobs"] = choice.logprobs;
  if (!choice.paths.experts().empty()) out["expert_paths"] = PathsJson(choice.paths);
  if (choice.finished) {
    out["usage"] = cli::ToJson(choice.finish.usage());
    out["timings"] = cli::ToJson(choice.finish.timings());
  }
  return out;
}

Json GenerateAnswer::ToJson() const {
  Json out;
  if (choices_.size() == 1) {
    out = ChoiceJson(choices_[0]);
  } else {
    out["choices"] = Json::array();
    for (size_t i = 0; i < choices_.size(); ++i) {
      Json choice = {{"index", i}};
      choice.update(ChoiceJson(choices_[i]));
      out["choices"].push_back(std::move(choice));
    }
  }
  if (!prompt_logprobs_.is_null()) out["prompt_logprobs"] = prompt_logprobs_;
  out["request_id"] = request_id_;
  out["model"] = model_;
  out["seed"] = seed_;
  return out;
}

absl::Status CollectAnswer(client::Client* client, const v1::GenerateRequest& request, GenerateAnswer* answer,
                           const std::function<void(const v1::GenerateResponse&)>& on_message) {
  absl::Status fault;
  const absl::Status end = client->Generate(request, [&](const v1::GenerateResponse& message) {
    if (!fault.ok()) return;
    fault = answer->Add(message);
    if (fault.ok() && on_message) on_message(message);
  });
  if (!fault.ok()) return fault;
  return end.ok() ? answer->CheckComplete() : end;
}

std::string AnswerText(const Json& answer, bool has_text) {
  if (!answer.contains("choices")) {
    return has_text ? answer.value("text", "") : absl::StrJoin(answer.value("token_ids", std::vector<int32_t>()), " ");
  }
  std::string out;
  for (const Json& choice : answer["choices"]) {
    absl::StrAppend(&out, out.empty() ? "" : "\n", "[", choice.value("index", 0), "] ", AnswerText(choice, has_text));
  }
  return out;
}

}  // namespace switchyard::cli
