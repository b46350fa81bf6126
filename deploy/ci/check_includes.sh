#!/usr/bin/env bash
# Checks which folder may include which.  usage: check_includes.sh [root]   Exit 1 with a line per breach.
set -euo pipefail
cd "${1:-$(dirname "$0")/../..}"

# Every `#include "..."` and `#include <...>` of our sources: "file header".
includes() {
  git ls-files --cached --others --exclude-standard '*.h' '*.cc' '*.cu' '*.cuh' | grep -v '^tests/' |
    xargs grep -HoE '^ *#include *["<][^">]+[">]' | sed -E 's/:[[:space:]]*#include *["<]([^">]+)[">]/ \1/'
}

includes | awk '
  function room(path) { split(path, p, "/"); return p[1] }
  function breach(why) { printf "%s includes %s: %s\n", $1, $2, why; bad = 1 }
  function outer(path) { return path ~ /^workers\/(process|session)\// }
  BEGIN {
    # Order inside workers: a room may include itself and those to its right.
    n = split("quantize serving train model checkpoint moe comm ops tensor", order, " ")
    for (i = 1; i <= n; ++i) level[order[i]] = i
    # comm and ops are side by side.
  }
  {
    from = room($1); to = room($2)
    ours = to ~ /^(proto|scheduler|server|workers|clients|deploy|tests)$/
    generated = $2 ~ /^(switchyard\/v1|google\/rpc)\//
    grpc = $2 ~ /^(grpcpp|grpc)\// || generated

    if (to == "tests") breach("nothing includes tests")
    if (from == "scheduler" && ours && to != "scheduler") breach("scheduler includes Abseil only")
    # One reader of JSON for server, workers and clients; nothing that decides knows it.
    json = "^scheduler\\/base\\/text\\/[a-z_]*json"
    if (from == "scheduler" && (grpc || $2 ~ /^(google|prometheus|cuda)/)) breach("scheduler includes Abseil only")
    if (from == "scheduler" && $1 !~ json && ($2 ~ /^nlohmann/ || $2 ~ json)) breach("only scheduler/base/text/*json* knows JSON")
    # Files of traces and profiles are read by the pure library that knows them.
    routing_files = $1 ~ /^clients\/cli\/commands\/(trace|profile)_/ && $2 ~ /^scheduler\/(popularity|simulator)\//
    text = $2 ~ /^scheduler\/base\/((text|flags)\/|(status_macros|version)\.h)/
    if (from == "clients" && ours && to != "clients" && to != "proto" && !routing_files && !text) breach("clients speak proto only")
    if (from == "server" && ours && to != "server" && to != "scheduler" && to != "proto") breach("server includes proto and scheduler")
    if ($1 ~ /^proto\/support\// && ours && to != "proto" && $2 !~ /^scheduler\/base\//) breach("proto/support includes scheduler/base only")
    if ($1 ~ /^proto\/support\// && $2 ~ /^proto\/link\//) breach("proto/support does not know the link")
    link_may = $2 ~ /^(scheduler|proto\/link)\// || generated || !(ours || grpc)
    if ($1 ~ /^proto\/link\// && !link_may) breach("proto/link includes scheduler and generated messages only")
    if (from == "clients" && $2 ~ /^proto\/link\//) breach("the link is between server and workers")
    if (from == "workers" && ours && to != "workers" && to != "scheduler" && to != "proto") breach("workers include scheduler")
    if (from == "workers" && (grpc || to == "proto") && !outer($1))
      breach("only process and session of workers know gRPC")
    if (from == "workers" && to == "workers") {
      split($1, a, "/"); split($2, b, "/")
      if (a[2] in level && b[2] in level && level[b[2]] < level[a[2]]) breach("a lower room includes a higher one")
      if (a[2] in level && a[2] != "comm" && a[2] == "ops" && b[2] == "comm") breach("ops does not know comm")
      if (a[2] == "comm" && b[2] == "ops") breach("comm does not know ops")
      if (a[2] in level && !(b[2] in level)) breach("a room includes the process around it")
    }
    if ($2 ~ /^yaml-cpp/ && $1 != "scheduler/base/flags/flag_sources.cc") breach("only scheduler/base/flags/flag_sources.cc knows YAML")
    if ($2 ~ /^(histedit\.h|editline\/|readline\/)/ && $1 != "clients/cli/terminal/line_editor.cc") breach("only clients/cli/terminal/line_editor.cc knows libedit")
    if ($2 ~ /^curl\// && $1 != "server/observe/http_post.cc") breach("only server/observe/http_post.cc knows libcurl")
    if ($2 ~ /utf8proc/ && $1 !~ /^server\/text\/unicode\//) breach("only server/text/unicode knows utf8proc")
    if ($2 ~ /^prometheus\// && $1 !~ /^(server\/metrics|workers\/process)\/metrics\.(h|cc)$/) breach("only metrics know Prometheus")
    if ($2 ~ /^boost\// && $1 !~ /^server\/http\/http_(server|connection|connection_exchange|connection_io)\.(h|cc)$/) breach("only the HTTP server knows Boost")
    if ($2 ~ /^nccl/ && $1 !~ /^workers\/comm\/nccl\//) breach("only comm/nccl knows NCCL")
    if ($2 ~ /^(cuda|cublas)/ && $1 !~ /_cuda\.|^workers\/tensor\/|^workers\/comm\/nccl\//) breach("only *_cuda.*, tensor and comm/nccl know CUDA")
  }
  END { exit bad }
'
