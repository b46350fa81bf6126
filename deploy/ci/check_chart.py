"""Renders the chart for several values with helm and validates what comes out.  usage: check_chart.py CHART [BIN_DIR]

With BIN_DIR it also plays pods with TLS and keys on this machine, one alone and a group with two workers in a pod: the
commands of init containers, the server and the workers with the rendered files, and the probes' commands.
"""

import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time

import kubernetes_validate
import yaml

KUBERNETES = ["1.27", "1.37"]  # the oldest that Chart.yaml allows, the newest that is known

TLS = {"tls.secret": "cert", "tls.serverName": "llm.example", "apiKeys.secret": "keys"}
GOOD = {
    "one pod, insecure": {"insecure": True},
    "one pod, TLS and keys": TLS,
    "one pod, everything": {
        **TLS, "model.claim": "models", "model.path": "/model/mixtral", "shmSize": "2Gi", "cacheSize": "60Gi",
        "service.type": "LoadBalancer", "service.annotations.a": "b", "podMonitor.enabled": True,
        "podMonitor.labels.release": "prometheus", "prometheusRule.enabled": True, "prometheusRule.labels.release": "prometheus",
        "imagePullSecrets[0]": "pull", "nodeSelector.disk": "ssd",
        "tolerations[0].key": "gpu", "tolerations[0].operator": "Exists", "podAnnotations.x": "y",
        "resources.limits.memory": "64Gi", "serverFlags.kv_cache_bytes": 10737418240, "serverFlags.expert_memory": "25%",
        "drainSeconds": 20},
    "a group": {**TLS, "group.workers": 3, "group.replicas": 2, "localWorkers": 0, "joinToken.secret": "join",
                "podMonitor.enabled": True, "workerFlags.threads": 8, "workerResources.requests.cpu": 8},
    "a group, two workers a pod": {**TLS, "group.workers": 2, "group.workersPerPod": 2, "joinToken.secret": "join",
                                   "podMonitor.enabled": True},
    "a group, insecure": {"insecure": True, "group.workers": 1, "joinToken.secret": "join"},
}
BAD = {  # values, and a part of the error
    "neither TLS nor insecure": ({}, "give tls.secret and apiKeys.secret"),
    "TLS without keys": ({"tls.secret": "cert", "tls.serverName": "a"}, "give apiKeys.secret"),
    "TLS without a name": ({"tls.secret": "cert", "apiKeys.secret": "keys"}, "needs tls.serverName"),
    "a group without a token": ({"insecure": True, "group.workers": 1}, "needs joinToken.secret"),
    "no workers": ({"insecure": True, "localWorkers": 0}, "both 0"),
    "an unknown value": ({"insecure": True, "replicas": 2}, "additional properties"),
    "a word for a number": ({"insecure": True, "localWorkers": "two"}, "localWorkers"),
    "a port of its own": ({"insecure": True, "serverFlags.http-port": 8080}, "serverFlags.http-port"),
    "pages elsewhere": ({"insecure": True, "serverFlags.metrics_host": "0.0.0.0"}, "serverFlags.metrics_host"),
    "two drains": ({"insecure": True, "serverFlags.drain_timeout": "90s"}, "give drainSeconds"),
    "a server of its own": ({"insecure": True, "workerFlags.server": "a:1"}, "workerFlags.server"),
    "no workers in a pod": ({"insecure": True, "group.workersPerPod": 0}, "workersPerPod"),
    "a list of flags": ({"insecure": True, "serverFlags.model.x": 1}, "serverFlags"),
}
# Keys of the secrets, by the volume that has them.
KEYS = {"tls": {"tls.crt", "tls.key", "ca.crt"}, "keys": {"keys"}, "token": {"token"}}
# Fields that LeaderWorkerSet's, PodMonitor's and PrometheusRule's definitions have; they are no part of Kubernetes' schemas.
LWS = {"spec": {"replicas", "leaderWorkerTemplate", "rolloutStrategy", "startupPolicy", "networkConfig"},
       "leaderWorkerTemplate": {"leaderTemplate", "workerTemplate", "size", "restartPolicy", "subGroupPolicy", "volumeClaimTemplates",
                                "persistentVolumeClaimRetentionPolicy"},
       "restartPolicy": {"None", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart"}, "startupPolicy": {"LeaderCreated", "LeaderReady"}}
ENDPOINT = {"port", "path", "interval", "scheme", "tlsConfig"}


def run_helm(*args):
    return subprocess.run(["helm", *args], capture_output=True, text=True, timeout=60)


def render(chart, values):
    sets = [f"--set={k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in values.items()]
    return run_helm("template", "rel", chart, *sets)


def validate(thing, where):
    for version in KUBERNETES:
        try:
            kubernetes_validate.validate(thing, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            sys.exit(f"FAILED: {where}, Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")


def need(condition, text):
    if not condition:
        sys.exit(f"FAILED: {text}")


def check_ports(template, where):
    ports = [port for container in template["spec"]["containers"] for port in container["ports"]]
    for what in ("name", "containerPort"):
        need(len({port[what] for port in ports}) == len(ports), f"{where}: two ports with one {what}: {ports}")


def check_pod(template, where, stop_seconds):
    spec = template["spec"]
    need(spec["terminationGracePeriodSeconds"] > stop_seconds, f"{where}: the grace period is no longer than the drain")
    need(spec["enableServiceLinks"] is False, f"{where}: variables of services would be flags")
    volumes = {volume["name"] for volume in spec["volumes"]}
    for container in spec["containers"] + spec.get("initContainers", []):
        mounts = [mount["name"] for mount in container["volumeMounts"]]
        need(set(mounts) <= volumes, f"{where}: {container['name']} mounts {set(mounts) - volumes}, which is no volume")
    need(all(volume in str(spec["containers"] + spec.get("initContainers", [])) for volume in volumes),
         f"{where}: a volume that nobody mounts")
    check_ports(template, where)


def check_files(template, config, where):
    """Each file that flags and probes name is one that the init container copies, and workers get no private key."""
    spec, provided = template["spec"], set()
    for volume in spec["volumes"]:
        if "secret" in volume:
            provided |= {item["path"] for item in volume["secret"].get("items", [])} or KEYS[volume["name"]]
    named = set(re.findall(r"/run/switchyard/([a-z.]+)", config + str(spec["containers"])))
    need(named <= provided, f"{where}: {named - provided} of no secret")
    need("server.yaml" in str(spec["containers"]) or "tls.key" not in provided, f"{where}: workers have the server's key")


def check_group(group, where):
    spec, inner = group["spec"], group["spec"]["leaderWorkerTemplate"]
    need(set(spec) <= LWS["spec"] and set(inner) <= LWS["leaderWorkerTemplate"], f"{where}: unknown fields of the group")
    need(inner["restartPolicy"] in LWS["restartPolicy"] and spec["startupPolicy"] in LWS["startupPolicy"], f"{where}: a policy")
    need(inner["size"] >= 2, f"{where}: the size of the group")
    for name in ("leaderTemplate", "workerTemplate"):
        # Its inside is a pod template of Kubernetes.
        validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": inner[name]}, where)
        check_pod(inner[name], where, 25)


def check_together(things, where):
    """Files, ports and numbers of workers that the flags name are those of the pods.  things: by kind.  Returns pods' templates by component."""
    config = things["ConfigMap"]["data"]
    server = yaml.safe_load(config["server.yaml"])
    pods = {"server.yaml": things.get("Deployment", {}).get("spec", {}).get("template")}
    if "LeaderWorkerSet" in things:
        inner = things["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        pods = {"server.yaml": inner["leaderTemplate"], "worker.yaml": inner["workerTemplate"]}
        elsewhere = (inner["size"] - 1) * len(inner["workerTemplate"]["spec"]["containers"])
        need(server["workers"] == server["local_workers"] + elsewhere, f"{where}: the server expects {server['workers']} workers")
    need(set(config) == set(pods), f"{where}: files {set(config)} for {set(pods)}")
    for name, template in pods.items():
        check_files(template, config[name], f"{where}: {name}")
    ports = {port["name"]: port["containerPort"] for port in pods["server.yaml"]["spec"]["containers"][0]["ports"]}
    for name, flag in {"grpc": "port", "http": "http_port", "metrics": "metrics_port"}.items():
        need(server.get(flag) == ports[name], f"{where}: the port {name} is {ports[name]}, --{flag} {server.get(flag)}")
    pages = [ports.get(f"metrics-{i + 1}") for i in range(server["local_workers"])]
    first = server["worker_metrics_port"]
    need(pages == list(range(first, first + len(pages))), f"{where}: local workers' pages are {pages}, --worker_metrics_port {first}")
    need("--metrics_host=$(POD_IP)" in pods["server.yaml"]["spec"]["containers"][0]["args"], f"{where}: pages that no other pod reaches")
    return {name.removesuffix(".yaml"): template for name, template in pods.items()}


def check_monitor(monitor, pods, tls, where):
    """Every page of metrics of the pods is asked, and only the server's own by TLS.  pods: templates by component."""
    spec, component = monitor["spec"], monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/component"]
    ports = [port["name"] for container in pods[component]["spec"]["containers"] for port in container["ports"]]
    asked = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"]]
    need(sorted(asked) == sorted(port for port in ports if port.startswith("metrics")), f"{where}: asks {asked} of {ports}")
    secure = [endpoint["port"] for endpoint in spec["podMetricsEndpoints"] if endpoint.get("scheme") == "https"]
    need(secure == (["metrics"] if tls and component == "server" else []), f"{where}: asks {secure} by TLS")
    need(spec["selector"]["matchLabels"]["app.kubernetes.io/name"] == "switchyard", f"{where}: the selector")
    need(spec["jobLabel"] == "app.kubernetes.io/name", f"{where}: the job's name, by which alerts and boards know it")
    for endpoint in spec["podMetricsEndpoints"]:
        need(set(endpoint) <= ENDPOINT and re.fullmatch(r"metrics(-\d+)?", endpoint["port"]), f"{where}: an endpoint of the monitor")


def check_rule(rule, where):
    """The alerts are those of deploy/prometheus, which promtool checks."""
    with open("deploy/prometheus/alerts.yaml", encoding="utf-8") as file:
        need(rule["spec"] == yaml.safe_load(file), f"{where}: not the alerts of deploy/prometheus")


def check_flags(config, binaries, where):
    for name, text in config["data"].items():
        program = os.path.join(binaries, "switchyard-" + name.removesuffix(".yaml"))
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write(text)
            file.flush()
            # Unknown flags and bad values are errors before the model is looked for.
            out = subprocess.run([program, f"--config={file.name}", "--model=/no/such/model"], capture_output=True,
                                 text=True, timeout=60)
        wrong = [line for line in out.stderr.splitlines() if re.search(r"\.yaml:\d+: |unknown flag|must be within", line)]
        need(out.returncode == 2 and not wrong, f"{where}: {name}: exit code {out.returncode}: {wrong or out.stderr}")


def make_secrets(folder, binaries):
    """Secrets as Kubernetes mounts them: links to files in a folder of a version."""
    def openssl(*args):
        subprocess.run(["openssl", *args], check=True, capture_output=True, timeout=60)
    new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"]
    own = lambda name: os.path.join(folder, name)
    openssl("req", "-x509", *new_key, "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost",
            "-keyout", own("tls.key"), "-out", own("tls.crt"))
    key = subprocess.run([os.path.join(binaries, "switchyard"), "keys", "new", "--name=me", "--role=user"],
                         check=True, capture_output=True, text=True, timeout=60).stdout
    with open(own("keys"), "w", encoding="utf-8") as file:
        file.write(re.search(r"^line: (.*)$", key, re.M).group(1) + "\n")
    with open(own("token"), "w", encoding="utf-8") as file:
        file.write("a token of more than sixteen bytes\n")
    with open(own("tls.crt"), encoding="utf-8") as file, open(own("ca.crt"), "w", encoding="utf-8") as out:
        out.write(file.read())
    for secret, names in {**KEYS, "ca": {"ca.crt"}}.items():
        os.makedirs(own(f"secrets/{secret}/..1"))
        os.symlink("..1", own(f"secrets/{secret}/..data"))
        for name in names:
            shutil.copy(own(name), own(f"secrets/{secret}/..1/{name}"))
            os.chmod(own(f"secrets/{secret}/..1/{name}"), 0o440)
            os.symlink(f"..data/{name}", own(f"secrets/{secret}/{name}"))


class PlayedPod:
    """A pod on this machine, with paths of its own for those of its containers."""

    def __init__(self, template, configs, folder, binaries, port):
        self.spec, self.folder, self.binaries, self.processes = template["spec"], folder, binaries, []
        # The server's ports follow each other from `port` on.
        self.there = {"/run/switchyard": folder + "/run", "/etc/switchyard": folder, "0.0.0.0": "127.0.0.1",
                      "/usr/share/switchyard/": os.path.abspath("deploy") + "/", "$(LWS_LEADER_ADDRESS)": "localhost",
                      "$(POD_IP)": "127.0.0.1", ":50051": f":{port}", ":50053": f":{port + 2}"}
        os.makedirs(folder + "/run")
        os.makedirs(folder + "/secrets")
        for volume in self.spec["volumes"]:
            if "secret" in volume:
                os.symlink(f"../../secrets/{volume['name']}", f"{folder}/secrets/{volume['name']}")
        self.there["/secrets/"] = folder + "/secrets/"
        for name, text in configs.items():
            with open(f"{folder}/{name}", "w", encoding="utf-8") as file:
                file.write(self.here(text))
        for _ in range(2):  # it may run again in the same pod
            copied = subprocess.run([self.here(word) for word in self.spec["initContainers"][0]["command"]], timeout=60, check=False)
            need(copied.returncode == 0, "the init container fails")

    def here(self, text):
        for there, local in self.there.items():
            text = text.replace(there, local)
        return text

    def start(self, *more):
        for container in self.spec["containers"]:
            command = container.get("command", ["switchyard-server"]) + container["args"]
            with open(self.folder + "/log", "a", encoding="utf-8") as log:
                self.processes.append(subprocess.Popen(
                    [f"{self.binaries}/{command[0]}", *map(self.here, command[1:]), *more], stderr=log))

    def run(self, command):
        """A probe's: returns its exit code and what it says."""
        command = [self.here(word) for word in command]
        out = subprocess.run([f"{self.binaries}/{command[0]}", *command[1:]], capture_output=True, text=True, timeout=60, check=False)
        return out.returncode, out.stdout + out.stderr

    def log(self):
        with open(self.folder + "/log", encoding="utf-8") as file:
            return file.read()

    def kill(self):
        for process in self.processes:
            process.kill()


def play(chart, binaries, values):
    """Until all probes of the server succeed; then its programs end by SIGTERM, the server first."""
    things = {thing["kind"]: thing for thing in yaml.safe_load_all(render(chart, values).stdout) if thing}
    configs = things["ConfigMap"]["data"]
    inner = things.get("LeaderWorkerSet", {}).get("spec", {}).get("leaderWorkerTemplate")
    templates = [inner["leaderTemplate"]] + [inner["workerTemplate"]] * (inner["size"] - 1) if inner else \
        [things["Deployment"]["spec"]["template"]]
    port = 20000 + random.randrange(10000)
    with tempfile.TemporaryDirectory() as folder:
        make_secrets(folder, binaries)
        pods = [PlayedPod(template, configs, f"{folder}/pod-{i}", binaries, port) for i, template in enumerate(templates)]
        said = lambda: "\n".join(pod.log() for pod in pods)
        try:
            pods[0].start(f"--port={port}", "--http_port=0", "--metrics_port=-1", "--worker_metrics_port=0")
            for pod in pods[1:]:
                pod.start("--metrics_port=0", "--threads=1")
            give_up = time.monotonic() + 120
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                while (out := pods[0].run(pods[0].spec["containers"][0][probe]["exec"]["command"]))[0] != 0:
                    need(all(process.poll() is None for pod in pods for process in pod.processes), "a program ended: " + said())
                    need(time.monotonic() < give_up, f"the {probe} fails: {out[1]}{said()}")
                    time.sleep(0.2)
            for pod in pods:
                for process in pod.processes:
                    process.terminate()
                    need(process.wait(60) == 0, f"a program ends with {process.returncode}: " + said())
        finally:
            for pod in pods:
                pod.kill()


def main():
    chart, binaries = sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None
    lint = run_helm("lint", "--strict", chart, "--set=insecure=true")
    need(lint.returncode == 0, lint.stdout + lint.stderr)
    with open("CMakeLists.txt", encoding="utf-8") as file:
        version = re.search(r"project\(switchyard VERSION ([0-9.]+)", file.read()).group(1)
    with open(chart + "/Chart.yaml", encoding="utf-8") as file:
        need(yaml.safe_load(file)["appVersion"] == version, f"Chart.yaml: appVersion is not {version}")
    for name, values in GOOD.items():
        out = render(chart, values)
        need(out.returncode == 0, f"{name}: {out.stderr}")
        kinds = []
        things = list(filter(None, yaml.safe_load_all(out.stdout)))
        for thing in things:
            kinds.append(thing["kind"])
            where = f"{name}: {thing['kind']}"
            if thing["kind"] == "LeaderWorkerSet":
                check_group(thing, where)
            elif thing["kind"] == "PodMonitor":
                pass  # below, with the pods
            elif thing["kind"] == "PrometheusRule":
                check_rule(thing, where)
            else:
                validate(thing, where)
            if thing["kind"] == "Deployment":
                check_pod(thing["spec"]["template"], where, 25)
            if thing["kind"] == "ConfigMap" and binaries:
                check_flags(thing, binaries, where)
        pods = check_together({thing["kind"]: thing for thing in things}, name)
        for thing in things:
            if thing["kind"] == "PodMonitor":
                check_monitor(thing, pods, "tls.secret" in values, f"{name}: PodMonitor")
        need({"ConfigMap", "Service"} < set(kinds), f"{name}: has only {kinds}")
        need(("PrometheusRule" in kinds) == ("prometheusRule.enabled" in values), f"{name}: has {kinds}")
        need(("LeaderWorkerSet" in kinds) == ("group" in name), f"{name}: has {kinds}")
    for name, (values, error) in BAD.items():
        out = render(chart, values)
        need(out.returncode != 0 and error in out.stderr, f"{name}: helm says {out.returncode}: {out.stderr}")
    if binaries:
        play(chart, binaries, {"tls.secret": "a", "tls.serverName": "localhost", "apiKeys.secret": "b", "localWorkers": 1})
        play(chart, binaries, {"tls.secret": "a", "tls.serverName": "localhost", "apiKeys.secret": "b", "localWorkers": 0,
                               "joinToken.secret": "c", "group.workers": 1, "group.workersPerPod": 2})
    version = run_helm("version", "--short").stdout.strip()
    print(f"{len(GOOD)} renderings are valid for Kubernetes {' and '.join(KUBERNETES)}, {len(BAD)} are refused (helm {version})")


main()
