sy_binary(moe_backward_bench SRCS moe_backward_bench.cc DEPS sy_moe)
