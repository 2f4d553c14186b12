//! The objects that a user of the product writes.

use std::net::Ipv4Addr;

use serde_json::{Value, json};
use testbed::assets;
use topolvm_api::ApiFlavor;

/// Image of the test bed with a shell.
pub const BUSYBOX: &str = "testbed.local/busybox:1";

/// Volume mode of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VolumeMode {
    /// A mounted filesystem.
    Filesystem,
    /// A block device.
    Block,
}

/// Returns the endpoints of the webhooks' Service where it has no selector, in YAML: controllers that are no pods.
pub fn webhook_endpoints(addresses: &[Ipv4Addr]) -> String {
    let (name, namespace) = ("topolvm-controller", "topolvm-system");
    let slice = json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": namespace, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4", "ports": [{"name": "webhook", "port": 9443}],
        "endpoints": addresses.iter().map(|address| json!({"addresses": [address]})).collect::<Vec<_>>(),
    });
    if !assets::is_oldest_kubernetes() {
        return slice.to_string();
    }
    // The API server reads these endpoints before it calls a webhook
    let endpoints = json!({
        "apiVersion": "v1", "kind": "Endpoints",
        "metadata": {
            "name": name, "namespace": namespace, "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{
            "addresses": addresses.iter().map(|address| json!({"ip": address})).collect::<Vec<_>>(),
            "ports": [{"name": "webhook", "port": 9443}],
        }],
    });
    format!("{slice}\n---\n{endpoints}\n")
}

/// Returns a StorageClass of the product with ext4 and volume expansion. `immediate` classes bind without a pod.
pub fn storage_class(flavor: ApiFlavor, name: &str, device_class: Option<&str>, immediate: bool) -> Value {
    let mut parameters = json!({"csi.storage.k8s.io/fstype": "ext4"});
    if let (Some(device_class), Some(parameters)) = (device_class, parameters.as_object_mut()) {
        parameters.insert(flavor.device_class_parameter().to_owned(), device_class.into());
    }
    json!({
        "apiVersion": "storage.k8s.io/v1", "kind": "StorageClass",
        "metadata": {"name": name},
        "provisioner": flavor.driver_name(),
        "parameters": parameters,
        "volumeBindingMode": if immediate { "Immediate" } else { "WaitForFirstConsumer" },
        "allowVolumeExpansion": true,
    })
}

/// Returns a PersistentVolumeClaim in the namespace `default`.
pub fn claim(name: &str, storage_class: &str, size: &str, mode: VolumeMode) -> Value {
    json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": storage_class,
            "volumeMode": format!("{mode:?}"),
            "resources": {"requests": {"storage": size}},
        },
    })
}

/// Data source of a claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DataSource<'a> {
    /// The VolumeSnapshot of this name.
    Snapshot(&'a str),
    /// The claim of this name.
    Claim(&'a str),
}

/// Returns a PersistentVolumeClaim for a filesystem with a data source.
pub fn copied_claim(name: &str, storage_class: &str, size: &str, source: DataSource<'_>) -> Value {
    let mut claim = claim(name, storage_class, size, VolumeMode::Filesystem);
    let source = match source {
        DataSource::Snapshot(name) => {
            json!({"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": name})
        }
        DataSource::Claim(name) => json!({"kind": "PersistentVolumeClaim", "name": name}),
    };
    if let Some(spec) = claim.get_mut("spec").and_then(Value::as_object_mut) {
        spec.insert("dataSource".to_owned(), source);
    }
    claim
}

/// Returns a VolumeSnapshotClass of the product whose snapshots are deleted with their VolumeSnapshot.
pub fn snapshot_class(flavor: ApiFlavor, name: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshotClass",
        "metadata": {"name": name},
        "driver": flavor.driver_name(),
        "deletionPolicy": "Delete",
    })
}

/// Returns a VolumeSnapshot of a claim, in the namespace `default`.
pub fn snapshot(name: &str, class: &str, claim: &str) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"volumeSnapshotClassName": class, "source": {"persistentVolumeClaimName": claim}},
    })
}

/// Returns a pod that sleeps, with the volume of a claim at `/data` (a directory, or a device).
pub fn pod(name: &str, claim: &str, mode: VolumeMode) -> Value {
    let mut container = json!({
        "name": "main", "image": BUSYBOX, "imagePullPolicy": "Never",
        "command": ["sh", "-c", "trap 'exit 0' TERM; sleep 2147483647 & wait"],
    });
    if let Some(container) = container.as_object_mut() {
        let _previous = match mode {
            VolumeMode::Filesystem => {
                container.insert("volumeMounts".to_owned(), json!([{"name": "data", "mountPath": "/data"}]))
            }
            VolumeMode::Block => {
                container.insert("volumeDevices".to_owned(), json!([{"name": "data", "devicePath": "/data"}]))
            }
        };
    }
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "data", "persistentVolumeClaim": {"claimName": claim}}],
        },
    })
}

/// Returns a Node without a machine, as virtual-kubelet creates one.
pub fn virtual_node() -> Value {
    let labels = json!({"kubernetes.io/os": "linux", "type": "virtual-kubelet"});
    json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "virtual", "labels": labels}})
}

/// Returns a StatefulSet of three pods, each with claims of 10 and 5 GiB of the StorageClass `vault-storage`.
pub fn vault(namespace: &str, container: &Value) -> Value {
    let claim = |name: &str, size: &str| {
        json!({
            "metadata": {"name": name},
            "spec": {
                "accessModes": ["ReadWriteOnce"], "storageClassName": "vault-storage",
                "resources": {"requests": {"storage": size}},
            },
        })
    };
    let mut container = container.clone();
    if let Some(members) = container.as_object_mut() {
        let mounts =
            json!([{"name": "data", "mountPath": "/vault/data"}, {"name": "audit", "mountPath": "/vault/audit"}]);
        members.insert("volumeMounts".to_owned(), mounts);
    }
    let labels = json!({"app": "vault"});
    json!({
        "apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": "vault", "namespace": namespace},
        "spec": {
            "replicas": 3, "serviceName": "vault", "podManagementPolicy": "Parallel",
            "selector": {"matchLabels": labels},
            // The Leases of nodes without a kubelet are not renewed
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
            },
            "volumeClaimTemplates": [claim("data", "10Gi"), claim("audit", "5Gi")],
        },
    })
}
