{{/* Values that contradict each other. values.schema.json refuses most of them before, in fewer words. */}}
{{- define "topolvm.validate" -}}
{{- $v := .Values -}}
{{- if (index $v "cert-manager").enabled -}}
  {{- fail (cat "cert-manager.enabled: cert-manager is not part of this chart. Install it first:"
    "https://cert-manager.io/docs/installation/helm/") -}}
{{- end -}}
{{- if hasSuffix "/topolvm-with-sidecar" $v.image.repository -}}
  {{- fail (cat "image.repository:" $v.image.repository "is an image of TopoLVM;"
    "leave it out, or name one of `make images`") -}}
{{- end -}}
{{- $older := list -}}
{{- with $v.image.tag -}}
  {{- $older = append $older "image.tag: use image.reference for a tag of your copy of the image, or leave it out" -}}
{{- end -}}
{{- if dig "enabled" false ($v.webhook.pvcMutatingWebhook | default dict) -}}
  {{- $older = append $older (cat "webhook.pvcMutatingWebhook: finalizers on claims are no longer needed; leave it out,"
    "or use the kustomization with the component pvc-finalizer") -}}
{{- end -}}
{{- with $older -}}
  {{- fail (printf "values of an older chart:\n- %s" (join "\n- " .)) -}}
{{- end -}}
{{- if and (or $v.lvmd.managed $v.node.lvmdEmbedded) (not $v.lvmd.deviceClasses) -}}
  {{- fail (cat "lvmd.deviceClasses: lvmd needs one device class at least; name one,"
    "or set lvmd.managed to false for an lvmd on the hosts") -}}
{{- end -}}
{{- if and $v.node.selectByLabel (or $v.node.affinity.nodeAffinity $v.lvmd.affinity.nodeAffinity) -}}
  {{- fail (cat "node.selectByLabel: node.affinity and lvmd.affinity have a nodeAffinity, and one is used;"
    "take it out, or say node.nodeSelector too") -}}
{{- end -}}
{{- if and $v.node.lvmdEmbedded $v.lvmd.managed -}}
  {{- fail "node.lvmdEmbedded: lvmd would run twice on each node; set lvmd.managed to false" -}}
{{- end -}}
{{- if and $v.node.lvmdEmbedded $v.lvmd.additionalConfigs -}}
  {{- fail (cat "lvmd.additionalConfigs: with node.lvmdEmbedded there is one configuration for all nodes;"
    "use lvmd.managed instead") -}}
{{- end -}}
{{- if and $v.lvmd.managed (ne $v.node.lvmdSocket $v.lvmd.socketName) -}}
  {{- fail (cat "node.lvmdSocket: topolvm-node would look for lvmd at" $v.node.lvmdSocket
    "and lvmd.socketName is" $v.lvmd.socketName "; give both the same path") -}}
{{- end -}}
{{- $mode := $v.scheduling.mode -}}
{{- $extender := or $v.scheduler.enabled $v.scheduler.external -}}
{{- $webhook := $v.webhook.podMutatingWebhook.enabled -}}
{{- $tracking := $v.controller.storageCapacityTracking.enabled -}}
{{- if and $v.scheduler.enabled $v.scheduler.external -}}
  {{- fail "scheduler.external: topolvm-scheduler is either of this chart (scheduler.enabled) or not" -}}
{{- end -}}
{{- if and $mode (not (has $mode (list "capacity" "extender"))) -}}
  {{- fail (cat "scheduling.mode: capacity or extender, and not" $mode) -}}
{{- end -}}
{{- if and (eq ($mode | default "") "capacity") (or $webhook $extender) -}}
  {{- fail (cat "scheduling.mode: the webhook and topolvm-scheduler belong to the mode extender;"
    "leave out webhook.podMutatingWebhook.enabled, scheduler.enabled and scheduler.external") -}}
{{- end -}}
{{- if and (eq ($mode | default "") "capacity") (kindIs "bool" $tracking) (not $tracking) -}}
  {{- fail (cat "scheduling.mode: the mode capacity is storage capacity tracking;"
    "leave out controller.storageCapacityTracking.enabled") -}}
{{- end -}}
{{- if and (eq ($mode | default "") "extender") (kindIs "bool" $webhook) (not $webhook) -}}
  {{- fail (cat "scheduling.mode: the mode extender needs the webhook;"
    "leave out webhook.podMutatingWebhook.enabled") -}}
{{- end -}}
{{- if and (eq ($mode | default "") "extender") (not $extender) (kindIs "bool" $v.scheduler.enabled) -}}
  {{- fail (cat "scheduling.mode: the mode extender needs topolvm-scheduler;"
    "leave out scheduler.enabled, or set scheduler.external to true") -}}
{{- end -}}
{{- if and $extender (not $webhook) (not $mode) -}}
  {{- fail (cat "scheduler.enabled: kube-scheduler asks topolvm-scheduler only about pods that the webhook has marked;"
    "set webhook.podMutatingWebhook.enabled to true") -}}
{{- end -}}
{{- if and $webhook (not $extender) (not $mode) -}}
  {{- fail (cat "webhook.podMutatingWebhook.enabled: pods that the webhook has marked are pending for ever"
    "without topolvm-scheduler; set scheduler.enabled to true") -}}
{{- end -}}
{{- if and (include "topolvm.hasWebhook" .) $tracking -}}
  {{- fail (cat "controller.storageCapacityTracking.enabled: pods that the webhook has marked are scheduled"
    "by topolvm-scheduler; leave it out") -}}
{{- end -}}
{{- if and $v.webhook.selfManaged $v.webhook.certManager -}}
  {{- fail (cat "webhook.selfManaged: the certificate is made by topolvm-controller or by cert-manager;"
    "set webhook.certManager to false") -}}
{{- end -}}
{{- if and (not $v.controller.leaderElection.enabled) (gt (int $v.controller.replicaCount) 1) -}}
  {{- fail (cat "controller.leaderElection.enabled: without leader election there can be one replica;"
    "set controller.replicaCount to 1") -}}
{{- end -}}
{{- $local := has ($v.scheduler.options.listen.host | default "") (list "localhost" "127.0.0.1" "::1" "[::1]") -}}
{{- if and (include "topolvm.hasScheduler" .) (eq $v.scheduler.type "deployment") $local -}}
  {{- fail (cat "scheduler.options.listen.host: nobody reaches this address through the Service of"
    "scheduler.type deployment; leave it out") -}}
{{- end -}}
{{- range $program := list "node" "lvmd" -}}
  {{- if (get $v $program).volumes -}}
    {{- fail (printf "%s.volumes: the volumes of this chart have other names; use %s.additionalVolumes"
      $program $program) -}}
  {{- end -}}
{{- end -}}
{{- end }}
