//! `support-bundle`: objects, logs and the report of `doctor` in one archive, without Secrets.

mod archive;
mod redact;

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use cli_runtime::connection::Cluster;
use cli_runtime::objects::Objects;
use cli_runtime::output::{self, OutputError, ReportFormat};
use cli_runtime::request::{self, RequestError, RequestResult, resource};
use jiff::Timestamp;
use k8s_openapi::api::admissionregistration::v1::{
    MutatingWebhookConfiguration, ValidatingAdmissionPolicy, ValidatingWebhookConfiguration,
};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Node, PersistentVolume, PersistentVolumeClaim, Pod, Service};
use k8s_openapi::api::events::v1::Event;
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use kube::api::LogParams;
use kube::{Api, Resource, ResourceExt as _};
use serde::Serialize;
use serde::de::DeserializeOwned;
use topolvm_api::{DiskOperation, LogicalVolume, NodeStorage};

use crate::doctor;
use crate::error::Error;

use archive::Archive;

/// Lines of each log, the last ones.
const LOG_LINES: i64 = 20_000;

/// Writes the archive, and prints its path.
pub(crate) async fn run(cluster: &Cluster, namespace: &str, file: Option<&Path>, now: Timestamp) -> Result<(), Error> {
    let name = format!("topolvm-support-{}", now.strftime("%Y%m%d-%H%M%S"));
    let path = file.map_or_else(|| PathBuf::from(format!("{name}.tar.gz")), Path::to_owned);
    let is_stdout = path == Path::new("-");
    let to: Box<dyn Write> = if is_stdout {
        Box::new(std::io::stdout())
    } else {
        // An existing file is not overwritten
        Box::new(File::create_new(&path).map_err(|source| Error::Write { path: path.clone(), source })?)
    };
    let archive = Archive::new(to, path.clone(), &name, now);
    fill(cluster, namespace, archive, now).await?;
    if !is_stdout {
        output::print(&format!("{}\n", path.display()))?;
    }
    Ok(())
}

async fn fill(cluster: &Cluster, namespace: &str, archive: Archive, now: Timestamp) -> Result<(), Error> {
    let mut bundle = Bundle { cluster, archive, errors: Vec::new() };
    let report = Box::pin(doctor::run_checks(cluster, namespace, now)).await;
    bundle.archive.add("doctor.txt", &doctor::render(ReportFormat::Table, &report)?)?;
    bundle.archive.add("doctor.yaml", &doctor::render(ReportFormat::Yaml, &report)?)?;
    bundle.versions().await?;
    bundle.volumes().await?;
    bundle.storage().await?;
    bundle.add_objects::<CSIDriver>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<CSINode>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<StorageClass>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<Node>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<MutatingWebhookConfiguration>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<ValidatingWebhookConfiguration>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<ValidatingAdmissionPolicy>(Api::all(cluster.client.clone())).await?;
    // In the namespace of csi-provisioner, and Events where their objects are
    bundle.add_objects::<CSIStorageCapacity>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<Event>(Api::all(cluster.client.clone())).await?;
    bundle.add_objects::<Deployment>(Api::namespaced(cluster.client.clone(), namespace)).await?;
    bundle.add_objects::<DaemonSet>(Api::namespaced(cluster.client.clone(), namespace)).await?;
    bundle.add_objects::<ConfigMap>(Api::namespaced(cluster.client.clone(), namespace)).await?;
    bundle.add_objects::<Service>(Api::namespaced(cluster.client.clone(), namespace)).await?;
    bundle.add_objects::<Lease>(Api::namespaced(cluster.client.clone(), namespace)).await?;
    let pods = bundle.add_objects::<Pod>(Api::namespaced(cluster.client.clone(), namespace)).await?;
    bundle.logs(namespace, &pods).await?;
    let mut missing = vec!["Secrets are never included.".to_owned()];
    missing.extend(bundle.errors.iter().map(ToString::to_string));
    bundle.archive.add("not-included.txt", &(missing.join("\n") + "\n"))?;
    bundle.archive.finish()
}

struct Bundle<'a> {
    cluster: &'a Cluster,
    archive: Archive,
    /// Requests that failed, for the file `not-included.txt`.
    errors: Vec<RequestError>,
}

impl Bundle<'_> {
    async fn versions(&mut self) -> Result<(), Error> {
        let mut text = format!("kubectl-topolvm {}\n", env!("CARGO_PKG_VERSION"));
        match self.cluster.client.apiserver_version().await {
            Ok(info) => text.extend(["API server ", &info.git_version, " on ", &info.platform, "\n"]),
            Err(error) => self.errors.push(RequestError::new("get", "/version".to_owned(), error)),
        }
        self.archive.add("versions.txt", &text)
    }

    /// LogicalVolumes of the group, with the claims and PersistentVolumes that are ours.
    async fn volumes(&mut self) -> Result<(), Error> {
        let Cluster { client, flavor } = self.cluster;
        match Objects::list(self.cluster, None).await {
            Ok(objects) => {
                let claims = objects.our_claims(*flavor);
                let persistent: Vec<_> = objects.our_persistent(*flavor).collect();
                self.add(&resource::<LogicalVolume>(flavor), &objects.volumes)?;
                self.add(&resource::<PersistentVolumeClaim>(&()), &claims)?;
                self.add(&resource::<PersistentVolume>(&()), &persistent)
            }
            // The error of an unavailable one is recorded; the others are of more use than none
            Err(error) => {
                self.errors.push(error);
                let api = Api::<LogicalVolume>::all_with(client.clone(), flavor);
                let volumes = request::list(&api, flavor, "").await;
                self.add_listed(&resource::<LogicalVolume>(flavor), volumes).map(drop)
            }
        }
    }

    /// NodeStorages and DiskOperations of the group.
    async fn storage(&mut self) -> Result<(), Error> {
        let Cluster { client, flavor } = self.cluster;
        let listed = request::list(&Api::<NodeStorage>::all_with(client.clone(), flavor), flavor, "").await;
        self.add_listed(&resource::<NodeStorage>(flavor), listed)?;
        let listed = request::list(&Api::<DiskOperation>::all_with(client.clone(), flavor), flavor, "").await;
        self.add_listed(&resource::<DiskOperation>(flavor), listed).map(drop)
    }

    async fn add_objects<K>(&mut self, api: Api<K>) -> Result<Vec<K>, Error>
    where
        K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
    {
        let listed = request::list(&api, &(), "").await;
        self.add_listed(&resource::<K>(&()), listed)
    }

    fn add_listed<K: Serialize>(&mut self, name: &str, listed: RequestResult<Vec<K>>) -> Result<Vec<K>, Error> {
        match listed {
            Ok(items) => self.add(name, &items).map(|()| items),
            Err(error) => {
                self.errors.push(error);
                Ok(Vec::new())
            }
        }
    }

    fn add(&mut self, name: &str, items: &impl Serialize) -> Result<(), Error> {
        let mut items = serde_json::to_value(items).map_err(OutputError::Json)?;
        redact::object(&mut items);
        let text = output::yaml(&serde_json::json!({ "items": items }))?;
        self.archive.add(&format!("objects/{name}.yaml"), &text)
    }

    /// Adds the log of each container, and that of its previous run.
    async fn logs(&mut self, namespace: &str, pods: &[Pod]) -> Result<(), Error> {
        let api = Api::<Pod>::namespaced(self.cluster.client.clone(), namespace);
        for pod in pods {
            let name = pod.name_any();
            for (container, previous) in logs_of(pod) {
                let params = LogParams {
                    container: Some(container.clone()),
                    previous,
                    tail_lines: Some(LOG_LINES),
                    timestamps: true,
                    ..LogParams::default()
                };
                let suffix = if previous { ".previous" } else { "" };
                match api.logs(&name, &params).await {
                    Ok(log) => {
                        let log: String = log.lines().map(|line| redact::line(line) + "\n").collect();
                        self.archive.add(&format!("logs/{name}/{container}{suffix}.log"), &log)?;
                    }
                    Err(error) => {
                        self.errors.push(RequestError::new(
                            "get",
                            format!("pods/log of {name}/{container}{suffix}"),
                            error,
                        ));
                    }
                }
            }
        }
        Ok(())
    }
}

/// Returns the containers of a pod that have a log, with `true` for the log of the previous run.
fn logs_of(pod: &Pod) -> Vec<(String, bool)> {
    let status = pod.status.as_ref();
    let containers = status.iter().flat_map(|status| {
        status.init_container_statuses.iter().flatten().chain(status.container_statuses.iter().flatten())
    });
    let mut logs = Vec::new();
    for container in containers {
        let state = container.state.as_ref();
        if state.is_some_and(|state| state.running.is_some() || state.terminated.is_some()) {
            logs.push((container.name.clone(), false));
        }
        if container.restart_count > 0 {
            logs.push((container.name.clone(), true));
        }
    }
    logs
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use serde_json::json;
    use topolvm_api::ApiFlavor;
    use topolvm_testkit::ApiServer;

    use super::*;

    #[test]
    fn logs_are_those_of_containers_that_have_run() {
        let pod: Pod = serde_json::from_value(json!({
            "metadata": {"name": "p"},
            "status": {"containerStatuses": [
                {"name": "a", "image": "", "imageID": "", "ready": true, "restartCount": 2, "state": {"running": {}}},
                {"name": "b", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {}}},
            ]},
        }))
        .unwrap();
        assert_eq!(logs_of(&pod), [("a".to_owned(), false), ("a".to_owned(), true)]);
    }

    #[tokio::test]
    async fn what_cannot_be_had_is_named_and_the_rest_is_there() {
        let server = ApiServer::new();
        server.fail_next("list", "nodes", 9, 403);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bundle.tar.gz");
        let now = Timestamp::constant(1_767_229_200, 0);
        let cluster = Cluster { client: server.client(), flavor: ApiFlavor::TopoLvm };
        run(&cluster, "topolvm-system", Some(&path), now).await.unwrap();
        let mut files = std::collections::BTreeMap::new();
        let mut archive = tar::Archive::new(flate2::read::GzDecoder::new(File::open(&path).unwrap()));
        for entry in archive.entries().unwrap() {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut text = String::new();
            entry.read_to_string(&mut text).unwrap();
            files.insert(name.strip_prefix("topolvm-support-20260101-010000/").unwrap().to_owned(), text);
        }
        assert!(files["not-included.txt"].contains("you may not list nodes"), "{}", files["not-included.txt"]);
        assert!(files.contains_key("objects/logicalvolumes.topolvm.io.yaml"), "{:?}", files.keys());
        assert!(files.contains_key("objects/nodestorages.topolvm.io.yaml"), "{:?}", files.keys());
        assert!(files.contains_key("objects/diskoperations.topolvm.io.yaml"), "{:?}", files.keys());
        assert!(files["doctor.txt"].contains("you may not list nodes"), "{}", files["doctor.txt"]);
        // A second run writes nothing over
        let again = run(&cluster, "topolvm-system", Some(&path), now).await.unwrap_err();
        assert!(again.to_string().contains("choose a file"), "{again}");
    }
}
