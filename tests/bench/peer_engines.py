"""The engines to compare with: HF transformers on CPU torch, and llama.cpp through its Python package.

Each peer has a name, prefill_rate(ids) and decode_rate(prompts, continuations): tokens per second with the given ids
(what Switchyard generated), measured inside the process: no client, no network, no sampling.  A decode is repeated from
the same prefilled cache.  open_peers() yields those whose packages are installed and says which are not.
"""
import ctypes
import statistics
import time

import olmoe_checkpoint

CACHE_TOKENS = 16384
SAME_TOKEN_SHARE = 0.8  # of greedy tokens; less: the answers are another model's


class HfPeer:
    name = "HF transformers"

    def __init__(self, checkpoint, threads):
        import torch
        import transformers

        torch.set_num_threads(threads)
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        self.version = f"transformers {transformers.__version__}, torch {torch.__version__}"
        self._torch = torch
        self._new_cache = transformers.DynamicCache
        self._model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16).eval()
        self._caches = {}  # a batch's prompts -> their cache

    def _forward(self, ids, **flags):
        with self._torch.inference_mode():
            return self._model(self._torch.tensor(ids), **flags)

    def prefill_rate(self, ids):
        start = time.perf_counter()
        self._forward([ids], logits_to_keep=1, past_key_values=self._new_cache())
        return len(ids) / (time.perf_counter() - start)

    def decode_rate(self, prompts, continuations):
        key = tuple(map(tuple, prompts))
        if key not in self._caches:
            self._caches[key] = self._new_cache()
            self._forward(prompts, logits_to_keep=1, past_key_values=self._caches[key])
        cache = self._caches[key]
        seconds = []
        for step in range(len(continuations[0])):
            start = time.perf_counter()
            self._forward([[tokens[step]] for tokens in continuations], past_key_values=cache)
            seconds.append(time.perf_counter() - start)
        cache.crop(-len(continuations[0]))
        if cache.get_seq_length() != len(prompts[0]):
            raise RuntimeError("HF's cache did not shrink to the prompt")
        return len(prompts) / statistics.median(seconds)

    def logprobs_and_routing(self, prompt, continuation):
        """Of one sequence: log probabilities [n, V] at the continuation's positions, experts [L][n + 1][K] of the rows
        from the prompt's last on, and experts [L][prompt tokens][K] of the prompt."""
        ids = list(prompt) + list(continuation)
        out = self._forward([ids], logits_to_keep=len(continuation) + 1, output_router_logits=True)
        logprobs = self._torch.log_softmax(out.logits[0, :-1].float(), -1)
        chosen = [layer.float().topk(olmoe_checkpoint.TOP_K, -1).indices.tolist() for layer in out.router_logits]
        return (logprobs, [layer[len(prompt) - 1:] for layer in chosen], [layer[:len(prompt)] for layer in chosen])

    def close(self):
        self._caches.clear()
        self._model = None


class LlamaPeer:
    name = "llama.cpp"

    def __init__(self, gguf, threads, cache_tokens=CACHE_TOKENS):
        import llama_cpp

        self.version = f"llama-cpp-python {llama_cpp.__version__}"
        self._api = llama_cpp
        self._log = llama_cpp.llama_log_callback(lambda *_: None)
        llama_cpp.llama_log_set(self._log, ctypes.c_void_p(0))
        self._model = llama_cpp.llama_model_load_from_file(str(gguf).encode(), llama_cpp.llama_model_default_params())
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = cache_tokens, 512, 512, 16
        params.kv_unified = True  # else a sequence has a sixteenth of the cache
        params.n_threads = params.n_threads_batch = threads
        self._context = self._model and llama_cpp.llama_init_from_model(self._model, params)
        if not self._context:
            raise RuntimeError(f"llama.cpp cannot load {gguf}")
        self._memory = llama_cpp.llama_get_memory(self._context)
        self._batch = llama_cpp.llama_batch_init(512, 0, 1)
        self._prompts = None  # what the cache holds

    def _decode(self, rows):
        """Computes rows of (token, position, sequence, wants logits); returns the seconds."""
        batch = self._batch
        batch.n_tokens = len(rows)
        for i, (token, position, sequence, wants) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wants
            batch.seq_id[i][0] = sequence
        start = time.perf_counter()
        if self._api.llama_decode(self._context, batch) != 0:
            raise RuntimeError("llama_decode failed")
        self._api.llama_synchronize(self._context)
        return time.perf_counter() - start

    def _prefill(self, prompts):
        self._api.llama_memory_clear(self._memory, True)
        last = len(prompts[0]) - 1
        for sequence, prompt in enumerate(prompts):
            seconds = self._decode([(token, i, sequence, i == last) for i, token in enumerate(prompt)])
        return seconds

    def prefill_rate(self, ids):
        self._prompts = None
        return len(ids) / self._prefill([ids])

    def decode_rate(self, prompts, continuations):
        if self._prompts != prompts:
            self._prefill(prompts)
            self._prompts = prompts
        length, seconds = len(prompts[0]), []
        for step in range(len(continuations[0])):
            rows = [(tokens[step], length + step, i, True) for i, tokens in enumerate(continuations)]
            seconds.append(self._decode(rows))
        for sequence in range(len(prompts)):
            self._api.llama_memory_seq_rm(self._memory, sequence, length, -1)
        return len(prompts) / statistics.median(seconds)

    def same_greedy_share(self, prompts, answers):
        """How many of the answers' tokens are the likeliest ones here, after the same tokens."""
        import numpy

        self._prompts, same = None, 0
        self._api.llama_memory_clear(self._memory, True)
        for prompt, answer in zip(prompts, answers):
            ids = prompt + answer[:-1]
            self._decode([(token, i, 0, i >= len(prompt) - 1) for i, token in enumerate(ids)])
            for i, token in enumerate(answer):
                logits = self._api.llama_get_logits_ith(self._context, len(prompt) - 1 + i)
                same += int(numpy.ctypeslib.as_array(logits, (olmoe_checkpoint.VOCAB,)).argmax()) == token
            self._api.llama_memory_clear(self._memory, True)
        return same / sum(map(len, answers))

    def log_probabilities(self, ids, vocabulary):
        """Of each of the ids but the first, after those before it."""
        import numpy

        self._prompts, found = None, []
        self._api.llama_memory_clear(self._memory, True)
        for begin in range(0, len(ids) - 1, 512):
            part = ids[begin:begin + 512]
            self._decode([(token, begin + i, 0, True) for i, token in enumerate(part)])
            for i in range(min(len(part), len(ids) - 1 - begin)):
                logits = numpy.ctypeslib.as_array(self._api.llama_get_logits_ith(self._context, i), (vocabulary,)).astype(float)
                found.append(logits[ids[begin + i + 1]] - logits.max() - numpy.log(numpy.exp(logits - logits.max()).sum()))
        return found

    def decode_one(self, token, position):
        """Seconds of one token behind what the cache holds of one sequence."""
        return self._decode([(token, position, 0, True)])

    def close(self):
        self._api.llama_free(self._context)
        self._api.llama_model_free(self._model)


def open_peers(cache, checkpoint, threads, log):
    """The installed peers, and a dictionary name -> version, or why it did not run."""
    makers = {HfPeer: lambda: HfPeer(checkpoint, threads),
              LlamaPeer: lambda: LlamaPeer(_llama_model(cache, log), threads)}
    peers, versions = [], {}
    for kind, make in makers.items():
        try:
            peers.append(make())
            versions[kind.name] = peers[-1].version
        except ImportError as error:
            versions[kind.name] = f"not run: no Python package {error.name}"
        log(f"{kind.name}: {versions[kind.name]}")
    return peers, versions


def _llama_model(cache, log):
    import llama_cpp  # noqa: F401  before 3.6 GB are written for it

    return olmoe_checkpoint.ensure_gguf(cache, log)
