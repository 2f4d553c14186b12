{{/* Values that conflict with each other. values.schema.json rejects most of them earlier, with shorter messages. */}}
{{- define "topolvm.validate" -}}
{{- $v := .Values -}}
{{- if (index $v "cert-manager").enabled -}}
  {{- fail (cat "cert-manager.enabled: cert-manager is not part of this chart. Install it first:"
    "https://cert-manager.io/docs/installation/helm/") -}}
{{- end -}}
{{- if hasSuffix "/topolvm-with-sidecar" $v.image.repository -}}
  {{- fail (cat "image.repository:" $v.image.repository "is an image of TopoLVM;"
    "remove it, or set an image of `make images`") -}}
{{- end -}}
{{- $older := list -}}
{{- with $v.image.tag -}}
  {{- $older = append $older "image.tag: use image.reference for a tag of your copy of the image, or remove it" -}}
{{- end -}}
{{- if dig "enabled" false ($v.webhook.pvcMutatingWebhook | default dict) -}}
  {{- $older = append $older (cat "webhook.pvcMutatingWebhook: finalizers on claims are no longer needed; remove it,"
    "or use the kustomization with the component pvc-finalizer") -}}
{{- end -}}
{{- with $older -}}
  {{- fail (printf "values of an older chart:\n- %s" (join "\n- " .)) -}}
{{- end -}}
{{- if and (or $v.lvmd.managed $v.node.lvmdEmbedded) (not $v.lvmd.deviceClasses) -}}
  {{- fail (cat "lvmd.deviceClasses: lvmd needs at least one device class; add one,"
    "or set lvmd.managed to false for an lvmd on the hosts") -}}
{{- end -}}
{{- if and $v.node.selectByLabel (or $v.node.affinity.nodeAffinity $v.lvmd.affinity.nodeAffinity) -}}
  {{- fail (cat "node.selectByLabel: it cannot be combined with a nodeAffinity in node.affinity or lvmd.affinity;"
    "remove the nodeAffinity, or use node.nodeSelector instead") -}}
{{- end -}}
{{- if and $v.node.lvmdEmbedded $v.lvmd.managed -}}
  {{- fail "node.lvmdEmbedded: lvmd would run twice on each node; set lvmd.managed to false" -}}
{{- end -}}
{{- if and $v.node.lvmdEmbedded $v.lvmd.additionalConfigs -}}
  {{- fail (cat "lvmd.additionalConfigs: node.lvmdEmbedded supports only one configuration for all nodes;"
    "use lvmd.managed instead") -}}
{{- end -}}
{{- if and $v.lvmd.managed (ne $v.node.lvmdSocket $v.lvmd.socketName) -}}
  {{- fail (cat "node.lvmdSocket: topolvm-node expects lvmd at" $v.node.lvmdSocket
    "but lvmd.socketName is" $v.lvmd.socketName "; set both to the same path") -}}
{{- end -}}
{{- $mode := $v.scheduling.mode -}}
{{- $extender := or $v.scheduler.enabled $v.scheduler.external -}}
{{- $webhook := $v.webhook.podMutatingWebhook.enabled -}}
{{- $tracking := $v.controller.storageCapacityTracking.enabled -}}
{{- if and $v.scheduler.enabled $v.scheduler.external -}}
  {{- fail "scheduler.external: topolvm-scheduler is either part of this chart (scheduler.enabled) or external; set only one" -}}
{{- end -}}
{{- if and $mode (not (has $mode (list "capacity" "extender"))) -}}
  {{- fail (cat "scheduling.mode: must be capacity or extender, not" $mode) -}}
{{- end -}}
{{- if and (eq ($mode | default "") "capacity") (or $webhook $extender) -}}
  {{- fail (cat "scheduling.mode: the webhook and topolvm-scheduler belong to the mode extender;"
    "remove webhook.podMutatingWebhook.enabled, scheduler.enabled and scheduler.external") -}}
{{- end -}}
{{- if and (eq ($mode | default "") "capacity") (kindIs "bool" $tracking) (not $tracking) -}}
  {{- fail (cat "scheduling.mode: the mode capacity is storage capacity tracking;"
    "remove controller.storageCapacityTracking.enabled") -}}
{{- end -}}
{{- if and (eq ($mode | default "") "extender") (kindIs "bool" $webhook) (not $webhook) -}}
  {{- fail (cat "scheduling.mode: the mode extender needs the webhook;"
    "remove webhook.podMutatingWebhook.enabled") -}}
{{- end -}}
{{- if and (eq ($mode | default "") "extender") (not $extender) (kindIs "bool" $v.scheduler.enabled) -}}
  {{- fail (cat "scheduling.mode: the mode extender needs topolvm-scheduler;"
    "remove scheduler.enabled, or set scheduler.external to true") -}}
{{- end -}}
{{- if and $extender (not $webhook) (not $mode) -}}
  {{- fail (cat "scheduler.enabled: kube-scheduler calls topolvm-scheduler only for pods that the webhook has marked;"
    "set webhook.podMutatingWebhook.enabled to true") -}}
{{- end -}}
{{- if and $webhook (not $extender) (not $mode) -}}
  {{- fail (cat "webhook.podMutatingWebhook.enabled: pods that the webhook has marked stay Pending"
    "without topolvm-scheduler; set scheduler.enabled to true") -}}
{{- end -}}
{{- if and (include "topolvm.hasWebhook" .) $tracking -}}
  {{- fail (cat "controller.storageCapacityTracking.enabled: pods that the webhook has marked are scheduled"
    "by topolvm-scheduler; remove it") -}}
{{- end -}}
{{- if and $v.webhook.selfManaged $v.webhook.certManager -}}
  {{- fail (cat "webhook.selfManaged: either topolvm-controller or cert-manager creates the certificate;"
    "set webhook.certManager to false") -}}
{{- end -}}
{{- range $program, $sidecar := dict "provisioner" "csi_provisioner" "resizer" "csi_resizer" "snapshotter" "csi_snapshotter" -}}
  {{- $container := printf "csi-%s" $program -}}
  {{- if and (get $v.args $sidecar) (ne (get $v.controller $program | default "") $container) -}}
    {{- fail (printf "args.%s: topolvm-controller does the work of %s; set its flags in controller.args, or set controller.%s to %s"
      $sidecar $container $program $container) -}}
  {{- end -}}
{{- end -}}
{{- if and $v.snapshot.groups (not $v.snapshot.enabled) -}}
  {{- fail "snapshot.groups: there are no snapshots without snapshot.enabled; set it to true" -}}
{{- end -}}
{{- if and (not $v.controller.leaderElection.enabled) (gt (int $v.controller.replicaCount) 1) -}}
  {{- fail (cat "controller.leaderElection.enabled: without leader election only one replica is supported;"
    "set controller.replicaCount to 1") -}}
{{- end -}}
{{- $local := has ($v.scheduler.options.listen.host | default "") (list "localhost" "127.0.0.1" "::1" "[::1]") -}}
{{- if and (include "topolvm.hasScheduler" .) (eq $v.scheduler.type "deployment") $local -}}
  {{- fail (cat "scheduler.options.listen.host: the Service of scheduler.type deployment cannot reach"
    "this address; remove it") -}}
{{- end -}}
{{- range $program := list "node" "lvmd" -}}
  {{- if (get $v $program).volumes -}}
    {{- fail (printf "%s.volumes: not supported, because the volumes of this chart have other names; use %s.additionalVolumes"
      $program $program) -}}
  {{- end -}}
{{- end -}}
{{- end }}
