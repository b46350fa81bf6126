{{- define "switchyard.name" -}}
{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- end }}

{{- define "switchyard.labels" -}}
app.kubernetes.io/name: switchyard
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "switchyard.image" -}}
image: "{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}"
imagePullPolicy: {{ .Values.image.pullPolicy }}
{{- end }}

{{/* What the server refuses, too, but only after the pod was scheduled. */}}
{{- define "switchyard.check" -}}
{{- $v := .Values -}}
{{- if and (not $v.insecure) (not $v.tls.secret) }}{{ fail "give tls.secret and apiKeys.secret, or insecure=true" }}{{ end -}}
{{- if and (not $v.insecure) (not $v.apiKeys.secret) }}{{ fail "tls.secret alone lets everybody call: give apiKeys.secret, or insecure=true" }}{{ end -}}
{{- if and $v.tls.secret (not $v.tls.serverName) }}{{ fail "tls.secret needs tls.serverName, a name that the certificate has" }}{{ end -}}
{{- if and (gt (int $v.group.workers) 0) (not $v.joinToken.secret) }}{{ fail "group.workers needs joinToken.secret" }}{{ end -}}
{{- if eq (add (int $v.group.workers) (int $v.localWorkers)) 0 }}{{ fail "localWorkers and group.workers are both 0" }}{{ end -}}
{{- range $flag, $value := $v.serverFlags -}}
{{- $name := replace "-" "_" $flag -}}
{{- if has $name (list "port" "http_port" "admin_port" "worker_port" "metrics_host" "metrics_port" "worker_metrics_port") }}{{ fail (printf "serverFlags.%s: services, probes and PodMonitors name the ports; a Service of your own may have others" $flag) }}{{ end -}}
{{- if eq $name "drain_timeout" }}{{ fail (printf "serverFlags.%s: give drainSeconds, of which the grace period is made" $flag) }}{{ end -}}
{{- end -}}
{{- range $flag, $value := $v.workerFlags -}}
{{- if has (replace "-" "_" $flag) (list "server" "metrics_host" "metrics_port") }}{{ fail (printf "workerFlags.%s: the chart sets it for each pod" $flag) }}{{ end -}}
{{- end -}}
{{- end }}

{{/* The file that --config names.  What the values have under serverFlags counts more. */}}
{{- define "switchyard.serverYaml" -}}
{{- $v := .Values -}}
{{- $flags := dict "model" $v.model.path "local_workers" $v.localWorkers "host" "0.0.0.0" "port" 50051 "http_port" 8000 "metrics_port" 9464 "worker_metrics_port" 9465 "drain_timeout" (printf "%ds" (int $v.drainSeconds)) -}}
{{- if $v.insecure }}{{ $_ := set $flags "insecure" true }}{{ end -}}
{{- if $v.tls.secret }}{{ $_ := set $flags "tls_cert" "/run/switchyard/tls.crt" }}{{ $_ := set $flags "tls_key" "/run/switchyard/tls.key" }}{{ end -}}
{{- if $v.apiKeys.secret }}{{ $_ := set $flags "api_keys_file" "/run/switchyard/keys" }}{{ $_ := set $flags "admin_host" "0.0.0.0" }}{{ end -}}
{{- if gt (int $v.group.workers) 0 }}{{ $_ := set $flags "workers" (add (int $v.localWorkers) (mul (int $v.group.workers) (int $v.group.workersPerPod))) }}{{ $_ := set $flags "worker_host" "0.0.0.0" }}{{ end -}}
{{- if and $v.tls.secret (gt (int $v.group.workers) 0) }}{{ $_ := set $flags "encrypt_links" true }}{{ end -}}
{{- if $v.joinToken.secret }}{{ $_ := set $flags "join_token_file" "/run/switchyard/token" }}{{ end -}}
{{- toYaml (merge (deepCopy $v.serverFlags) $flags) -}}
{{- end }}

{{- define "switchyard.workerYaml" -}}
{{- $v := .Values -}}
{{- $flags := dict "model" $v.model.path "join_token_file" "/run/switchyard/token" -}}
{{- if $v.insecure }}{{ $_ := set $flags "insecure" true }}{{ end -}}
{{- if $v.tls.secret }}{{ $_ := set $flags "tls_ca" "/run/switchyard/ca.crt" }}{{ end -}}
{{- toYaml (merge (deepCopy $v.workerFlags) $flags) -}}
{{- end }}

{{/* A probe of the health service: "alive" or "ready".  Kubernetes' own does not speak TLS. */}}
{{- define "switchyard.probe" -}}
{{- if .root.Values.tls.secret -}}
exec:
  command: ["switchyard", "status", "--health={{ .health }}", "--timeout=4", "--server={{ .root.Values.tls.serverName }}:50051", "--tls_ca=/run/switchyard/ca.crt"]
{{- else -}}
grpc: {port: 50051, service: {{ ternary "readiness" "" (eq .health "ready") | quote }}}
{{- end }}
timeoutSeconds: 5
{{- end }}

{{/* What pods of servers and of workers have alike. */}}
{{- define "switchyard.podSettings" -}}
{{- $v := .Values -}}
enableServiceLinks: false  # variables such as SWITCHYARD_PORT=tcp://... would be taken for flags
automountServiceAccountToken: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
{{- with $v.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- with $v.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $v.affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "switchyard.containerSettings" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
env:
  - {name: HOME, value: /var/lib/switchyard}
  - {name: POD_IP, valueFrom: {fieldRef: {fieldPath: status.podIP}}}
volumeMounts:
  - {name: config, mountPath: /etc/switchyard, readOnly: true}
  - {name: home, mountPath: /var/lib/switchyard}
  - {name: tmp, mountPath: /tmp}
  - {name: secrets, mountPath: /run/switchyard, readOnly: true}
  {{- if .Values.shmSize }}
  - {name: shm, mountPath: /dev/shm}
  {{- end }}
  {{- if .Values.model.claim }}
  - {name: model, mountPath: {{ .Values.model.mountPath }}, readOnly: true}
  {{- end }}
{{- end }}

{{/* Files of secrets belong to root and are links; the server takes only files of its own that nobody else may read. */}}
{{- define "switchyard.copySecrets" -}}
- name: secrets
  {{- include "switchyard.image" . | nindent 2 }}
  command: ["/bin/sh", "-ec", "umask 077; for f in /secrets/*/*; do [ ! -f \"$f\" ] || cp -Lf \"$f\" /run/switchyard/; done"]
  securityContext:
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
  volumeMounts:
    - {name: secrets, mountPath: /run/switchyard}
    {{- range $name, $secret := .secrets }}
    - {name: {{ $name }}, mountPath: /secrets/{{ $name }}, readOnly: true}
    {{- end }}
{{- end }}

{{- define "switchyard.volumes" -}}
- {name: config, configMap: {name: {{ include "switchyard.name" . }}}}
- name: home
  emptyDir: { {{- with .Values.cacheSize }}sizeLimit: {{ . }}{{ end -}} }
- {name: tmp, emptyDir: {}}
- {name: secrets, emptyDir: {medium: Memory}}
{{- if .Values.shmSize }}
- {name: shm, emptyDir: {medium: Memory, sizeLimit: {{ .Values.shmSize }}}}
{{- end }}
{{- if .Values.model.claim }}
- {name: model, persistentVolumeClaim: {claimName: {{ .Values.model.claim }}, readOnly: true}}
{{- end }}
{{- range $name, $secret := .secrets }}
- {name: {{ $name }}, secret: {secretName: {{ $secret }}, defaultMode: 0440{{ if eq $name "ca" }}, items: [{key: ca.crt, path: ca.crt}]{{ end }}}}
{{- end }}
{{- end }}
