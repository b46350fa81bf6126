// A GenerateRequest and what its conversion needs: a tiny model, its text processor, drawn seed and id, a clock.
#pragma once

#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "proto/support/errors.h"
#include "server/api/convert.h"
#include "tests/server/tiny_text.h"

namespace switchyard::server {

class ConvertTest : public testing::Test {
 protected:
  using Ids = std::vector<int32_t>;

  void Use(const TinyTextOptions& options) {
    text_ = TinyText(options);
    args_.text = text_.get();
  }
  void SetUp() override {
    Use({});
    args_.model = &model_;
    args_.drawn_seed = 77;
    args_.drawn_id = "drawn";
    args_.now = absl::UnixEpoch() + absl::Seconds(5);
    args_.deadline = args_.now + absl::Seconds(60);
    request_.set_text("ab");
  }
  std::unique_ptr<InferenceRequest> Convert() {
    auto result = ConvertGenerate(request_, args_);
    EXPECT_TRUE(result.ok()) << result.status();
    return result.ok() ? *std::move(result) : std::make_unique<InferenceRequest>();
  }
  rpc::ErrorView Refusal(absl::StatusCode code) {
    const auto result = ConvertGenerate(request_, args_);
    EXPECT_EQ(result.status().code(), code) << result.status();
    return rpc::ViewError(rpc::ToGrpcStatus(result.status(), ""));
  }

  const ServedModel model_ = TinyModel();
  std::unique_ptr<const text::TextProcessor> text_;
  ConvertArgs args_;
  v1::GenerateRequest request_;
};

}  // namespace switchyard::server
