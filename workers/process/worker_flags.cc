#include "workers/process/worker_flags.h"

#include "scheduler/offload/expert_budget.h"

namespace switchyard::worker {
namespace {

void AddJoiningFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Joining a server");
  flags->Add("server=HOST:PORT", &values->server,
             "HOST:PORT of the server to join; an IPv6 address in brackets: [::1]:50051");
  flags->Add("role=NAME", &values->role,
             "serve = hold a part of a model and serve it; train = train the server's jobs; both = serve, and train "
             "while there is nothing to serve (a server's --train_on_serving); on the CPU");
  flags->Add("join_token_file=FILE", &values->join_token_file, "file with the server's join token");
  flags->Add(
      "address=ADDRESS", &values->address,
      "address of this machine at which the other workers reach this one, loopback or private; auto = the one by "
      "which this machine reaches the server");
  flags->Add("insecure", &values->insecure, "allow a plaintext link to a server on a public address");
  flags
      ->Add("metrics_port", &values->metrics_port,
            "port of http://METRICS_HOST:PORT/metrics; 0 = any free one (switchyard status shows it), -1 = none")
      .Range(-1, 65535);
  flags->Add("metrics_host=ADDRESS", &values->metrics_host,
             "address on which the metrics' page listens; 0.0.0.0 or :: = every one of this machine");
}

void AddModelFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Model");
  flags
      ->Add("model=DIR", &values->model,
            "directory of the checkpoint that the server serves (required, unless it only trains)")
      .Mark(kOfServing);
  flags->Add("dtype=NAME", &values->dtype, "what to compute in: auto (as the checkpoint), fp32, bf16, fp16, fp64")
      .Mark(kOfServing);
  flags
      ->Add("load_format=NAME", &values->load_format,
            "auto = the checkpoint's weights; dummy = random ones of the shapes that its config.json says")
      .Mark(kOfServing);
}

void AddDeviceFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Computing");
  flags->Add("device=NAME", &values->device, "what to compute on: cpu, cuda (the first GPU) or cuda:N")
      .Mark(kOfServing);
  flags->Add("threads", &values->threads, "threads; 0 = one per core that this process may use");
  flags
      ->Add("gpu_memory_fraction", &values->gpu_memory_fraction,
            "of a GPU's memory, how much weights, scratch and KV cache may take together; (0, 1]")
      .Mark(kOfGpus);
  flags
      ->Add("deterministic", &values->deterministic,
            "on a GPU: what is computed of a sequence does not depend on what else is computed with it; slower")
      .Mark(kOfGpus);
  flags->Add("cuda_graphs", &values->cuda_graphs, "on a GPU: record steps of decodes and replay them").Mark(kOfGpus);
}

void AddForecastFlags(ForecastOptions* forecast, FlagSet* flags) {
  flags->BeginGroup("Experts");
  flags
      ->Add("profile=FILE", &forecast->profile,
            "file of what a profiling run (switchyard profile) learned of this model's routing: what coming layers' "
            "experts get is forecast from the start, and an expert budget begins with the most popular; empty = it is "
            "learned while serving")
      .Mark(kOfServing);
  flags
      ->Add("profile_out=FILE", &forecast->profile_out,
            "file for what this worker has learned of the model's routing when it ends, as --profile takes it, in a "
            "group's rank 0 with what it had loaded, in the others without; probes are then fitted on every row, which "
            "makes steps slower; empty = none")
      .Mark(kOfServing);
  flags->Add(
      "forecast=NAME", &forecast->when,
      "forecast what coming layers' experts get: auto = where a placement uses it or a profile is named; always, "
      "for an expert budget, too; never");
  flags->Add("path_length", &forecast->path_length,
             "of how many layers the paths are by which experts of a coming layer are forecast (l of Lina, 1 to 6); a "
             "--profile has to be of as many");
}

void AddTrainingFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Training");
  flags
      ->Add("dataset_root=DIR", &values->dataset_root,
            "with --role=train or both (required): directory beneath which jobs name their data")
      .Mark(kOfTraining);
  flags
      ->Add("checkpoint_root=DIR", &values->checkpoint_root,
            "with --role=train or both (required): directory beneath which jobs name models, and have their "
            "checkpoints")
      .Mark(kOfTraining);
  flags
      ->Add("train_offload_dir=DIR", &values->train_offload_dir,
            "with --role=train or both: directory of a disk for masters and moments of experts that do not fit into "
            "memory (a job's `offload`); nothing is left in it; empty = they must fit")
      .Mark(kOfTraining);
  flags
      ->Add("train_send_buffer_kib", &values->train_send_buffer_kib,
            "with --role=train or both: what the kernel may hold of a connection between two workers in mode preempt: "
            "more is slower for all-to-alls, but a network whose bandwidth times its round trip is longer stands idle; "
            "0 = the kernel finds out")
      .Mark(kOfTraining);
}

void AddServersFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Set by a server for the workers that it starts");
  flags->Add("check_model=FOLDER", &values->check_model,
             "folder of a model beneath --checkpoint_root: prints one line of JSON, what a job would train or why none "
             "can, and ends; a server asks so before it accepts a job");
  flags->Add("check_weights", &values->check_weights,
             "with --check_model: a job begins from its weights, so their files are opened");
  flags->Add("local_index", &values->local_index, "the worker's number; -1 = no server has started it");
  flags->Add("server_socket", &values->server_socket, "where such a worker reaches its server");
  flags->Add("refusal_file=FILE", &values->refusal_file, "file for why one ends with code 2, besides standard error");
}

}  // namespace

FlagSet FlagsOfWorker(WorkerFlags* values) {
  FlagSet flags;
  for (const char* title : {"Joining a server", "Model", "Computing", "Experts", "Training",
                            "Set by a server for the workers that it starts", "Debugging"}) {
    flags.BeginGroup(title);
  }
  AddJoiningFlags(values, &flags);
  AddModelFlags(values, &flags);
  AddDeviceFlags(values, &flags);
  offload::AddExpertBudgetFlags(&values->experts, "this worker", /*marks=*/0, &flags);
  for (const char* name : {"expert_budget", "cold_experts"}) flags.Find(name)->Mark(kOfServing);
  AddForecastFlags(&values->forecast, &flags);
  AddTrainingFlags(values, &flags);
  AddServersFlags(values, &flags);
  return flags;
}

}  // namespace switchyard::worker
