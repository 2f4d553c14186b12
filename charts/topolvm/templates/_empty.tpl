{{/* Sections and lists that an overlay tool leaves empty are null, and helm removes the default of such a value.
Templates then get an empty section or list. */}}
{{- define "topolvm.fill" -}}
{{- $gone := list -}}
{{- range list "controller" "image" "lvmd" "node" "priorityClass" "scheduler" "snapshot" "webhook" -}}
  {{- if not (kindIs "map" (get $.Values .)) -}}
    {{- $gone = append $gone . -}}
  {{- end -}}
{{- end -}}
{{- with $gone -}}
  {{- fail (printf "%s: the section is null and has no defaults; remove it, or write {}" (join ", " .)) -}}
{{- end -}}
{{- $_ := merge .Values (include "topolvm.empty" . | fromYaml) -}}
{{- end }}

{{- define "topolvm.empty" -}}
args: {csi_provisioner: [], csi_resizer: [], csi_snapshotter: []}
cert-manager: {}
controller:
  args: []
  additionalContainers: []
  initContainers: []
  labels: {}
  leaderElection: {}
  nodeFinalize: {}
  nodeSelector: {}
  podAnnotations: {}
  podDisruptionBudget: {}
  podLabels: {}
  profiling: {}
  prometheus: {podMonitor: {}}
  rebuild: {}
  securityContext: {}
  storageCapacityTracking: {}
  tolerations: []
  ui: {}
  updateStrategy: {}
  volumes: []
crd: {annotations: {}}
env: {}
grafana: {dashboard: {}}
image: {csi: {}}
inventory: {}
livenessProbe: {}
lvmd:
  additionalConfigs: []
  additionalContainers: []
  additionalLVMDYamlContent: {}
  additionalVolumes: []
  affinity: {}
  args: []
  deviceClasses: []
  env: []
  initContainers: []
  labels: {}
  lvcreateOptionClasses: []
  metrics: {annotations: {}}
  nodeSelector: {}
  podLabels: {}
  profiling: {}
  prometheus: {podMonitor: {}}
  securityContext: {}
  tolerations: []
  updateStrategy: {}
  volumeMounts: []
node:
  additionalContainers: []
  additionalVolumes: []
  affinity: {}
  args: []
  initContainers: []
  labels: {}
  metrics: {annotations: {}}
  nodeSelector: {}
  podAnnotations: {}
  podLabels: {}
  podSecurityContext: {}
  profiling: {}
  prometheus: {podMonitor: {}}
  securityContext: {}
  tolerations: []
  updateStrategy: {}
  volumeMounts: {topolvmNode: []}
priorityClass: {}
prometheus: {rules: {}}
readinessProbe: {}
resources: {}
scheduler:
  additionalContainers: []
  args: []
  deployment: {}
  labels: {}
  nodeSelector: {}
  options: {listen: {}}
  podDisruptionBudget: {}
  podLabels: {}
  profiling: {}
  prometheus: {serviceMonitor: {}}
  schedulerOptions: {}
  service: {}
  tolerations: []
  updateStrategy: {}
scheduling: {}
securityContext: {}
snapshot: {}
storageClasses: []
webhook:
  annotations: {}
  existingCertManagerIssuer: {}
  networkPolicy: {}
  podMutatingWebhook: {ignoreNamespaces: [], objectSelector: {}}
{{- end }}
