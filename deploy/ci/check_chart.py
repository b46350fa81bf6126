"""Renders the chart for several values with helm and validates what comes out.  usage: check_chart.py CHART [BIN_DIR]

With BIN_DIR it also plays a pod with TLS and keys on this machine: the init container's command, the server with the
rendered file, and the probes' commands.
"""

import os
import re
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
        "serverFlags.drain_timeout": "20s"},
    "a group": {**TLS, "group.workers": 3, "group.replicas": 2, "localWorkers": 0, "joinToken.secret": "join",
                "podMonitor.enabled": True, "workerFlags.threads": 8, "workerResources.requests.cpu": 8},
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
    "a list of flags": ({"insecure": True, "serverFlags.model.x": 1}, "serverFlags"),
}
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


def check_group(group, where):
    spec, inner = group["spec"], group["spec"]["leaderWorkerTemplate"]
    need(set(spec) <= LWS["spec"] and set(inner) <= LWS["leaderWorkerTemplate"], f"{where}: unknown fields of the group")
    need(inner["restartPolicy"] in LWS["restartPolicy"] and spec["startupPolicy"] in LWS["startupPolicy"], f"{where}: a policy")
    need(inner["size"] >= 2, f"{where}: the size of the group")
    for name in ("leaderTemplate", "workerTemplate"):
        # Its inside is a pod template of Kubernetes.
        validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": inner[name]}, where)
        check_pod(inner[name], where, 25)


def check_monitor(monitor, where):
    spec = monitor["spec"]
    need(spec["selector"]["matchLabels"]["app.kubernetes.io/name"] == "switchyard", f"{where}: the selector")
    need(spec["jobLabel"] == "app.kubernetes.io/name", f"{where}: the job's name, by which alerts and boards know it")
    for endpoint in spec["podMetricsEndpoints"]:
        need(set(endpoint) <= ENDPOINT and endpoint["port"] == "metrics", f"{where}: an endpoint of the monitor")


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
    with open(own("tls.crt"), encoding="utf-8") as file, open(own("ca.crt"), "w", encoding="utf-8") as out:
        out.write(file.read())
    for secret, names in {"tls": ["tls.crt", "tls.key", "ca.crt"], "keys": ["keys"]}.items():
        os.makedirs(own(f"secrets/{secret}/..1"))
        os.symlink("..1", own(f"secrets/{secret}/..data"))
        for name in names:
            os.rename(own(name), own(f"secrets/{secret}/..1/{name}"))
            os.chmod(own(f"secrets/{secret}/..1/{name}"), 0o440)
            os.symlink(f"..data/{name}", own(f"secrets/{secret}/{name}"))


def play_pod(chart, binaries):
    values = {"tls.secret": "a", "tls.serverName": "localhost", "apiKeys.secret": "b", "localWorkers": 1}
    things = {thing["kind"]: thing for thing in yaml.safe_load_all(render(chart, values).stdout) if thing}
    pod = things["Deployment"]["spec"]["template"]["spec"]
    with tempfile.TemporaryDirectory() as folder:
        def here(text):
            for there, local in (("/secrets/", folder + "/secrets/"), ("/run/switchyard", folder + "/run"),
                                 ("0.0.0.0", "127.0.0.1"), ("/usr/share/switchyard/", os.path.abspath("deploy") + "/")):
                text = text.replace(there, local)
            return text
        os.mkdir(folder + "/run")
        make_secrets(folder, binaries)
        for _ in range(2):  # it may run again in the same pod
            copied = subprocess.run([here(word) for word in pod["initContainers"][0]["command"]], timeout=60, check=False)
            need(copied.returncode == 0, "the init container fails")
        with open(folder + "/server.yaml", "w", encoding="utf-8") as file:
            file.write(here(things["ConfigMap"]["data"]["server.yaml"]))
        log = open(folder + "/log", "w+", encoding="utf-8")
        server = subprocess.Popen([binaries + "/switchyard-server", f"--config={folder}/server.yaml", "--port=0",
                                   "--metrics_port=-1"], stderr=log)
        try:
            def said():
                with open(folder + "/log", encoding="utf-8") as file:
                    return file.read()
            give_up = time.monotonic() + 60
            while not (port := re.search(r" gRPC on [^ ,]*:(\d+)", said())):
                need(server.poll() is None and time.monotonic() < give_up, "the server does not start: " + said())
                time.sleep(0.05)
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                command = [here(word) for word in pod["containers"][0][probe]["exec"]["command"]]
                command = [word.replace(":50051", ":" + port.group(1)) for word in command]
                while (out := subprocess.run([f"{binaries}/{command[0]}", *command[1:]], capture_output=True, text=True,
                                             timeout=60, check=False)).returncode != 0:
                    need(time.monotonic() < give_up, f"the {probe} fails: {out.stdout}{out.stderr}")
                    time.sleep(0.2)
            server.terminate()
            need(server.wait(60) == 0, "the server does not stop: " + said())
        finally:
            server.kill()


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
        for thing in filter(None, yaml.safe_load_all(out.stdout)):
            kinds.append(thing["kind"])
            where = f"{name}: {thing['kind']}"
            if thing["kind"] == "LeaderWorkerSet":
                check_group(thing, where)
            elif thing["kind"] == "PodMonitor":
                check_monitor(thing, where)
            elif thing["kind"] == "PrometheusRule":
                check_rule(thing, where)
            else:
                validate(thing, where)
            if thing["kind"] == "Deployment":
                check_pod(thing["spec"]["template"], where, 25)
            if thing["kind"] == "ConfigMap" and binaries:
                check_flags(thing, binaries, where)
        need({"ConfigMap", "Service"} < set(kinds), f"{name}: has only {kinds}")
        need(("PrometheusRule" in kinds) == ("prometheusRule.enabled" in values), f"{name}: has {kinds}")
        need(("LeaderWorkerSet" in kinds) == ("group" in name), f"{name}: has {kinds}")
    for name, (values, error) in BAD.items():
        out = render(chart, values)
        need(out.returncode != 0 and error in out.stderr, f"{name}: helm says {out.returncode}: {out.stderr}")
    if binaries:
        play_pod(chart, binaries)
    version = run_helm("version", "--short").stdout.strip()
    print(f"{len(GOOD)} renderings are valid for Kubernetes {' and '.join(KUBERNETES)}, {len(BAD)} are refused (helm {version})")


main()
