#!/usr/bin/env python3
"""Every expression of the boards answers in a real Prometheus that scrapes servers under load.

Starts Prometheus and two servers on the demo model (loopback only): one with spare slots for experts, training on its
workers and a worker that is killed on the way, one with TLS and --expert_memory.  While both have load it asks
Prometheus for each expression as Grafana would, over the time so far, until all have answered with a finite number or
the time is up.  Exit status 77: there is no Prometheus.

usage: boards_live.py BIN_DIR [--pages=FOLDER]   With --pages it draws the boards' panels of that data (boards_page.py).
"""

import json
import os
import pathlib
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]
BOARDS = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "deploy/grafana").glob("*.json"))}
PATIENCE = 240  # seconds until all have answered
STEP = 1  # seconds between scrapes, and between points
VARIABLES = {"$__rate_interval": "8s", "$job": ".*", "$model_name": ".*", "$instance": ".*", "$worker": ".*"}
# Expressions that have no answer here, by a part of them, and why.
NOT_HERE = {}


def free_ports(count):
    """Ports that nobody has now, each beside the one before."""
    for first in range(20000 + os.getpid() % 20000, 60000, count):
        sockets = [socket.socket() for _ in range(count)]
        try:
            for i, one in enumerate(sockets):
                one.bind(("127.0.0.1", first + i))
            return list(range(first, first + count))
        except OSError:
            continue
        finally:
            for one in sockets:
                one.close()
    sys.exit("no free ports")


def wait_for(what, holds, limit=60):
    give_up = time.monotonic() + limit
    while not (found := holds()):
        if time.monotonic() > give_up:
            sys.exit(f"FAILED: waited {limit} s for {what}")
        time.sleep(0.1)
    return found


def run(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True, timeout=60).stdout


def get(url, data=None):
    with urllib.request.urlopen(urllib.request.Request(url, data), timeout=30, context=ssl._create_unverified_context()) as answer:
        return answer.read()


class Play:
    """All processes of the play, which end with it."""

    def __init__(self, binaries, work):
        self.binaries, self.work, self.processes, self.over = binaries, work, [], threading.Event()

    def start(self, name, *command):
        log = open(self.work / f"{name}.log", "w", encoding="utf-8")
        self.processes.append(subprocess.Popen([str(word) for word in command], stdout=log, stderr=log, cwd=ROOT))
        return self.processes[-1]

    def again_and_again(self, *command):
        """Runs a command of the client until the end; one that fails, as servers lose workers here, runs again."""
        def loop():
            while not self.over.is_set():
                subprocess.run([str(word) for word in (self.binaries / "switchyard", *command)], stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL, timeout=120, check=False)
                self.over.wait(0.2)
        threading.Thread(target=loop, daemon=True).start()

    def end(self):
        self.over.set()
        for process in reversed(self.processes):
            process.send_signal(signal.SIGTERM)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def start_server(play, name, *flags):
    """Returns the port, HTTP's and the pages of the server and of its workers."""
    port, admin, _, http, page, first, second = free_ports(7)  # the third is that of workers from elsewhere
    process = play.start(name, play.binaries / "switchyard-server", f"--model={ROOT}/deploy/demo-model", "--local_workers=2", f"--port={port}",
                         f"--admin_port={admin}", f"--http_port={http}", f"--metrics_port={page}", f"--worker_metrics_port={first}", *flags)
    log = play.work / f"{name}.log"
    wait_for(f"{name} to be ready: see {log}", lambda: process.poll() is not None or " ready: " in log.read_text(encoding="utf-8"), 120)
    if process.poll() is not None:
        sys.exit(f"FAILED: {name} ended:\n{log.read_text(encoding='utf-8')}")
    return {"port": port, "admin": admin, "http": http, "page": page, "workers": [first, second], "process": process}


def start_prometheus(play, program, plain, secure):
    def job(scheme, ports):
        targets = ", ".join(f"'127.0.0.1:{port}'" for port in ports)
        return f"{{scheme: {scheme}, tls_config: {{insecure_skip_verify: true}}, static_configs: [{{targets: [{targets}]}}]"
    pages = plain["workers"] + secure["workers"] + [plain["page"]]
    config = play.work / "prometheus.yml"
    config.write_text(f"global: {{scrape_interval: {STEP}s, scrape_timeout: {STEP}s}}\nscrape_configs:\n"
                      f"  - {job('http', pages)}, job_name: switchyard}}\n"
                      f"  - {job('https', [secure['page']])}, job_name: switchyard-tls}}\n", encoding="utf-8")
    port = free_ports(1)[0]
    play.start("prometheus", program, f"--config.file={config}", f"--storage.tsdb.path={play.work}/tsdb", f"--web.listen-address=127.0.0.1:{port}")
    url = f"http://127.0.0.1:{port}"

    def ready():
        try:
            return get(url + "/-/ready")
        except (urllib.error.URLError, OSError):
            return False
    wait_for("Prometheus", ready)
    return url


def start_training(play, server, work):
    folder = work / "checkpoints/tiny"
    folder.mkdir()
    config = json.loads((ROOT / "deploy/demo-model/config.json").read_text(encoding="utf-8"))
    config.update(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=16, num_experts=4,
                  moe_intermediate_size=32, max_window_layers=2)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(ROOT / "deploy/demo-model" / name, folder / name)
    texts = [(ROOT / page).read_text(encoding="utf-8") for page in ("README.md", "ARCHITECTURE.md", "server/README.md")]
    (work / "datasets/text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    run(play.binaries / "switchyard", "train", "submit", f"--server=127.0.0.1:{server['admin']}", "--architecture=tiny", "--dataset=text.jsonl",
        "--evaluation=text.jsonl", "--evaluate_every_steps=20", "--precision=fp32", "--steps=1000000", "--sequence_length=32", "--batch_sequences=4",
        "--workers=2", "--on_serving_workers=true", "--learning_rate=0.01", "--checkpoint_every_steps=20", "--keep_last=1", "--capacity_factor=1.25")


def start_load(play, plain, secure, ca):
    for server, more in ((plain, []), (secure, [f"--tls_ca={ca}"])):
        at = f"--server=localhost:{server['port']}"
        play.again_and_again("bench", at, *more, "--concurrency=6", "--duration=20", "--prompt_tokens=60", "--max_tokens=40")
        play.again_and_again("generate", at, *more, "--text=Once upon a time there was a queen who", "--max_tokens=12", "--temperature=0")
        play.again_and_again("generate", at, *more, "--text=no", "--model=nope")
    again = {"model": "demo-model", "messages": [{"role": "user", "content": "Tell me a story."}], "max_tokens": 16}

    def over_http():
        for body in (again, {**again, "max_tokens": -1}) * 100000:
            if play.over.wait(0.5):
                return
            try:
                get(f"http://127.0.0.1:{plain['http']}/v1/chat/completions", json.dumps(body).encode())
            except (urllib.error.URLError, OSError):
                pass
    threading.Thread(target=over_http, daemon=True).start()


def queries():
    """Yields (board, panel, index of the target, expression)."""
    for name, board in BOARDS.items():
        for panel in board["panels"]:
            for i, target in enumerate(panel.get("targets", [])):
                text = target["expr"]
                for variable, value in VARIABLES.items():
                    text = text.replace(variable, value)
                yield name, panel, i, text


def ask(url, text, start):
    """Returns the series of an expression since start: their labels, and their points that are finite."""
    asked = urllib.parse.urlencode({"query": text, "start": start, "end": time.time(), "step": STEP})
    try:
        answer = json.loads(get(f"{url}/api/v1/query_range?{asked}"))["data"]["result"]
    except urllib.error.HTTPError as error:
        sys.exit(f"FAILED: Prometheus says {error.read().decode()} to {text}")
    series = [(one["metric"], [(at, float(value)) for at, value in one["values"] if re.match(r"-?[0-9]", value)]) for one in answer]
    return [one for one in series if one[1]]


def draw(folder, url, start):
    import boards_page  # pylint: disable=import-outside-toplevel
    answers = {board: {} for board in BOARDS}
    end = time.time()
    for board, panel, i, text in queries():
        answers[board].setdefault(panel["id"], {})[i] = ask(url, text, start)
    boards_page.write(folder, BOARDS, answers, start, end)


def main():
    binaries = pathlib.Path(sys.argv[1]).resolve()
    pages = next((word.partition("=")[2] for word in sys.argv[2:] if word.startswith("--pages=")), None)
    program = shutil.which("prometheus")
    if not program:
        print("skipped: prometheus is not installed; deploy/install-deps.sh --tests brings it")
        sys.exit(77)
    work = pathlib.Path(tempfile.mkdtemp(prefix="switchyard-boards-"))
    play = Play(binaries, work)
    try:
        for folder in ("checkpoints", "datasets", "experts"):
            (work / folder).mkdir()
        run("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "30", "-subj", "/CN=localhost",
            "-addext", "subjectAltName=DNS:localhost", "-keyout", work / "tls.key", "-out", work / "tls.crt")
        os.chmod(work / "tls.key", 0o600)
        plain = start_server(play, "plain", "--spare_slots=2", "--forecast=always", "--kv_cache_bytes=400000", "--train_on_serving", "--train_share=0.3",
                             f"--dataset_root={work}/datasets", f"--checkpoint_root={work}/checkpoints", f"--expert_file_dir={work}/experts")
        secure = start_server(play, "secure", "--expert_memory=50%", f"--expert_file_dir={work}/experts", f"--tls_cert={work}/tls.crt", f"--tls_key={work}/tls.key")
        start = time.time()
        url = start_prometheus(play, program, plain, secure)
        start_training(play, plain, work)
        start_load(play, plain, secure, work / "tls.crt")
        left = [query for query in queries() if not any(part in query[3] for part in NOT_HERE)]
        asked, killed = len(left), False
        while left and time.time() < start + PATIENCE:
            time.sleep(STEP)
            if not killed and time.time() > start + 20:  # its loss and its restart are seen, too
                killed = True
                children = run("pgrep", "-P", plain["process"].pid, "-f", "switchyard-worker").split()
                os.kill(int(children[0]), signal.SIGKILL)
            left = [query for query in left if not ask(url, query[3], start)]
        for board, panel, _, text in left:
            print(f"no answer: {board}: {panel['title']}: {text}")
        if pages:
            wait_for("a minute and a half of data", lambda: time.time() > start + 90, 120)
            draw(pathlib.Path(pages), url, start)
        print(f"{asked - len(left)} of {asked} expressions answer after {time.time() - start:.0f} s, {len(NOT_HERE)} were not asked")
        for process in play.processes:
            if process.poll() is not None:
                sys.exit(f"FAILED: {process.args[0]} has ended, see {work}")
    finally:
        play.end()
    if left:
        sys.exit(1)
    shutil.rmtree(work)


main()
