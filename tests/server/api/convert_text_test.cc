// Tokenize and Detokenize: ids, spellings and texts, and the longest answer.
#include <string>

#include "tests/server/api/convert_fixture.h"

namespace switchyard::server {
namespace {

// gRPC's clients accept 4 MiB by default.
TEST_F(ConvertTest, AnAnswerOfTokenizeIsNoLongerThanClientsTake) {
  v1::TokenizeRequest request;
  for (int i = 0; i < 300'000; ++i) request.mutable_text()->append("a b ");
  const absl::Status status = ConvertTokenize(request, args_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  const rpc::ErrorView view = rpc::ViewError(rpc::ToGrpcStatus(status, ""));
  EXPECT_EQ(view.reason, "TEXT_LIMIT");
  EXPECT_EQ(view.details.metadata().at("field"), "text");
  EXPECT_EQ(view.details.metadata().at("limit"), "4194304");
  EXPECT_EQ(view.details.metadata().at("actual").size(), 7u) << status;
  request.mutable_text()->resize(request.text().size() / 2);
  EXPECT_TRUE(ConvertTokenize(request, args_).ok());
}

TEST_F(ConvertTest, TokenizeReportsIdsSpellingsAndRenderedText) {
  v1::TokenizeRequest request;
  request.set_text("a<|end|>");
  request.set_add_special_tokens(false);
  request.set_allow_special(true);
  auto response = ConvertTokenize(request, args_);
  ASSERT_TRUE(response.ok()) << response.status();
  ASSERT_EQ(response->token_ids_size(), 2);
  EXPECT_EQ(response->token_ids(1), kEnd);
  EXPECT_EQ(response->tokens(0), "a");
  EXPECT_EQ(response->tokens(1), "<|end|>");
  request.mutable_messages()->add_messages()->set_role("u");
  request.clear_add_special_tokens();
  request.clear_allow_special();
  response = ConvertTokenize(request, args_);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_EQ(response->rendered_text(), "u:<|end|>A:");
  EXPECT_EQ(response->token_ids_size(), 5);
  EXPECT_EQ(ConvertTokenize(v1::TokenizeRequest(), args_).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(ConvertTest, DetokenizeSkipsSpecialTokensUnlessAsked) {
  v1::DetokenizeRequest request;
  for (int32_t id : {kBos, int32_t{'h'}, int32_t{'i'}}) request.add_token_ids(id);
  EXPECT_EQ(ConvertDetokenize(request, args_)->text(), "hi");
  request.set_skip_special_tokens(false);
  EXPECT_EQ(ConvertDetokenize(request, args_)->text(), "<|bos|>hi");
  request.add_token_ids(300);
  EXPECT_EQ(std::string(ConvertDetokenize(request, args_).status().message()), "token_ids[3]: 300 outside [0, 258)");
}

}  // namespace
}  // namespace switchyard::server
