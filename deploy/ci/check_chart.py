"""Renders the chart for several values with helm and validates what comes out.  usage: check_chart.py CHART [BIN_DIR]"""

import os
import re
import subprocess
import sys
import tempfile

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
        "podMonitor.labels.release": "prometheus", "imagePullSecrets[0]": "pull", "nodeSelector.disk": "ssd",
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
# Fields that LeaderWorkerSet's and PodMonitor's definitions have; they are no part of Kubernetes' schemas.
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
    for endpoint in spec["podMetricsEndpoints"]:
        need(set(endpoint) <= ENDPOINT and endpoint["port"] == "metrics", f"{where}: an endpoint of the monitor")


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
            else:
                validate(thing, where)
            if thing["kind"] == "Deployment":
                check_pod(thing["spec"]["template"], where, 25)
            if thing["kind"] == "ConfigMap" and binaries:
                check_flags(thing, binaries, where)
        need({"ConfigMap", "Service"} < set(kinds), f"{name}: has only {kinds}")
        need(("LeaderWorkerSet" in kinds) == ("group" in name), f"{name}: has {kinds}")
    for name, (values, error) in BAD.items():
        out = render(chart, values)
        need(out.returncode != 0 and error in out.stderr, f"{name}: helm says {out.returncode}: {out.stderr}")
    version = run_helm("version", "--short").stdout.strip()
    print(f"{len(GOOD)} renderings are valid for Kubernetes {' and '.join(KUBERNETES)}, {len(BAD)} are refused (helm {version})")


main()
