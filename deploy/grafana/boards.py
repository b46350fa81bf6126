#!/usr/bin/env python3
"""The boards, and what writes them beside it: overview.json, experts.json, training.json.  usage: boards.py [--check]

With --check it writes nothing, and fails if a file is not what it would write.  board.py says what @S, @T, @W and @R in
expressions stand for.
"""

import pathlib
import sys

sys.dont_write_bytecode = True
from board import FAULTS, SERVING, TRAINING, Board, mean, quantile, quantiles  # pylint: disable=wrong-import-position

WORKER = "switchyard_worker_"


def rate(metric, who="@S", by=""):
    return f"sum{f' by ({by})' if by else ''} (rate({metric}{{{who}}}@R))"


def per_worker(metric):
    """Each worker's rate of a counter."""
    return [(f"rate({WORKER}{metric}{{@W}}@R)", "{{instance}}")]


def overview():
    b = Board("switchyard-overview", "Switchyard / Overview", "Is it up, is it fast, is it full: traffic, errors, latency and load of servers.", SERVING)
    errors = f"(sum(rate(switchyard_request_errors_total{{@S, {FAULTS}}}@R)) or vector(0))"
    b.stat("Requests / s", "reqps", rate("switchyard_request_success_total"), "Choices that ended without an error, a second.")
    b.stat("Input tok/s", "short", rate("switchyard_prompt_tokens_total"), "Prompt tokens a second, those found in the prefix cache among them.")
    b.stat("Output tok/s", "short", rate("switchyard_generation_tokens_total"), "Tokens made a second.")
    b.stat("Error ratio", "percentunit", f"{errors} / ({errors} + {rate('switchyard_e2e_request_latency_seconds_count')})",
           "Requests that ended with an error that is not the client's (UNKNOWN, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, DATA_LOSS), over gRPC and HTTP.",
           [("green", None), ("orange", 0.001), ("red", 0.01)])
    b.stat("TTFT p95", "s", quantile(0.95, "switchyard_time_to_first_token_seconds"), "From a request's arrival to its first token, queue and prefill among it.")
    b.stat("ITL p95", "s", quantile(0.95, "switchyard_inter_token_latency_seconds"), "Between successive tokens of a choice.")
    b.stat("E2E p95", "s", quantile(0.95, "switchyard_e2e_request_latency_seconds"), "From a request's arrival to the end of its last choice.", w=2)
    b.stat("Unreachable", "none", 'count(up{job=~"$job"} == 0) or vector(0)', "Servers and workers whose metrics page does not answer Prometheus.",
           [("green", None), ("red", 1)], w=2)
    b.stat("Workers", "none", "sum(switchyard_workers{@S})", "Registered workers.", w=2)

    b.row("Traffic")
    b.graph("Tokens", "short", [(rate("switchyard_prompt_tokens_total"), "input / s"), (rate("switchyard_generation_tokens_total"), "output / s")],
            "Tokens a second.")
    b.graph("Ends by reason", "reqps", [(rate("switchyard_request_success_total", by="finished_reason"), "{{finished_reason}}")],
            "Choices that ended without an error. abort: by an Abort call, or as the client went away.", stack=True)
    b.graph("Errors by code", "reqps", [(rate("switchyard_request_errors_total", by="code"), "{{code}}")], "Calls that ended with an error, gRPC's and HTTP's.")
    b.graph("HTTP answers", "reqps", [(rate("switchyard_http_requests_total", by="path, status"), "{{path}} {{status}}")], "Answers over HTTP, by path and status.")
    b.heat("Prompt lengths", "short", "switchyard_request_prompt_tokens", "Tokens of prompts.")
    b.heat("Output lengths", "short", "switchyard_request_generation_tokens", "Tokens of choices.")

    b.row("Latency")
    b.graph("Time to first token", "s", quantiles("switchyard_time_to_first_token_seconds"), "From a request's arrival to its first token.")
    b.graph("Between tokens", "s", quantiles("switchyard_inter_token_latency_seconds"), "Between successive tokens of a choice.")
    b.graph("Whole requests", "s", quantiles("switchyard_e2e_request_latency_seconds"), "From a request's arrival to the end of its last choice.")
    b.graph("Phases of a choice", "s", [(mean(f"switchyard_request_{phase}_time_seconds"), phase) for phase in ("queue", "prefill", "decode")],
            "Means: in the queue; from there to the first token; from that to the last.", stack=True)
    b.graph("Time per output token", "s", quantiles("switchyard_request_time_per_output_token_seconds"), "Each choice's mean time between its tokens.")
    b.heat("Times to first token", "s", "switchyard_time_to_first_token_seconds", "How the times are spread.")

    b.row("Load")
    b.graph("Sequences", "short", [("sum(switchyard_num_requests_running{@S})", "running"), ("sum(switchyard_num_requests_waiting{@S})", "waiting")],
            "Sequences that run, and those in the queue.")
    b.graph("KV cache", "percentunit", [("switchyard_kv_cache_usage_perc{@S}", "{{instance}}")], "Blocks that sequences hold; those that are only cached are free.", most=1)
    b.graph("Prefix cache hits", "percentunit", [(f"{rate('switchyard_prefix_cache_hits_total')} / {rate('switchyard_prefix_cache_queries_total')}", "found")],
            "Prompt tokens that were found in the prefix cache.", most=1)
    b.graph("Preemptions, rejections", "reqps", [(rate("switchyard_num_preemptions_total"), "preempted"),
                                                 (rate("switchyard_admission_rejections_total", by="reason"), "rejected: {{reason}}")],
            "Sequences sent back to the queue as KV blocks ran out, and requests refused as the queue was full.")
    b.graph("Rows of a step", "short", [(mean("switchyard_iteration_tokens"), "mean"), (quantile(0.95, "switchyard_iteration_tokens"), "p95")],
            "Tokens that a step computes, of all sequences and workers.")
    b.graph("Duration of a step", "s", quantiles("switchyard_step_seconds") + [(mean("switchyard_publish_seconds"), "publishing, mean")],
            "From sending a step's plan to the last worker's result; and committing it and filling the streams.")

    b.row("Servers")
    b.graph("Ready", "short", [("switchyard_ready{@S}", "{{instance}}")], "1 while requests are served.", w=6, most=1)
    b.graph("Losses and restarts", "short", [("sum(increase(switchyard_groups_lost_total{@S}[1h]))", "groups lost"),
                                             ("sum(increase(switchyard_local_worker_restarts_total{@S}[1h]))", "local workers started again"),
                                             ("sum(increase(switchyard_num_outlived_losses_total{@S}[1h]))", "sequences that went on")],
            "Of the hour before.", w=6)
    b.graph("Open", "short", [("sum(switchyard_open_streams{@S})", "gRPC streams"), ("sum(switchyard_open_connections{@S})", "connections")],
            "Generate calls over gRPC; connections to all ports.", w=6)
    b.graph("Refused at the door", "reqps", [(rate("switchyard_connections_refused_total"), "too many connections"),
                                             (rate("switchyard_calls_refused_total", by="reason"), "{{reason}}"),
                                             (rate("switchyard_texts_refused_total"), "no room for text"),
                                             (rate("switchyard_tls_handshakes_failed_total"), "bad handshake")],
            "Connections and calls that did not get to the engine.", w=6)
    b.graph("Bytes that wait", "bytes", [("sum(switchyard_unfinished_call_bytes{@S})", "unfinished calls"), ("sum(switchyard_waiting_text_bytes{@S})", "text to tokenize")],
            "What calls hold that are not answered, and what of them is not tokenized yet.", w=6)
    b.graph("Text work", "percentunit", [(rate("switchyard_tokenize_seconds_total"), "tokenizing"), (rate("switchyard_constraint_compile_seconds_total"), "constraints")],
            "Cores that tokenize prompts, and compile constraints of outputs.", w=6)
    b.stat("Up for", "s", 'min(time() - process_start_time_seconds{@S})', "Since the youngest server started.", w=4)
    b.stat("Certificate", "s", "min(switchyard_certificate_expiry_seconds{@S}) - time()", "Until the first server's certificate expires; none without TLS.",
           [("red", None), ("orange", 7 * 86400), ("green", 14 * 86400)], w=4)
    b.stat("KV blocks", "short", 'sum(switchyard_worker_kv_blocks{@W})', "Blocks of all workers' KV caches.", w=4)
    return b


def experts():
    b = Board("switchyard-experts", "Switchyard / Experts", "Where a MoE layer's time goes, how even its ranks are, and what placement and expert memory do.", SERVING)
    hits = f"sum(rate({WORKER}expert_hits_total{{@W}}@R))"
    misses = f"sum(rate({WORKER}expert_misses_total{{@W}}@R))"
    steps = rate("switchyard_step_seconds_count")
    b.stat("Balance, decode", "percentunit", mean("switchyard_moe_balancedness_ratio", '@S, phase="decode"'),
           "Mean over maximum of the ranks' expert rows, of a step's layers: 100 % is even.", [("red", None), ("orange", 0.5), ("green", 0.8)])
    b.stat("Balance, prefill", "percentunit", mean("switchyard_moe_balancedness_ratio", '@S, phase="prefill"'), "The same of steps with prompts.",
           [("red", None), ("orange", 0.5), ("green", 0.8)])
    b.stat("Rows sent / s", "short", rate("switchyard_moe_tokens_exchanged_total"), "Expert rows that went to another rank.")
    b.stat("Experts of a step", "percentunit", f"{rate('switchyard_moe_expert_seconds_sum')} / {rate('switchyard_step_seconds_sum')}",
           "Part of a step in which the slowest rank computes experts.")
    b.stat("Exchange of a step", "percentunit", f"{rate('switchyard_moe_exchange_seconds_sum')} / {rate('switchyard_step_seconds_sum')}",
           "Part of a step in which the slowest rank exchanges rows, waiting included.")
    b.stat("Placement gained", "s", "sum(switchyard_placement_gained_seconds{@S})", "What --placement=auto has saved since the group formed; below 0: lost.")
    b.stat("Deciding steps", "percentunit", f"{rate('switchyard_deciding_steps_total')} / {steps}", "Steps whose rows went another way than to their experts' homes.")
    b.stat("Expert cache hits", "percentunit", f"{hits} / ({hits} + {misses})", "With --expert_memory: uses of experts that were in fast memory.")

    b.row("Even or not")
    b.graph("Balance", "percentunit", [(mean("switchyard_moe_balancedness_ratio", by="phase"), "{{phase}}")],
            "Mean over maximum of the ranks' expert rows, of a step's layers; prefill: steps with prompts.", most=1)
    b.heat("Balance of decode steps", "percentunit", "switchyard_moe_balancedness_ratio", "How the ratios are spread.", more=', phase="decode"')
    b.graph("Expert rows by worker", "short", per_worker("moe_tokens_computed_total"), "Rows times experts that a worker computes a second.", stack=True)
    b.graph("Rows between workers", "short", [(f"rate({WORKER}moe_tokens_sent_total{{@W}}@R)", "{{instance}} sends"),
                                              (f"rate({WORKER}moe_tokens_received_total{{@W}}@R)", "{{instance}} receives")], "Expert rows a second.")
    b.graph("Attention rows by worker", "short", per_worker("rows_total"), "Rows of steps a second.", stack=True)
    b.graph("Rows given away", "short", [(rate("switchyard_rows_lent_total"), "rows / s")], "Rows that one worker computed for another, all but their attention.")

    b.row("A step's time")
    b.graph("Experts, slowest rank", "s", quantiles("switchyard_moe_expert_seconds"), "All expert layers of a step.")
    b.graph("Exchanges, slowest rank", "s", quantiles("switchyard_moe_exchange_seconds"), "All dispatches and combines of a step, waiting included.")
    b.graph("Parts of a step", "s", [(mean(f"{WORKER}{part}_seconds", "@W"), name) for part, name in (
        ("attention", "attention"), ("moe_expert", "experts"), ("moe_exchange", "exchange"), ("head", "head"))],
            "Means over the workers' steps.", stack=True)
    b.graph("Steps by worker", "s", [(quantile(0.95, f"{WORKER}step_seconds", "@W", ", instance"), "{{instance}} p95")], "A worker's part of a step.")
    b.graph("Deciding", "s", [(mean("switchyard_moe_gather_seconds"), "gathers"), (mean("switchyard_moe_decide_seconds"), "decisions")],
            "Of a step, on the slowest rank: gathers of counts, and where rows and experts go.")
    b.graph("Links", "Bps", [("switchyard_link_bytes_per_second{@S}", "{{instance}}")], "What a worker sends a second in an all-to-all, as measured when the group formed.")

    b.row("Placement")
    b.graph("Gained", "s", [("switchyard_placement_gained_seconds{@S}", "placement, {{instance}}"), ("switchyard_micro_batches_gained_seconds{@S}", "micro-batches, {{instance}}")],
            "What choices by trial have saved since the group formed; below 0: lost.", least=None)
    b.graph("Chosen steps", "percentunit", [(f"{rate('switchyard_deciding_steps_total')} / {steps}", "other placement"),
                                            (f"{rate('switchyard_cut_steps_total')} / {steps}", "cut into micro-batches")], "Steps that did not go the plain way.")
    b.graph("Copies of experts", "ops", [(f"sum(rate({WORKER}placement_{why}_copies_total{{@W}}@R))", why) for why in ("fill", "demand", "prefetch", "late")],
            "Copies into spare slots: to fill them, on demand, ahead; and those that a layer waited for.")
    b.graph("Copied for placement", "Bps", per_worker("placement_copied_bytes_total"), "Bytes of these copies.")
    b.graph("Waits for copies", "percentunit", per_worker("placement_wait_seconds_total"),
            "Part of the time in which layers wait for a copy.")
    b.graph("Layers tuned after their gate", "short", [(rate("switchyard_moe_fine_tuned_layers_total"), "layers / s")], "Layers whose experts moved after their gate.")

    b.row("Expert memory (--expert_memory)")
    hit, miss = (f"rate({WORKER}expert_{kind}_total{{@W}}@R)" for kind in ("hits", "misses"))
    b.graph("Hits", "percentunit", [(f"{hit} / ({hit} + {miss})", "{{instance}}")], "Uses of experts that were in fast memory.", most=1)
    b.graph("Misses", "ops", [(f"sum(rate({WORKER}expert_{kind}_total{{@W}}@R))", kind) for kind in ("misses", "late", "prefetched", "wasted")],
            "Experts that were not there; of these, copies that came late; copies ahead of use; those that were not used.")
    b.graph("Copied", "Bps", per_worker("expert_copied_bytes_total"), "Bytes of experts from the disk or the host's memory.")
    b.graph("Waits", "percentunit", per_worker("expert_wait_seconds_total"), "Part of the time in which layers wait for an expert.")
    b.graph("Rows on the host", "short", per_worker("expert_host_rows_total"), "Rows of experts that the host computed for a GPU.")
    b.graph("Failed copies", "short", [(f"sum by (instance) (increase({WORKER}{kind}_failed_copies_total{{@W}}[1h]))", f"{{{{instance}}}} {kind}") for kind in ("expert", "placement")],
            "Of the hour before. More than 0: the file of packed experts was damaged.")

    b.row("Workers")
    b.graph("Weights", "bytes", [(f"{WORKER}weight_bytes{{@W}}", "{{instance}}"), (f"{WORKER}shared_weight_bytes{{@W}}", "{{instance}}, shared")],
            "Bytes of weights; of these, those that workers of the machine share.")
    b.graph("Devices", "bytes", [(f"{WORKER}device_bytes{{@W}}", "{{instance}}")], "Bytes of a GPU's memory; 0 on a CPU.")
    b.graph("CUDA graphs", "ops", [(f"sum(rate({WORKER}graph_steps_total{{@W}}@R))", "steps replayed / s"), (f"sum(rate({WORKER}graph_captures_total{{@W}}@R))", "captures / s"),
                                   (f"sum(rate({WORKER}graphs_without_memory_total{{@W}}@R))", "without memory / s"), (f"sum(rate({WORKER}cublas_refusals_total{{@W}}@R))", "cuBLASLt refusals / s")],
            "Of GPUs. The last two are to be 0.")
    b.graph("Forecasts", "percentunit", [(f"rate({WORKER}forecast_seconds_total{{@W}}@R)", "{{instance}}")], "Part of the time that predicting the load of coming layers takes.")
    b.graph("Right forecasts", "percentunit", [(f"avg by (estimator) ({WORKER}estimate_accuracy_ratio{{@W, ahead=\"1\", phase=\"decode\"}})", "{{estimator}}")],
            "Batches for which the most popular experts of the next layer were foreseen (--forecast).", most=1)
    b.graph("Faults of groups", "short", [(f"sum by (instance) (increase({WORKER}group_faults_total{{@W}}[1h]))", "{{instance}}")], "Of the hour before: groups that ended with an error.")
    return b


def training():
    b = Board("switchyard-training", "Switchyard / Training", "Training jobs: losses, speed, where a step's time goes, checkpoints, workers.", TRAINING)
    b.stat("Running", "none", 'sum(switchyard_train_jobs{@T, state="running"})', "Jobs that run.")
    b.stat("Pending", "none", 'sum(switchyard_train_jobs{@T, state="pending"})', "Jobs in the queue.")
    b.stat("Failed", "none", 'sum(switchyard_train_jobs{@T, state="failed"})', "Jobs that have failed; `switchyard train get` says why.", [("green", None), ("orange", 1)])
    b.stat("Tokens / s", "short", rate("switchyard_train_tokens_total", "@T"), "Tokens trained a second.")
    b.stat("Busy workers", "percentunit", "sum(switchyard_train_workers_busy{@T}) / sum(switchyard_train_workers{@T})", "Of the workers that train, those that a job has.")
    b.stat("Oldest checkpoint", "s", "max(switchyard_train_checkpoint_age_seconds{@T})", "What would be lost with a job's workers.", [("green", None), ("orange", 3600), ("red", 7200)])
    b.stat("Lost attempts, 1 h", "none", "sum(increase(switchyard_train_attempts_lost_total{@T}[1h]))", "Attempts that ended as a worker or their group was lost.",
           [("green", None), ("orange", 1), ("red", 3)])
    b.stat("Journal", "none", "min(switchyard_train_journal_ok{@T})", "1: the journal of jobs can be written; else nothing new starts.", [("red", None), ("green", 1)])

    def by_job(metric):
        return [(f"switchyard_train_{metric}{{@T}}", "{{instance}} {{job_id}}")]

    b.row("Learning")
    b.graph("Loss", "none", by_job("loss") + [("switchyard_train_evaluation_loss{@T}", "{{instance}} {{job_id}}, evaluation"), ("switchyard_train_evaluation_set_loss{@T}", "{{instance}} {{job_id}}, {{set}}")],
            "Mean cross-entropy of the last step, of the last evaluation and of its sets, nats a token.", w=12, least=None)
    b.graph("Gradient norm", "none", by_job("gradient_norm"), "Before it is clipped.", w=6)
    b.graph("Learning rate", "sci", by_job("learning_rate"), "Of the last step.", w=6)
    b.graph("Router losses", "none", [("switchyard_train_balance_loss{@T}", "{{job_id}} balance"), ("switchyard_train_z_loss{@T}", "{{job_id}} z")], "Without their weights.", w=6)
    b.graph("Dead experts", "none", by_job("dead_experts"), "Experts that no token of the last step has chosen.", w=6)
    b.graph("Dropped rows", "short", [(rate("switchyard_train_dropped_rows_total", "@T"), "rows / s")], "Rows times experts that experts' capacity cut off.", w=6)
    b.graph("Steps", "none", by_job("step") + [("switchyard_train_checkpoint_step{@T}", "{{job_id}}, in a checkpoint")], "Steps done, and those that are saved.", w=6)

    b.row("Speed")
    b.graph("Tokens", "short", by_job("tokens_per_second"), "Tokens trained a second.")
    b.graph("Duration of a step", "s", [(f"{rate('switchyard_train_step_seconds_total', '@T')} / {rate('switchyard_train_steps_total', '@T')}", "mean")], "On rank 0.")
    b.graph("Phases of a step", "percentunit", [(f"{rate('switchyard_train_phase_seconds_total', '@T', 'phase')} / on () group_left () {rate('switchyard_train_step_seconds_total', '@T')}", "{{phase}}")],
            "Parts of rank 0's steps. Forward and backward have experts and all-to-alls in them; of communication what was waited for.")
    b.graph("Packing, chunks", "none", [("switchyard_train_packing{@T}", "{{job_id}} packing"), ("switchyard_train_chunks{@T}", "{{job_id}} chunks")],
            "Replicas of every expert that the workers keep; parts into which a layer's rows are cut.")
    b.graph("Age of checkpoints", "s", by_job("checkpoint_age_seconds"), "Since the newest checkpoint, or since the job runs.")
    b.graph("Jobs", "none", [("sum by (state) (switchyard_train_jobs{@T})", "{{state}}")], "By state.")

    b.row("Workers")
    b.graph("Steps by worker", "s", [(quantile(0.95, f"{WORKER}train_step_seconds", "@W", ", instance"), "{{instance}} p95")], "A worker's steps of training.")
    b.graph("Communication", "percentunit", [(f"sum by (instance) (rate({WORKER}train_{what}_seconds_total{{@W}}@R))", f"{{{{instance}}}} {name}")
                                            for what, name in (("all_to_all", "all-to-all"), ("all_reduce", "sums"))], "Part of the time in which workers wait for others.")
    b.graph("Files", "percentunit", [(f"sum by (instance) (rate({WORKER}train_{what}_seconds_total{{@W}}@R))", f"{{{{instance}}}} {name}") for what, name in (
        ("data", "data"), ("offload_wait", "optimizer's file"), ("activation_wait", "activations' file"), ("checkpoint_wait", "checkpoint"))],
            "Part of the time in which steps wait for files.")
    b.graph("Saving a checkpoint", "s", [(quantile(0.95, f"{WORKER}train_checkpoint_seconds", "@W", ", instance"), "{{instance}} p95")], "From the copy to the manifest.")
    b.graph("On serving workers", "percentunit", [(f"rate({WORKER}train_slice_seconds_total{{@W}}@R)", "{{instance}}")], "Part of the time in which a worker that serves, too, lets training run (--train_on_serving).")
    b.graph("Stops for serving", "s", [(quantile(0.95, f"{WORKER}train_yield_seconds", "@W", ", instance"), "{{instance}} p95")], "How long training takes to stop for a plan.")
    b.graph("Late stops", "ops", per_worker("train_late_yields_total"), "Stops that took longer than --train_yield_ms.")
    return b


def main():
    stale = []
    for board in (overview(), experts(), training()):
        path = pathlib.Path(__file__).parent / (board.head["uid"].removeprefix("switchyard-") + ".json")
        if "--check" not in sys.argv[1:]:
            path.write_text(board.json(), encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != board.json():
            stale.append(path.name)
    if stale:
        sys.exit(f"{' '.join(stale)}: not what boards.py writes; run it")


main()
