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
  flags->BeginGroup("Calibration");
  flags
      ->Add("dataset=FILE", &values->dataset,
            "tokens of text (a .bin of `switchyard data pack`) by which GPTQ chooses the codes, and of which the last "
            "part measures bits per byte before and after; empty = each weight is rounded to nearest")
      .Mark(kOfQuantize);
  flags->Add("samples", &values->samples, "with --dataset: windows of tokens to calibrate by, spread over the file")
      .Range(1, 1 << 16)
      .Mark(kOfQuantize);
  flags
      ->Add("sequence", &values->sequence,
            "with --dataset: tokens of a window; 0 = 512, or the model's context if that is shorter")
      .RangeOrZero(16, 1 << 20)
      .Mark(kOfQuantize);
  flags
      ->Add("dtype=NAME", &values->dtype,
            "with --dataset: data type to run layers in: auto (the model's), fp32, bf16, fp16")
      .Mark(kOfQuantize);
  flags->BeginGroup("Computing");
  flags->Add("threads", &values->threads, "threads; 0 = one per core that this process may use")
      .Range(0, 1024)
      .Mark(kOfQuantize);
}

}  // namespace switchyard
