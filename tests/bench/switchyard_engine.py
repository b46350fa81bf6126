"""Switchyard as the benchmarks drive it: a server of its own on loopback, loaded through the command line client."""
import json
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

READY_SECONDS = 600
KV_CACHE_BYTES = 512 << 20


class Switchyard:
    """One server with local workers.  A context manager: the processes end with it, also after an error.

    Times are the client's: `switchyard bench` takes them where it reads its gRPC stream.
    """

    def __init__(self, bin_dir, model, log_path, workers=1, threads=2, flags=(), enter=None, kv_cache_bytes=KV_CACHE_BYTES):
        """kv_cache_bytes: of each worker.  enter: called in the server's process before it starts, for example to enter a
        control group."""
        self._client = str(Path(bin_dir) / "switchyard")
        self._log_path = Path(log_path)
        self._enter = enter
        self._command = [
            str(Path(bin_dir) / "switchyard-server"), f"--model={model}", f"--local_workers={workers}",
            f"--threads={threads}", "--port=0", "--metrics_port=0", f"--kv_cache_bytes={kv_cache_bytes}", *flags,
        ]

    def __enter__(self):
        self._log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log = open(self._log_path, "w")
        self._process = subprocess.Popen(self._command, stderr=self._log, stdout=self._log, preexec_fn=self._enter)
        try:
            self._wait_until_ready()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _wait_until_ready(self):
        deadline = time.monotonic() + READY_SECONDS
        while True:
            log = self._log_path.read_text()
            found = re.search(r"gRPC on (\S+:\d+), jobs and administration on (\S+:\d+),.* metrics on (\S+)", log)
            if found:
                break
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the server did not start; its log: {self._log_path}")
            time.sleep(0.05)
        self._server, self._admin, self._metrics_url = found.groups()
        http = re.search(r"HTTP on (http://\S+?),? ", log)
        self.http = http.group(1) if http else None  # with --http_port
        done = self._call("status", f"--wait={READY_SECONDS}", text="")
        if done.returncode != 0:
            raise RuntimeError(f"the server is not ready: {done.stdout}{done.stderr}its log: {self._log_path}")

    def _server_of(self, command):
        """Jobs and administration have a port of their own."""
        is_admin = command.split()[0] in ("train", "data", "plan", "experts") or command == "profile save"
        return f"--server={self._admin if is_admin else self._server}"

    def _call(self, command, *flags, text):
        return subprocess.run([self._client, *command.split(), *flags, self._server_of(command)], input=text,
                              capture_output=True, text=True, timeout=READY_SECONDS)

    def _ask(self, command, prompts, flags):
        """prompts: token ids, or requests as in --input."""
        requests = [prompt if isinstance(prompt, dict) else {"token_ids": list(prompt)} for prompt in prompts]
        lines = "".join(json.dumps({"temperature": 0, **request}) + "\n" for request in requests)
        done = self._call(command, "--input=-", "--json", f"--concurrency={len(prompts)}", *flags, text=lines)
        if done.returncode != 0:
            raise RuntimeError(f"switchyard {command}: {done.stdout}{done.stderr}")
        return [json.loads(line) for line in done.stdout.splitlines()]

    def generate(self, prompts, max_tokens, *flags):
        """Greedy answers (as `switchyard generate --json` prints them) with the log probability of each token."""
        plain = [] if any(isinstance(prompt, dict) for prompt in prompts) else ["--ignore_eos"]
        answers = self._ask("generate", prompts, [f"--max_tokens={max_tokens}", *plain, "--logprobs=0", *flags])
        for answer in answers:
            if len(answer["token_ids"]) != max_tokens:
                raise RuntimeError(f"{len(answer['token_ids'])} tokens came instead of {max_tokens}")
        return answers

    def bench(self, prompts, max_tokens):
        """The prompts at once, once each; what `switchyard bench --json` prints."""
        return self._ask("bench", prompts, [f"--num_requests={len(prompts)}", f"--max_tokens={max_tokens}"])[0]

    def prefill_rate(self, *prompts):
        """Prompt tokens per second until each has its first token.  REQUIRES: no beginning that was seen before."""
        return sum(map(len, prompts)) / self.bench(prompts, 1)["ttft_seconds"]["max"]

    def decode_rate(self, prompts, max_tokens):
        """Output tokens per second: the prompts' number over the median time between two tokens of a stream."""
        return len(prompts) / self.bench(prompts, max_tokens)["inter_token_seconds"]["p50"]

    def record(self, documents, output, window):
        """A routing trace of the documents (JSON lines), cut into sequences of `window` tokens."""
        done = self._call("trace", "record", "--input=-", f"--output={output}", f"--window={window}", text=documents)
        if done.returncode != 0:
            raise RuntimeError(f"switchyard trace record: {done.stdout}{done.stderr}")

    def ask(self, command, *flags):
        """What `switchyard COMMAND --json` prints: one line."""
        done = self._call(command, "--json", *flags, text="")
        if done.returncode != 0:
            raise RuntimeError(f"switchyard {command}: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def worker_memory(self):
        """Bytes of memory of all workers together: what several of them share counts once."""
        total = 0
        for path in Path("/proc").glob("[0-9]*"):
            try:
                parent = path.joinpath("stat").read_text().rpartition(")")[2].split()[1]
                if parent == str(self._process.pid) and "switchyard-work" in path.joinpath("comm").read_text():
                    total += int(re.search(r"^Pss: +([0-9]+) kB", path.joinpath("smaps_rollup").read_text(), re.M)[1]) << 10
            except OSError:
                continue  # another one's, or it ended
        return total

    def metric(self, name):
        """The sum of a metric's series."""
        values = self._series(self._metrics_url, name)
        if not values:
            raise RuntimeError(f"the server has no metric {name}")
        return sum(value for _, value in values)

    def worker_series(self, name):
        """Of all workers: {labels: sum}."""
        sums = {}
        for worker in self.ask("status")["workers"]:
            for labels, value in self._series(f"http://{worker['metrics_address']}/metrics", name):
                sums[labels] = sums.get(labels, 0) + value
        return sums

    def _page(self, url):
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()

    def _series(self, url, name):
        text = self._page(url)
        return [(labels, float(value)) for labels, value in re.findall(rf"^{name}(?:{{([^}}]*)}})? (\S+)$", text, re.MULTILINE)]


class SwitchyardOnLinks(Switchyard):
    """A server on host 0 of an emulated cluster, a worker on each other host."""

    def __init__(self, cluster, bin_dir, model, folder, port, server_flags=(), worker_flags=()):
        """folder: made for this server's files and its workers'."""
        self._cluster, self._folder = cluster, Path(folder)
        self._folder.mkdir()
        token = self._folder / "token"
        token.write_text("of-this-benchmark-alone-0123456789")
        token.chmod(0o600)
        address, workers = cluster.address(0), cluster.num_hosts - 1
        super().__init__(bin_dir, model, self._folder / "server.log", workers=0)
        self._command = [*cluster.inside(0), f"{bin_dir}/switchyard-server", f"--model={model}", f"--host={address}", f"--worker_host={address}", "--insecure",
                         f"--port={port}", "--metrics_port=0", "--local_workers=0", f"--workers={workers}",
                         f"--join_token_file={token}", *server_flags]
        self._worker = [f"{bin_dir}/switchyard-worker", f"--server={address}:{port + 2}", f"--model={model}", f"--join_token_file={token}",
                        "--threads=1", *worker_flags]
        self._workers = []

    def _flags_of_worker(self, host):
        return []

    def _wait_until_ready(self):
        for host in range(1, self._cluster.num_hosts):
            command = [*self._worker, *self._flags_of_worker(host)]
            self._workers.append(self._cluster.start(host, command, stdout=self._log, stderr=self._log))
        super()._wait_until_ready()

    def __exit__(self, *_):
        super().__exit__()
        for process in self._workers:
            process.terminate()
        for process in self._workers:
            process.wait()

    def log_text(self):
        return self._log_path.read_text()

    def _call(self, command, *flags, text):
        return subprocess.run([*self._cluster.inside(0), self._client, *command.split(), *flags, self._server_of(command)], input=text,
                              capture_output=True, text=True, timeout=READY_SECONDS)

    def _page(self, url):
        read = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1], timeout=10).read().decode())"
        return subprocess.run([*self._cluster.inside(0), sys.executable, "-c", read, url], capture_output=True, text=True, check=True).stdout
