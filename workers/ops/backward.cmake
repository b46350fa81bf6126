# The backward pass of the ops.  Kernel files (*_cpu.cc of row ops) are compiled with those of the forward ops: ops.cmake.
sy_library(sy_ops_backward_gemm
  SRCS
    gemm/backward/transposed_weight.cc
    gemm/backward/weight_gradient.cc
    gemm/backward/weight_gradient_cpu.cc
  DEPS sy_tensor sy_ops_gemm absl::span absl::status absl::strings
  PRIVATE sy_ops_common)
sy_library(sy_ops_backward
  SRCS
    activation/activation_backward.cc
    activation/bias_gradient.cc
    activation/expert_bias_backward.cc
    attention/attention_backward.cc
    dropout/dropout.cc
    embedding/embedding_backward.cc
    norm/layer_norm_backward.cc
    norm/rms_norm_backward.cc
    norm/row_block_sums.cc
    norm/row_scale_backward.cc
    optimizer/adamw.cc
    optimizer/cross_entropy.cc
    rope/qkv_backward.cc
    router/router_backward.cc
  DEPS sy_tensor sy_ops sy_ops_common absl::function_ref absl::span absl::status absl::statusor
  PRIVATE absl::strings)
