{{/* The template of a server's pod. */}}
{{- define "switchyard.serverPod" -}}
{{- $v := .Values -}}
{{- $secrets := dict -}}
{{- if $v.tls.secret }}{{ $_ := set $secrets "tls" $v.tls.secret }}{{ end -}}
{{- if $v.apiKeys.secret }}{{ $_ := set $secrets "keys" $v.apiKeys.secret }}{{ end -}}
{{- if $v.joinToken.secret }}{{ $_ := set $secrets "token" $v.joinToken.secret }}{{ end -}}
{{- $with := merge (dict "secrets" $secrets) . -}}
metadata:
  labels:
    {{- include "switchyard.labels" . | nindent 4 }}
    app.kubernetes.io/component: server
  annotations:
    checksum/config: {{ include "switchyard.serverYaml" . | sha256sum }}
    {{- with $v.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- include "switchyard.podSettings" . | nindent 2 }}
  # More than the drain: endpoints first forget the pod, and at the end workers stop.
  terminationGracePeriodSeconds: {{ add (int $v.drainSeconds) 40 }}
  {{- if $v.tls.secret }}
  # Probes call the server by the name that its certificate has.
  hostAliases: [{ip: 127.0.0.1, hostnames: [{{ $v.tls.serverName }}]}]
  {{- end }}
  {{- if $secrets }}
  initContainers: {{- include "switchyard.copySecrets" $with | nindent 4 }}
  {{- end }}
  containers:
    - name: server
      {{- include "switchyard.image" . | nindent 6 }}
      # The pages of local workers are on this address, too; plaintext on every address they refuse.
      args: ["--config=/etc/switchyard/server.yaml", "--metrics_host=$(POD_IP)"]
      ports:
        - {name: http, containerPort: 8000}
        - {name: grpc, containerPort: 50051}
        - {name: admin, containerPort: 50052}
        - {name: workers, containerPort: 50053}
        - {name: metrics, containerPort: 9464}
        {{- range $i := untilStep 1 (add1 (int $v.localWorkers) | int) 1 }}
        - {name: metrics-{{ $i }}, containerPort: {{ add 9464 $i }}}
        {{- end }}
      startupProbe:
        {{- include "switchyard.probe" (dict "root" . "health" "ready") | nindent 8 }}
        periodSeconds: 5
        failureThreshold: {{ div (add (int $v.startSeconds) 4) 5 }}
      livenessProbe:
        {{- include "switchyard.probe" (dict "root" . "health" "alive") | nindent 8 }}
        periodSeconds: 10
        failureThreshold: 6
      readinessProbe:
        {{- include "switchyard.probe" (dict "root" . "health" "ready") | nindent 8 }}
        periodSeconds: 5
        failureThreshold: 2
      lifecycle: {preStop: {exec: {command: ["sleep", "5"]}}}
      resources: {{- toYaml $v.resources | nindent 8 }}
      {{- include "switchyard.containerSettings" . | nindent 6 }}
  volumes: {{- include "switchyard.volumes" $with | nindent 4 }}
{{- end }}

{{/* The template of a pod of workers in a group.  The server knows whether they are well: it holds a link to each.  They
see each other's processes, as workers of one machine do, so that they can share memory.  Of TLS they get the authority alone. */}}
{{- define "switchyard.workerPod" -}}
{{- $v := .Values -}}
{{- $secrets := dict "token" $v.joinToken.secret -}}
{{- if $v.tls.secret }}{{ $_ := set $secrets "ca" $v.tls.secret }}{{ end -}}
{{- $with := merge (dict "secrets" $secrets) . -}}
metadata:
  labels:
    {{- include "switchyard.labels" . | nindent 4 }}
    app.kubernetes.io/component: worker
  annotations:
    checksum/config: {{ include "switchyard.workerYaml" . | sha256sum }}
    {{- with $v.podAnnotations }}{{ toYaml . | nindent 4 }}{{ end }}
spec:
  {{- include "switchyard.podSettings" . | nindent 2 }}
  terminationGracePeriodSeconds: {{ add (int $v.drainSeconds) 40 }}
  initContainers: {{- include "switchyard.copySecrets" $with | nindent 4 }}
  {{- if gt (int $v.group.workersPerPod) 1 }}
  shareProcessNamespace: true
  {{- end }}
  containers:
    {{- range $i := until (int $v.group.workersPerPod) }}
    - name: worker{{ if $i }}-{{ $i }}{{ end }}
      {{- include "switchyard.image" $ | nindent 6 }}
      command: ["switchyard-worker"]
      args:
        - "--config=/etc/switchyard/worker.yaml"
        - "--server=$(LWS_LEADER_ADDRESS):50053"
        - "--metrics_host=$(POD_IP)"
        - "--metrics_port={{ add 9464 $i }}"
      ports:
        - {name: metrics{{ if $i }}-{{ $i }}{{ end }}, containerPort: {{ add 9464 $i }}}
      resources: {{- toYaml $v.workerResources | nindent 8 }}
      {{- include "switchyard.containerSettings" $ | nindent 6 }}
    {{- end }}
  volumes: {{- include "switchyard.volumes" $with | nindent 4 }}
{{- end }}
