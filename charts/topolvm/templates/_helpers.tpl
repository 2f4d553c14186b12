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

{{/* capacity or extender. Where scheduling.mode does not say it, the values of TopoLVM's chart do. */}}
{{- define "topolvm.schedulingMode" -}}
{{- $extender := .Values.webhook.podMutatingWebhook.enabled | default false -}}
{{- .Values.scheduling.mode | default (ternary "extender" "capacity" $extender) -}}
{{- end }}

{{/* Text that is empty for no: whether the pod webhook, and topolvm-scheduler, are part of the release */}}
{{- define "topolvm.hasWebhook" -}}
{{- if eq (include "topolvm.schedulingMode" .) "extender" }}true{{ end -}}
{{- end }}
{{- define "topolvm.hasScheduler" -}}
{{- if and (include "topolvm.hasWebhook" .) (not .Values.scheduler.external) }}true{{ end -}}
{{- end }}

{{/* Not empty if topolvm-node reads annotations of pods. The value is missing after an upgrade with --reuse-values from
a version without it. */}}
{{- define "topolvm.readsPods" -}}
{{- $given := .Values.node.podIOLimits -}}
{{- if kindIs "invalid" $given | ternary true $given }}true{{ end -}}
{{- end }}

{{/* true or false: whether kube-scheduler reads CSIStorageCapacity objects */}}
{{- define "topolvm.tracksCapacity" -}}
{{- $given := .Values.controller.storageCapacityTracking.enabled -}}
{{- kindIs "invalid" $given | ternary (not (include "topolvm.hasWebhook" .)) $given -}}
{{- end }}

{{/* true or false: whether topolvm-controller creates and deletes volumes. --reuse-values takes over values from a
version without the value. */}}
{{- define "topolvm.provisions" -}}
{{- ne (.Values.controller.provisioner | default "topolvm-controller") "csi-provisioner" -}}
{{- end }}

{{/* true or false: whether topolvm-controller expands and modifies volumes */}}
{{- define "topolvm.resizes" -}}
{{- ne (.Values.controller.resizer | default "topolvm-controller") "csi-resizer" -}}
{{- end }}

{{/* true or false: whether topolvm-controller creates and deletes snapshots */}}
{{- define "topolvm.snapshots" -}}
{{- and .Values.snapshot.enabled (ne (.Values.controller.snapshotter | default "topolvm-controller") "csi-snapshotter") -}}
{{- end }}

{{/* true or false: whether topolvm-controller publishes free space, in the scheduling mode capacity */}}
{{- define "topolvm.publishesCapacity" -}}
{{- $tracking := .Values.controller.storageCapacityTracking -}}
{{- $off := and (kindIs "bool" $tracking.enabled) (not $tracking.enabled) (not (include "topolvm.hasWebhook" .)) -}}
{{- $sidecar := and (eq ($tracking.publisher | default "topolvm-controller") "csi-provisioner") (ne (include "topolvm.provisions" .) "true") -}}
{{- not (or $off $sidecar) -}}
{{- end }}

{{/* The controllers that run in topolvm-controller: the value of --controllers */}}
{{- define "topolvm.controllers" -}}
{{- $names := compact (list
  (ternary "provisioner" "" (eq (include "topolvm.provisions" .) "true"))
  (ternary "capacity" "" (eq (include "topolvm.publishesCapacity" .) "true"))
  (ternary "resizer" "" (eq (include "topolvm.resizes" .) "true"))
  (ternary "snapshotter" "" (eq (include "topolvm.snapshots" .) "true"))) -}}
{{- join "," $names | default "none" -}}
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

{{/* Priority of a workload's pods, unless it is set to "": (list VALUES DEFAULT) */}}
{{- define "topolvm.priorityClass" -}}
{{- $name := (first .).priorityClassName -}}
{{- with kindIs "invalid" $name | ternary (last .) $name }}
priorityClassName: {{ . }}
{{- end }}
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

{{/* Labels of the nodes that have storage, as the programs take them */}}
{{- define "topolvm.nodeLabels" -}}
topolvm.io/storage=enabled,superedge.io/local.pv=topolvm
{{- end }}

{{/* Affinity to nodes that are no virtual ones, which have no disks, where the values say nothing else about nodes */}}
{{- define "topolvm.realNodes" -}}
nodeAffinity:
  requiredDuringSchedulingIgnoredDuringExecution:
    nodeSelectorTerms:
    - matchExpressions:
      - {key: type, operator: NotIn, values: [virtual-kubelet]}
      - {key: eks.amazonaws.com/compute-type, operator: NotIn, values: [fargate]}
{{- end }}

{{/* The same for pods on these nodes, which run Linux: (list . VALUES) */}}
{{- define "topolvm.nodePlacement" -}}
{{- $values := last . -}}
{{- if (first .).Values.node.selectByLabel -}}
{{- $terms := list -}}
{{- range splitList "," (printf "%s,topolvm.io/has-volumes=true" (include "topolvm.nodeLabels" .)) -}}
{{- $label := splitn "=" 2 . -}}
{{- $match := dict "key" $label._0 "operator" "In" "values" (list $label._1) -}}
{{- $terms = append $terms (dict "matchExpressions" (list $match)) -}}
{{- end -}}
{{- $required := dict "nodeSelectorTerms" $terms -}}
{{- $node := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" $required) -}}
{{- $affinity := merge $node ($values.affinity | default dict) -}}
{{- $values = merge (dict "affinity" $affinity) (omit $values "affinity") -}}
{{- else -}}
{{- $affinity := merge (deepCopy ($values.affinity | default dict)) (include "topolvm.realNodes" . | fromYaml) -}}
{{- $values = merge (dict "affinity" $affinity) (omit $values "affinity") -}}
{{- end -}}
{{- $selector := merge (deepCopy ($values.nodeSelector | default dict)) (dict "kubernetes.io/os" "linux") -}}
{{- $values = merge (dict "nodeSelector" $selector) (omit $values "nodeSelector") -}}
{{- include "topolvm.placement" $values -}}
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
  "csiProvisioner" "registry.k8s.io/sig-storage/csi-provisioner:v6.4.0"
  "csiResizer" "registry.k8s.io/sig-storage/csi-resizer:v2.2.0"
  "csiSnapshotter" "registry.k8s.io/sig-storage/csi-snapshotter:v8.7.0" -}}
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

{{/* true where LVM runs in the container and not in the namespaces of the host: (list CONFIG) */}}
{{- define "topolvm.runsOwnLvm" -}}
{{- $prefix := get ((first .).additionalLVMDYamlContent | default dict) "lvm-command-prefix" | default list -}}
{{- if and $prefix (not (contains "nsenter" (join " " $prefix))) }}true{{ end -}}
{{- end }}

{{/* Places that LVM in the container writes to, which is read-only otherwise. Its locks and its memory of disks are
those of the host. */}}
{{- define "topolvm.lvmMounts" -}}
- {name: lvm-locks, mountPath: /run/lock/lvm}
- {name: lvm-run, mountPath: /run/lvm}
- {name: lvm-archive, mountPath: /etc/lvm/archive}
- {name: lvm-backup, mountPath: /etc/lvm/backup}
- {name: lvm-cache, mountPath: /etc/lvm/cache}
{{- end }}
{{- define "topolvm.lvmVolumes" -}}
- name: lvm-locks
  hostPath: {path: /run/lock/lvm, type: DirectoryOrCreate}
- name: lvm-run
  hostPath: {path: /run/lvm, type: DirectoryOrCreate}
- name: lvm-archive
  emptyDir: {}
- name: lvm-backup
  emptyDir: {}
- name: lvm-cache
  emptyDir: {}
{{- end }}

{{/* The rest of a sidecar's arguments, and its port for metrics: (list . "csi_provisioner" NAME PORT) */}}
{{- define "topolvm.sidecarPort" -}}
{{- $port := last . -}}
- --http-endpoint=:{{ $port }}
{{- with get (first .).Values.args (index . 1) }}
{{ toYaml . }}
{{- end }}
ports:
- {name: {{ index . 2 }}, containerPort: {{ $port }}}
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
