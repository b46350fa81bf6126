sy_binary(moe_backward_bench SRCS moe_backward_bench.cc DEPS sy_moe)
sy_binary(train_step_bench SRCS train_step_bench.cc DEPS sy_train)
