{{/* Names, labels and images. Those that people's values name are called as in TopoLVM's chart. */}}

{{- define "topolvm.name" -}}
{{- .Values.nameOverride | default .Chart.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* The name of the release if that says topolvm already */}}
{{- define "topolvm.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $release := .Release.Name -}}
{{- if not (contains $name $release) -}}
  {{- $release = printf "%s-%s" $release $name -}}
{{- end -}}
{{- .Values.fullnameOverride | default $release | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{/* API group and name of the driver */}}
{{- define "topolvm.pluginName" -}}
{{- ternary "topolvm.cybozu.com" "topolvm.io" .Values.useLegacy -}}
{{- end }}

{{/* Labels of every object. Pods do not have them: they would be replaced by each new version of the chart. */}}
{{- define "topolvm.labels" -}}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* By which workloads select their pods: (list . "component") */}}
{{- define "topolvm.selector" -}}
app.kubernetes.io/name: {{ include "topolvm.name" (first .) }}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{/* Labels of a workload: (list . "component" MORE) */}}
{{- define "topolvm.workloadLabels" -}}
{{- $labels := include "topolvm.labels" (first .) | fromYaml -}}
{{- $selector := include "topolvm.selector" (list (first .) (index . 1)) | fromYaml -}}
{{- toYaml (merge $selector $labels (last . | default dict)) -}}
{{- end }}

{{/* Labels of a pod: (list . "component" MORE) */}}
{{- define "topolvm.podLabels" -}}
{{- $selector := include "topolvm.selector" (list (first .) (index . 1)) | fromYaml -}}
{{- toYaml (merge $selector (last . | default dict)) -}}
{{- end }}

{{/* Where a workload's pods are put: (list VALUES) with affinity as object or text */}}
{{- define "topolvm.placement" -}}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 0 }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "topolvm.image" -}}
{{- $reference := .Values.image.reference | default .Chart.AppVersion -}}
{{- $separator := ternary "@" ":" (hasPrefix "sha256:" $reference) -}}
image: {{ printf "%s%s%s" .Values.image.repository $separator $reference }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* A sidecar's image: (list . "csiProvisioner") */}}
{{- define "topolvm.sidecarImage" -}}
{{- $tried := dict
  "csiProvisioner" "registry.k8s.io/sig-storage/csi-provisioner:v6.3.0"
  "csiResizer" "registry.k8s.io/sig-storage/csi-resizer:v2.2.0"
  "csiSnapshotter" "registry.k8s.io/sig-storage/csi-snapshotter:v8.6.0" -}}
image: {{ index (first .).Values.image.csi (last .) | default (get $tried (last .)) }}
{{- with (first .).Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end }}

{{/* Of a container that neither mounts nor runs LVM */}}
{{- define "topolvm.lockedDown" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* The Secret with the certificate of the webhook, where it is not self-managed */}}
{{- define "topolvm.webhookSecret" -}}
{{- $ours := printf "%s-mutatingwebhook" (include "topolvm.fullname" .) -}}
{{- .Values.webhook.secretName | default $ours -}}
{{- end }}

{{/* What all sidecars have: (list . "csi_provisioner") */}}
{{- define "topolvm.sidecarRest" -}}
{{- with get (first .).Values.resources (last .) }}
resources: {{- toYaml . | nindent 2 }}
{{- end }}
securityContext: {{- include "topolvm.lockedDown" . | nindent 2 }}
volumeMounts:
- {name: socket, mountPath: /run/topolvm}
{{- end }}
