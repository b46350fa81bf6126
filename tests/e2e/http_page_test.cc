// The web page and the JSON that it reads: files and their headers, the same answers as over gRPC, roles and owners.
#include <sys/stat.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/harness.h"
#include "tests/e2e/http_client.h"
#include "tests/e2e/training_fixture.h"
#include "tests/workers/model/temp_dir.h"

namespace switchyard {
namespace {

using google::protobuf::util::MessageDifferencer;
using nlohmann::json;
using testing::AllOf;
using testing::ContainsRegex;
using testing::HasSubstr;
using testing::Not;

HttpAnswer Get(const std::string& address, const std::string& path, const std::string& key = "") {
  return HttpCall(address, "GET", path, "",
                  key.empty() ? std::vector<std::string>() : std::vector{"Authorization: Bearer " + key});
}

template <class Message>
Message ReadAs(const HttpAnswer& answer) {
  EXPECT_EQ(answer.status, 200) << answer.body;
  Message message;
  EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(answer.body, &message).ok()) << answer.body;
  return message;
}

class HttpPageTest : public testing::Test {
 protected:
  static void SetUpTestSuite() { server_ = TestServer::Start({.workers = 2}).release(); }
  static void TearDownTestSuite() { delete server_; }
  void SetUp() override { ASSERT_NE(server_, nullptr); }

  static v1::GetExpertsResponse Experts(const v1::GetExpertsRequest& request) {
    grpc::ClientContext context;
    v1::GetExpertsResponse response;
    const grpc::Status end =
        v1::AdminService::NewStub(server_->admin_channel())->GetExperts(&context, request, &response);
    EXPECT_TRUE(end.ok()) << end.error_message();
    return response;
  }
  static TestServer* server_;
};
TestServer* HttpPageTest::server_ = nullptr;

TEST_F(HttpPageTest, ThePageIsWholeAndKeepsToItself) {
  const std::string page = Get(server_->http_address(), "/").body;
  for (const auto& [path, type] :
       std::vector<std::pair<std::string, std::string>>{{"/", "text/html; charset=utf-8"},
                                                        {"/page/page.css", "text/css"},
                                                        {"/page/page.js", "text/javascript"},
                                                        {"/page/icon.svg", "image/svg+xml"}}) {
    const HttpAnswer answer = Get(server_->http_address(), path);
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_THAT(answer.headers.at("content-type"), HasSubstr(type)) << path;
    const std::string& policy = answer.headers.at("content-security-policy");
    EXPECT_THAT(policy, AllOf(HasSubstr("default-src 'none'"), HasSubstr("script-src 'self'"),
                              HasSubstr("frame-ancestors 'none'"), HasSubstr("require-trusted-types-for 'script'"),
                              Not(HasSubstr("unsafe")), Not(HasSubstr("*"))));
    EXPECT_EQ(answer.headers.at("x-content-type-options"), "nosniff");
    EXPECT_EQ(answer.headers.at("referrer-policy"), "no-referrer");
    EXPECT_EQ(answer.headers.count("access-control-allow-origin"), 0u);
    if (path != "/") {
      EXPECT_THAT(page, HasSubstr(absl::StrCat("\"", path.substr(1), "\"")));
    }
  }
  // Nothing from elsewhere, nothing inline.
  EXPECT_THAT(page, AllOf(Not(HasSubstr("://")), Not(HasSubstr("style=")), Not(ContainsRegex(" on[a-z]+="))));
  const std::string script = Get(server_->http_address(), "/page/page.js").body;
  EXPECT_THAT(script,
              AllOf(Not(HasSubstr("innerHTML")), Not(HasSubstr("insertAdjacentHTML")), Not(HasSubstr("eval("))));
}

TEST_F(HttpPageTest, WhatIsNoFileOfThePageIsNotThere) {
  for (const char* path : {"/page/", "/page/other.js", "/page/../page/page.js", "/index.html", "/api", "/api/other"}) {
    EXPECT_EQ(Get(server_->http_address(), path).status, 404) << path;
  }
  const HttpAnswer post = HttpCall(server_->http_address(), "POST", "/", "{}");
  EXPECT_EQ(post.status, 405);
  EXPECT_EQ(post.headers.at("allow"), "GET");
}

TEST_F(HttpPageTest, LoadIsWhatGetLoadSays) {
  const v1::GetLoadResponse load = ReadAs<v1::GetLoadResponse>(Get(server_->http_address(), "/api/load"));
  EXPECT_TRUE(load.ready());
  ASSERT_EQ(load.workers_size(), 2);
  EXPECT_EQ(load.workers(0).rank() + load.workers(1).rank(), 1) << "in any order";
  EXPECT_GT(load.workers(0).kv_blocks_total(), 0);
  EXPECT_EQ(Get(server_->http_address(), "/api/load").headers.at("cache-control"), "no-store");
}

TEST_F(HttpPageTest, ExpertsAreWhatGetExpertsSays) {
  ASSERT_TRUE(Generate(server_->client(), TextRequest("In the beginning", 20)).ok());
  ASSERT_TRUE(server_->WaitIdle());
  auto http = ReadAs<v1::GetExpertsResponse>(Get(server_->http_address(), "/api/experts"));
  v1::GetExpertsResponse grpc = Experts({});
  EXPECT_GT(grpc.decode_tokens(), 0);
  http.clear_report_age_seconds();
  grpc.clear_report_age_seconds();
  EXPECT_TRUE(MessageDifferencer::Equals(http, grpc)) << http.ShortDebugString() << "\n" << grpc.ShortDebugString();
  EXPECT_EQ(http.layers_size(), http.num_moe_layers());

  v1::GetExpertsRequest request;
  request.add_layers(3);
  request.mutable_why()->set_layer(3);
  request.mutable_why()->set_expert(5);
  const auto why = ReadAs<v1::GetExpertsResponse>(Get(server_->http_address(), "/api/experts?layer=3&expert=5"));
  ASSERT_EQ(why.layers_size(), 1);
  EXPECT_EQ(why.layers(0).layer(), 3);
  EXPECT_THAT(why.why(), HasSubstr("expert 5"));
  EXPECT_EQ(why.why().substr(0, 40), Experts(request).why().substr(0, 40));
}

TEST_F(HttpPageTest, BadQuestionsAreNamed) {
  const auto message = [&](const std::string& path, int status) {
    const HttpAnswer answer = Get(server_->http_address(), path);
    EXPECT_EQ(answer.status, status) << answer.body;
    return answer.json()["error"]["message"].get<std::string>();
  };
  EXPECT_THAT(message("/api/experts?layer=99", 400), HasSubstr("99"));
  EXPECT_THAT(message("/api/experts?layer=x", 400), HasSubstr("layer"));
  EXPECT_THAT(message("/api/experts?expert=1", 400), HasSubstr("layer"));
  EXPECT_THAT(message("/api/experts?layer=0&expert=-1", 400), HasSubstr("expert"));
  EXPECT_THAT(message("/api/jobs", 400), HasSubstr("no training workers"));
  EXPECT_THAT(message("/api/jobs/some", 400), HasSubstr("no training workers"));
}

// The port of administration may be closed although users reach this one.
TEST(HttpPageClosedTest, WithoutKeysOperationsNeedAnOpenPortOfAdministration) {
  const auto server = TestServer::Start({.flags = {"--admin_port=-1"}});
  ASSERT_NE(server, nullptr);
  for (const char* path : {"/api/experts", "/api/jobs", "/api/jobs/some/losses"}) {
    const HttpAnswer answer = Get(server->http_address(), path);
    EXPECT_EQ(answer.status, 403) << path;
    EXPECT_THAT(answer.body, HasSubstr("--api_keys_file"));
  }
  EXPECT_EQ(Get(server->http_address(), "/").status, 200);
  EXPECT_EQ(Get(server->http_address(), "/api/load").status, 200);
}

class HttpPageKeysTest : public testing::Test {
 protected:
  static std::string After(const std::string& text, const std::string& mark) {
    const size_t begin = text.find(mark) + mark.size();
    return text.substr(begin, text.find_first_of(",\n", begin) - begin);
  }
  // Makes a key; its line goes into the file of all.
  std::string Key(const std::string& name, const std::string& role) {
    const auto made = Process::Start({Binary("switchyard"), "keys", "new", "--name=" + name, "--role=" + role});
    EXPECT_EQ(made->Wait(kStartLimit).value_or(-1), 0) << made->Output();
    absl::StrAppend(&lines_, After(made->Output(), "line: "), "\n");
    return After(made->Output(), "key:  ");
  }
  std::string KeysFile() {
    const std::string file = dir_.Write("keys", lines_);
    EXPECT_EQ(chmod(file.c_str(), 0600), 0);
    return file;
  }

  model::TempDir dir_;
  std::string lines_;
};

TEST_F(HttpPageKeysTest, EachKeySeesWhatItsRoleMaySee) {
  const std::string user = Key("u", "user"), ann = Key("ann", "trainer"), bob = Key("bob", "trainer"),
                    admin = Key("root", "admin");
  TrainingServer training(2, {"--api_keys_file=" + KeysFile()});
  ASSERT_TRUE(training.Start());
  const std::string at = training.server()->http_address();

  // The page needs no key, what it shows does.
  for (const char* path : {"/", "/page/page.js"}) EXPECT_EQ(Get(at, path).status, 200) << path;
  for (const char* path : {"/api/load", "/api/experts", "/api/jobs", "/api/jobs/some"}) {
    EXPECT_EQ(Get(at, path).status, 401) << path;
    EXPECT_EQ(Get(at, path, "stranger").status, 401) << path;
  }
  for (const std::string& key : {user, ann, admin}) EXPECT_EQ(Get(at, "/api/load", key).status, 200);
  EXPECT_EQ(Get(at, "/api/jobs", user).status, 403);
  EXPECT_EQ(Get(at, "/api/experts", ann).status, 403);
  EXPECT_EQ(Get(at, "/api/experts", admin).status, 200);

  grpc::ClientContext context;
  context.AddMetadata("authorization", "Bearer " + ann);
  v1::SubmitJobRequest request;
  *request.mutable_spec() = TrainingServer::TinySpec();
  request.mutable_spec()->add_evaluation("text.jsonl");
  v1::SubmitJobResponse response;
  const grpc::Status end =
      v1::TrainingService::NewStub(training.server()->admin_channel())->SubmitJob(&context, request, &response);
  ASSERT_TRUE(end.ok()) << end.error_message();
  const std::string job = "/api/jobs/" + response.job().id(), losses = job + "/losses";

  // A job is its owner's and the administrators'; for others it does not exist.
  EXPECT_EQ(ReadAs<v1::Job>(Get(at, job, ann)).owner(), "ann");
  EXPECT_EQ(ReadAs<v1::ListJobsResponse>(Get(at, "/api/jobs", admin)).jobs_size(), 1);
  EXPECT_EQ(ReadAs<v1::ListJobsResponse>(Get(at, "/api/jobs", bob)).jobs_size(), 0);
  for (const std::string& path : {job, losses}) {
    const HttpAnswer hidden = Get(at, path, bob);
    EXPECT_EQ(hidden.status, 404) << path;
    EXPECT_EQ(hidden.json()["error"]["code"], "job_not_found");
  }

  EXPECT_TRUE(
      WaitUntil([&] { return ReadAs<v1::Job>(Get(at, job, ann)).state() == v1::JOB_STATE_SUCCEEDED; }, kJobLimit));
  const json curve = Get(at, losses, ann).json();
  ASSERT_EQ(curve["steps"].size(), 24u) << curve;
  EXPECT_EQ(curve["steps"][0][0], 1);
  EXPECT_EQ(curve["steps"][23][0], 24);
  EXPECT_LT(curve["steps"][23][1], curve["steps"][0][1]) << "it has learned";
  EXPECT_EQ(curve["evaluations"].size(), 1u);
  EXPECT_EQ(Get(at, "/api/jobs/../x", ann).status, 404);
}

}  // namespace
}  // namespace switchyard
