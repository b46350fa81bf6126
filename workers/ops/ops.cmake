# sy_ops: every op but GEMM.  Kernel files (*_cpu.cc) are compiled once per instruction set, each into a namespace of
# its own; kernels.cc chooses at run time.  (maybe-uninitialized: g++ 12 warns inside its own AVX-512 intrinsics.)
set(kernel_sources
  activation/elementwise_cpu.cc
  activation/gelu_cpu.cc
  attention/attention_backward_cpu.cc
  attention/attention_cpu.cc
  core/kernel_table_cpu.cc
  exchange/combine_cpu.cc
  norm/layer_norm_cpu.cc
  norm/rms_norm_cpu.cc
  norm/row_ops_backward_cpu.cc
  optimizer/adamw_cpu.cc
  optimizer/loss_cpu.cc
  rope/rope_cpu.cc
  router/router_backward_cpu.cc
  router/router_cpu.cc
  sampling/sampling_cpu.cc)

# sy_ops_kernels(ISA SRCS ... [FLAGS ...])
function(sy_ops_kernels isa)
  cmake_parse_arguments(arg "" "" "SRCS;FLAGS" ${ARGN})
  add_library(sy_ops_kernels_${isa} OBJECT ${arg_SRCS})
  target_link_libraries(sy_ops_kernels_${isa} PRIVATE sy_flags)
  target_compile_definitions(sy_ops_kernels_${isa} PRIVATE SY_KERNEL_NS=${isa})
  target_compile_options(sy_ops_kernels_${isa} PRIVATE -O3 -Wno-psabi $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>
                         ${arg_FLAGS})
  target_sources(sy_ops PRIVATE $<TARGET_OBJECTS:sy_ops_kernels_${isa}>)
endfunction()

sy_library(sy_ops
  SRCS
    activation/clamp.cc
    activation/gelu.cc
    activation/row_sums.cc
    activation/swiglu.cc
    attention/attention.cc
    attention/kv_format.cc
    attention/kv_cache_view.cc
    core/kernels.cc
    core/row_blocks.cc
    embedding/embedding.cc
    exchange/combine.cc
    exchange/expert_places.cc
    exchange/permute.cc
    exchange/row_exchange.cc
    exchange/row_exchange_cpu.cc
    norm/layer_norm.cc
    norm/rms_norm.cc
    rope/qkv.cc
    rope/rope.cc
    rope/rope_table.cc
    router/router.cc
    router/router_biased.cc
    sampling/device_sampling.cc
    sampling/device_sequences.cc
    sampling/random.cc
    sampling/sampling.cc
  DEPS sy_tensor sy_batching sy_isa sy_ops_common absl::flat_hash_map absl::span absl::status absl::statusor
  PRIVATE absl::strings)
sy_ops_kernels(baseline SRCS ${kernel_sources})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
  sy_ops_kernels(avx2 SRCS ${kernel_sources} FLAGS -mavx2 -mfma -mf16c)
  sy_ops_kernels(avx512 SRCS ${kernel_sources} FLAGS ${avx512})
  sy_ops_kernels(avx512_bf16 SRCS attention/attention_tiles_cpu.cc FLAGS ${avx512} -mavx512bf16)
  sy_ops_kernels(amx SRCS attention/attention_tiles_cpu.cc FLAGS ${avx512} -mamx-tile -mamx-bf16)
endif()
