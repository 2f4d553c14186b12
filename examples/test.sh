#!/usr/bin/env bash
# Runs the examples beside this file in a cluster that has the product, and checks what they are there to show.
set -euo pipefail

usage() {
  cat <<'TEXT'
Usage: examples/test.sh COMMAND

  install         apply the examples and wait until their pods are ready and their claims are bound
  exec            write to the volumes, replace pods by new ones, and read it again
  expand [SIZE]   grow the claim of the Deployment while its pod uses it (2Gi without SIZE)
  scale [N]       scale the StatefulSet; each replica has its own volume (3 without N)
  limits          check that the kernel enforces the I/O limits of the example io-limits.yaml
  snapshot        snapshot a volume, change it, restore the snapshot: needs a thin device class
  delete          delete pods and workloads; claims, snapshots and their data stay, and install uses them again
  uninstall       delete everything: pods, claims, snapshots, the namespace and the classes of the examples

Environment:
  KUBECTL         the command to use (kubectl), for example "kubectl --context test"
  NAMESPACE       where the examples are (topolvm-examples)
  TIMEOUT         how long each wait may take (180s)
TEXT
}

read -ra kubectl <<<"${KUBECTL:-kubectl}"
namespace=${NAMESPACE:-topolvm-examples}
timeout=${TIMEOUT:-180s}
here=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
part_of=app.kubernetes.io/part-of=topolvm-examples

say() { echo "examples: $*"; }
fail() {
  echo "examples: error: $*" >&2
  exit 1
}
# kubectl in the namespace of the examples
k() { "${kubectl[@]}" --namespace "$namespace" "$@"; }
in_pod() { k exec "$1" -- sh -c "$2"; }

# A failed wait alone does not show why
explain() {
  local status=$?
  if ((status != 0)); then
    echo "examples: '$command' failed; this is what there is in namespace $namespace:" >&2
    k get pods,persistentvolumeclaims --output=wide >&2 || true
    k get events --sort-by=.lastTimestamp 2>/dev/null | tail -n 15 >&2 || true
  fi
}

# Whether there is an object, without a word when there is none
exists() { [[ -n $("${kubectl[@]}" get "$@" --ignore-not-found --output=name) ]]; }

check_cluster() {
  "${kubectl[@]}" version >/dev/null || fail "no cluster answers: set KUBECONFIG, or a context in KUBECTL"
  exists csidriver topolvm.io ||
    fail "the cluster has no CSIDriver topolvm.io: install the product first, see docs/install.md"
  exists storageclass topolvm-provisioner ||
    fail "no StorageClass topolvm-provisioner: kubectl apply -f deploy/manifests/base/storageclass.yaml"
}

check_installed() {
  exists deployment example-deployment --namespace "$namespace" ||
    fail "the examples are not in namespace $namespace: $0 install"
}

wait_workloads() {
  k rollout status deployment/example-deployment --timeout="$timeout"
  k rollout status statefulset/example-statefulset --timeout="$timeout"
  k rollout status statefulset/example-database --timeout="$timeout"
  k wait --for=condition=Ready pod/example-block pod/example-ephemeral pod/example-io-limits --timeout="$timeout"
}

# Leaves claims that exist out of the manifests: the size of a claim that has grown cannot go back to that in its file
without_existing_claims() {
  local claims
  claims=$(k get persistentvolumeclaims --output=jsonpath='{.items[*].metadata.name}')
  awk -v claims=" $claims " '
    BEGIN { RS = "---\n"; ORS = RS }
    {
      match($0, /\n  name: [^\n]*/)
      name = substr($0, RSTART + 9, RLENGTH - 9)
    }
    !(/(^|\n)kind: PersistentVolumeClaim\n/ && index(claims, " " name " "))'
}

install() {
  check_cluster
  if ! exists namespace "$namespace"; then
    "${kubectl[@]}" create namespace "$namespace"
    # So that uninstall takes away what was made here and nothing else
    "${kubectl[@]}" label namespace "$namespace" "$part_of"
  fi
  say "applying the examples"
  "${kubectl[@]}" kustomize "$here" | without_existing_claims | k apply --filename -
  say "waiting for their pods"
  wait_workloads
  k wait --for=jsonpath='{.status.phase}'=Bound persistentvolumeclaims --selector "$part_of" --timeout="$timeout"
  k get pods,persistentvolumeclaims
}

exec_() {
  check_installed
  local word device
  word=written-$(date +%s)
  say "writing $word: to a file, to a block device, to an ephemeral volume and to the database"
  in_pod deployment/example-deployment "echo $word >/data/word && sync"
  in_pod example-block "test -b /dev/example && printf '%-512s' $word | dd of=/dev/example conv=fsync 2>/dev/null"
  in_pod example-ephemeral "grep -q ' /scratch ' /proc/mounts && echo $word >/scratch/word && sync"
  expect "$(k exec example-database-0 -- redis-cli set word "$word")" OK "the database"
  say "replacing the pods of the Deployment and of the database by new ones"
  k rollout restart deployment/example-deployment statefulset/example-database
  wait_workloads
  expect "$(in_pod deployment/example-deployment 'cat /data/word')" "$word" "the file"
  device=$(in_pod example-block 'head -c 512 /dev/example')
  expect "${device%% *}" "$word" "the block device"
  expect "$(in_pod example-ephemeral 'cat /scratch/word')" "$word" "the ephemeral volume"
  expect "$(k exec example-database-0 -- redis-cli get word)" "$word" "the database"
}

expect() {
  [[ $1 == "$2" ]] || fail "$3 says '$1' and not '$2'"
  say "$3 says $1"
}

# Size in MiB of the filesystem of the Deployment
mebibytes() { in_pod deployment/example-deployment "df -mP /data | awk 'END {print \$2}'"; }

expand() {
  check_installed
  local size=${1:-2Gi} before
  before=$(mebibytes)
  say "growing the claim to $size; its filesystem has $before MiB"
  k patch persistentvolumeclaim example-deployment \
    --patch "{\"spec\": {\"resources\": {\"requests\": {\"storage\": \"$size\"}}}}"
  k wait --for=jsonpath='{.status.capacity.storage}'="$size" persistentvolumeclaim/example-deployment \
    --timeout="$timeout"
  (($(mebibytes) > before)) || fail "the filesystem still has $before MiB"
  say "the pod sees $(mebibytes) MiB, and was not started again"
}

scale() {
  check_installed
  local replicas=${1:-3}
  k scale statefulset/example-statefulset --replicas="$replicas"
  k rollout status statefulset/example-statefulset --timeout="$timeout"
  k get pods --selector app.kubernetes.io/name=example-statefulset --output=wide
  for ((i = 0; i < replicas; i++)); do
    expect "$(in_pod "example-statefulset-$i" 'cat /data/name')" "example-statefulset-$i" "the volume of replica $i"
  done
}

# One step of the kustomization snapshots
step() { "${kubectl[@]}" kustomize "$here/snapshots" | k apply --selector "example-step=$1" --filename -; }

snapshot() {
  check_installed
  exists crd volumesnapshots.snapshot.storage.k8s.io ||
    fail "the cluster has no VolumeSnapshots: install the CRDs and the controller of external-snapshotter first"
  step source
  k wait --for=condition=Ready pod/example-source --timeout="$timeout"
  in_pod example-source 'echo before >/data/word && sync'
  say "making a snapshot, and changing its source afterwards"
  step snapshot
  k wait --for=jsonpath='{.status.readyToUse}'=true volumesnapshot/example-snapshot --timeout="$timeout"
  in_pod example-source 'echo after >/data/word && sync'
  step restored
  k wait --for=condition=Ready pod/example-restored --timeout="$timeout"
  expect "$(in_pod example-restored 'cat /data/word')" before "the restored volume"
  expect "$(in_pod example-source 'cat /data/word')" after "its source"
}

limits() {
  check_installed
  local volume
  volume=$(k get persistentvolumeclaim example-io-limits --output=jsonpath='{.spec.volumeName}')
  "${kubectl[@]}" wait --for=condition=IOLimited "logicalvolumes.topolvm.io/$volume" --timeout="$timeout"
  say "the kernel enforces: $("${kubectl[@]}" get "logicalvolumes.topolvm.io/$volume" \
    --output=jsonpath='{.status.conditions[?(@.type=="IOLimited")].message}')"
}

delete_pods() {
  say "deleting the pods and workloads of the examples in namespace $namespace"
  # In the foreground: otherwise a ReplicaSet that is about to go may still replace its pod
  k delete deployments,statefulsets --selector "$part_of" --cascade=foreground --timeout="$timeout"
  k delete pods,services --selector "$part_of" --timeout="$timeout"
  # The claim of the ephemeral volume belongs to its pod
  k wait --for=delete persistentvolumeclaim/example-ephemeral-scratch --timeout="$timeout"
}

delete() {
  delete_pods
  say "these claims and their data stay; '$0 uninstall' removes them:"
  k get persistentvolumeclaims --selector "$part_of"
}

uninstall() {
  local volumes
  volumes=$(k get persistentvolumeclaims --selector "$part_of" \
    --output=jsonpath='{range .items[*]}{.spec.volumeName}{"\n"}{end}')
  delete_pods
  if exists crd volumesnapshots.snapshot.storage.k8s.io; then
    k delete volumesnapshots --selector "$part_of" --timeout="$timeout"
  fi
  k delete persistentvolumeclaims --selector "$part_of" --timeout="$timeout"
  say "waiting until their volumes are gone"
  for volume in $volumes; do
    "${kubectl[@]}" wait --for=delete "persistentvolume/$volume" --timeout="$timeout"
  done
  "${kubectl[@]}" delete storageclasses --selector "$part_of" --timeout="$timeout"
  if exists crd volumesnapshotclasses.snapshot.storage.k8s.io; then
    "${kubectl[@]}" delete volumesnapshotclasses --selector "$part_of" --timeout="$timeout"
  fi
  "${kubectl[@]}" delete namespaces --selector "$part_of" --field-selector "metadata.name=$namespace" \
    --timeout="$timeout"
}

command=${1:-}
case $command in
install | expand | scale | limits | snapshot | delete | uninstall) ;;
exec) command=exec_ ;;
-h | --help | help)
  usage
  exit 0
  ;;
*)
  usage >&2
  exit 64
  ;;
esac
shift
command -v "${kubectl[0]}" >/dev/null || fail "there is no ${kubectl[0]}: say in KUBECTL what to use"
trap explain EXIT
"$command" "$@"
say "${command%_}: done"
