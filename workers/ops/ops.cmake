# sy_ops: every op but GEMM.  Kernel files (*_cpu.cc) are compiled once per instruction set, each into a namespace of
# its own; kernels.cc chooses at run time.  (maybe-uninitialized: g++ 12 warns inside its own AVX-512 intrinsics.)
set(kernel_sources attention_cpu.cc combine_cpu.cc elementwise_cpu.cc gelu_cpu.cc kernel_table_cpu.cc layer_norm_cpu.cc rms_norm_cpu.cc rope_cpu.cc
                   router_cpu.cc sampling_cpu.cc)
list(APPEND kernel_sources backward/adamw_cpu.cc backward/attention_backward_cpu.cc backward/backward_table_cpu.cc backward/expert_bias_backward_cpu.cc
                           backward/gelu_backward_cpu.cc backward/layer_norm_backward_cpu.cc backward/loss_cpu.cc
                           backward/router_backward_cpu.cc backward/row_ops_backward_cpu.cc backward/row_scale_backward_cpu.cc)

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
           SRCS attention.cc clamp.cc combine.cc device_sampling.cc device_sequences.cc embedding.cc expert_places.cc fading_sum.cc gelu.cc kernels.cc kv_cache_view.cc layer_norm.cc
                permute.cc qkv.cc random.cc rms_norm.cc rope.cc rope_table.cc router.cc router_biased.cc row_blocks.cc row_exchange.cc row_exchange_cpu.cc
                sampling.cc swiglu.cc
           DEPS sy_tensor sy_batching sy_isa sy_ops_common absl::flat_hash_map absl::span absl::status absl::statusor absl::strings)
sy_ops_kernels(baseline SRCS ${kernel_sources})
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(avx512 -mavx512f -mavx512bw -mavx512vl -mavx512dq -mfma -mf16c)
  sy_ops_kernels(avx2 SRCS ${kernel_sources} FLAGS -mavx2 -mfma -mf16c)
  sy_ops_kernels(avx512 SRCS ${kernel_sources} FLAGS ${avx512})
  sy_ops_kernels(avx512_bf16 SRCS attention_tiles_cpu.cc FLAGS ${avx512} -mavx512bf16)
  sy_ops_kernels(amx SRCS attention_tiles_cpu.cc FLAGS ${avx512} -mamx-tile -mamx-bf16)
endif()
