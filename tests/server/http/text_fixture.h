// The demo model's text, with formats of tool calls and reasoning, for tests of what the APIs make of outputs.
#pragma once

#include "gtest/gtest.h"
#include "server/text/text.h"

namespace switchyard::server {

class TextFixture : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    ServerConfig config;
    config.model = "deploy/demo-model";
    config.tokenizer = "deploy/demo-model/tokenizer.json";
    config.tool_call_parser = "hermes";
    config.reasoning_parser = "deepseek_r1";
    auto loaded = text::TextProcessor::Load(config);
    ASSERT_TRUE(loaded.ok()) << loaded.status();
    text_ = loaded->release();
  }
  static void TearDownTestSuite() { delete text_; }

  inline static const text::TextProcessor* text_ = nullptr;
};

}  // namespace switchyard::server
