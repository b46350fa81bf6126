#include "scheduler/base/flags/quantize_flags.h"

namespace switchyard {

void AddQuantizeFlags(QuantizeFlags* values, FlagSet* flags) {
  flags->BeginGroup("Files");
  flags->Add("model=DIR", &values->model, "directory of the checkpoint to quantize, in bf16, fp16 or fp32")
      .Required()
      .Mark(kOfQuantize);
  flags->Add("output=DIR", &values->output, "directory to write; it must not exist, or be empty")
      .Required()
      .Mark(kOfQuantize);
  flags->BeginGroup("Format");
  flags->Add("format=NAME", &values->format, "int4 or int8: bits of a weight, in groups with a scale each")
      .Required()
      .Mark(kOfQuantize);
  flags
      ->Add("group_size", &values->group_size,
            "columns with one scale: a multiple of 8. The server holds groups of multiples of 32 as they are; vLLM "
            "has kernels for 32, 64 and 128")
      .Range(8, 1024)
      .Mark(kOfQuantize);
  flags->BeginGroup("Computing");
  flags->Add("threads", &values->threads, "threads; 0 = one per core that this process may use")
      .Range(0, 1024)
      .Mark(kOfQuantize);
}

}  // namespace switchyard
