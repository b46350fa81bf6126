// Submits a training job, follows it to its end, and finds the checkpoint that it leaves.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "switchyard/v1/training.pb.h"
#include "tests/examples/demo_server.h"

using namespace switchyard;
namespace fs = std::filesystem;

int main() {
  const std::string root = mkdtemp((fs::temp_directory_path() / "train.XXXXXX").string().data());
  for (const char* folder : {"/data", "/models"}) fs::create_directory(root + folder);
  fs::copy("deploy/demo-model", root + "/models/demo");
  std::ofstream(root + "/data/sea.jsonl") << R"({"text": "The sea is blue, and blue is the sea, day and night"})";
  server::ServerConfig config;
  config.local_train_workers = 1;
  config.dataset_root = root + "/data";  // users name data and models below these
  config.checkpoint_root = root + "/models";
  auto server = std::make_unique<examples::DemoServer>(config);
  v1::SubmitJobRequest submit;
  submit.mutable_spec()->set_base_checkpoint("demo");  // a HuggingFace folder, to be trained further
  submit.mutable_spec()->add_datasets("sea.jsonl");
  submit.mutable_spec()->set_steps(4);
  submit.mutable_spec()->set_sequence_length(8);
  submit.mutable_spec()->set_batch_sequences(1);
  const auto submitted = server->admin_client().SubmitJob(submit);
  SY_CHECK_OK(submitted.status());
  v1::WatchJobRequest watch;
  watch.set_id(submitted->job().id());
  v1::Job job;
  SY_CHECK_OK(server->admin_client().WatchJob(watch, [&](const v1::Job& now) { job = now; }));
  std::cout << "step " << job.progress().step() << ", loss " << job.progress().loss() << "\n";
  SY_CHECK_EQ(v1::JobState_Name(job.state()), "JOB_STATE_SUCCEEDED");
  SY_CHECK(fs::exists(root + "/models/" + job.checkpoint().folder() + "/model.safetensors.index.json"));
  server.reset();
  fs::remove_all(root);
}
