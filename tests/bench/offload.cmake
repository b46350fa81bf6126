sy_binary(offload_bench SRCS offload_bench.cc deciding_time.cc DEPS sy_offload_sim sy_routing_sim sy_popularity absl::str_format)
