sy_binary(popularity_bench SRCS popularity_bench.cc DEPS sy_routing_sim sy_popularity)
