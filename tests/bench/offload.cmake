sy_binary(offload_bench SRCS offload_bench.cc deciding_time.cc DEPS sy_lab_offload sy_lab_routing absl::str_format)
