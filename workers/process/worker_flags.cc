#include "workers/process/worker_flags.h"

#include "scheduler/base/memory_share.h"
#include "scheduler/offload/expert_budget.h"

namespace switchyard::worker {
namespace {

void AddJoiningFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Joining a server");
  flags->Add("server=HOST:PORT", &values->server,
             "the server's port of workers; an IPv6 address in brackets: [::1]:50051");
  flags->Add("role=NAME", &values->role,
             "serve = hold a part of the model and serve it; train = train the server's jobs, on the CPU; both = "
             "serve, and train while there is nothing to serve (with the server's --train_on_serving), on the CPU");
  flags->Add("join_token_file=FILE", &values->join_token_file,
             "file with the server's join token, which only its owner may use");
  flags->Add("tls_ca=FILE", &values->tls.ca,
             "link by TLS; the server's certificate is checked by the CAs in this PEM file, read again for each link");
  flags->Add("tls_cert=FILE", &values->tls.cert, "own certificate (PEM), for a server with --tls_worker_ca");
  flags->Add("tls_key=FILE", &values->tls.key, "key of --tls_cert (PEM), which only its owner may use");
  flags->Add("address=ADDRESS", &values->address,
             "address at which the other workers reach this one, loopback or private; auto = the address by which this "
             "machine reaches the server");
  flags->Add("insecure", &values->insecure, "allow a plaintext link to a server on a public address");
  flags
      ->Add("metrics_port", &values->metrics_port,
            "port of http://METRICS_HOST:PORT/metrics; 0 = any free one (`switchyard status` lists it), -1 = no page")
      .Range(-1, 65535);
  flags->Add("metrics_host=ADDRESS", &values->metrics_host,
             "address of the metrics page; 0.0.0.0 or :: = every address of this machine");
}

void AddModelFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Model");
  flags
      ->Add("model=DIR", &values->model,
            "directory or GGUF file of the model that the server serves (required unless --role=train)")
      .Mark(kOfServing);
  flags
      ->Add("adapter=DIR", &values->adapter,
            "directory of a LoRA adapter as PEFT saves it, which is merged into the model's weights as they are loaded")
      .Mark(kOfServing);
  flags
      ->Add(
          "adapters=NAME=DIR,...", &values->adapters,
          "LoRA adapters held beside the model; each request may choose one; CPUs only. Names are of letters, digits, "
          "'.', '_' and '-'; only attention's projections may be adapted")
      .Mark(kOfServing);
  flags->Add("dtype=NAME", &values->dtype, "data type to compute in: auto (the checkpoint's), fp32, bf16, fp16, fp64")
      .Mark(kOfServing);
  flags
      ->Add("quantization=NAME", &values->quantization,
            "how matrices are held: auto (in the 8 or 4 bits that the checkpoint has them in), none (in the "
            "data type), int8 or int4 (groups of 32, made at load)")
      .Mark(kOfServing);
  flags
      ->Add("kv_cache_dtype=NAME", &values->kv_cache_dtype,
            "how keys and values are cached on a CPU: auto (in the data type), int8 or fp8 (8 bits, a scale for each "
            "key)")
      .Mark(kOfServing);
  flags
      ->Add("load_format=NAME", &values->load_format,
            "auto = load the checkpoint's weights; dummy = draw random weights of the shapes in config.json")
      .Mark(kOfServing);
}

void AddDeviceFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Computing");
  flags->Add("device=NAME", &values->device, "device to compute on: cpu, cuda (the first GPU) or cuda:N")
      .Mark(kOfServing);
  flags->Add("threads", &values->threads, "threads; 0 = one per core that this process may use");
  flags->Add("gpu_memory_fraction", &values->gpu_memory_fraction, kGpuMemoryFractionHelp).Mark(kOfGpus);
  flags
      ->Add("deterministic", &values->deterministic,
            "on a GPU: batch-invariant results: a sequence's do not depend on the rest of the batch; slower")
      .Mark(kOfGpus);
  flags->Add("cuda_graphs", &values->cuda_graphs, "on a GPU: capture decode steps as CUDA graphs and replay them")
      .Mark(kOfGpus);
}

void AddForecastFlags(ForecastOptions* forecast, FlagSet* flags) {
  flags->BeginGroup("Experts");
  flags
      ->Add("profile=FILE", &forecast->profile,
            "routing profile of this model, made by `switchyard profile`: load predictions work from the start, and an "
            "expert budget begins with the most popular experts; empty = the worker learns it while serving")
      .Mark(kOfServing);
  flags
      ->Add("profile_out=FILE", &forecast->profile_out,
            "file to which this worker writes what it learned of the model's routing when it ends, in the form of "
            "--profile; rank 0 includes the profile that it loaded, other ranks do not. Makes steps slower, since "
            "probes are then fitted on every row; empty = none")
      .Mark(kOfServing);
  flags->Add("forecast=NAME", &forecast->when,
             "whether to predict the load of coming layers' experts: auto = for --placement=lina and no_finetune, or "
             "if --profile is given; always = also for an expert budget, and to see how right they are; never");
  flags->Add("path_length", &forecast->path_length,
             "predict a layer's experts from the choices in this many layers before (1 to 6; l of the paper Lina); "
             "--profile must have been made with the same number");
}

void AddTrainingFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Training");
  flags->Add("dataset_root=DIR", &values->dataset_root, "with --role=train or both (required): directory of jobs' data")
      .Mark(kOfTraining);
  flags
      ->Add("checkpoint_root=DIR", &values->checkpoint_root,
            "with --role=train or both (required): directory of jobs' models and checkpoints")
      .Mark(kOfTraining);
  flags
      ->Add("train_offload_dir=DIR", &values->train_offload_dir,
            "with --role=train or both: directory on a disk for masters and moments of experts that do not fit into "
            "memory (a job's `offload`); no files stay in it; empty = they must fit")
      .Mark(kOfTraining);
}

void AddServersFlags(WorkerFlags* values, FlagSet* flags) {
  flags->BeginGroup("Set by a server for the workers that it starts");
  flags
      ->Add("check_job", &values->check_job,
            "read a job's spec (a JobSpec of protobuf) from standard input, print a line of JSON that says what it "
            "would train, or why it cannot, and end; a server runs this before it accepts a job")
      .Mark(kSetByServer);
  flags->Add("check_ranks", &values->check_ranks,
             "with --check_job: so many of the job's workers share this machine's memory, which must suffice for them; "
             "0 = memory is not checked");
  flags->Add("local_index", &values->local_index, "the worker's number; -1 = not started by a server")
      .Mark(kSetByServer);
  flags->Add("server_socket", &values->server_socket, "socket of the server that started this worker");
  flags->Add("refusal_file=FILE", &values->refusal_file,
             "file for the reason when the worker ends with code 2, in addition to standard error");
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
  flags.BeginGroup("Experts");
  flags
      .Add("pack_experts", &values->pack_experts,
           "make the file of packed experts that --expert_memory reads, and end, instead of joining a server. A start "
           "of the same user finds it that has the same --model, whose files were not touched since, --dtype, "
           "--load_format, --device and --expert_file_dir")
      .Mark(kOfServing);
  AddForecastFlags(&values->forecast, &flags);
  AddTrainingFlags(values, &flags);
  AddServersFlags(values, &flags);
  return flags;
}

}  // namespace switchyard::worker
