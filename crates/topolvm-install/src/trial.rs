//! `trial`: a volume group on a loop file, so that a node without a disk for volumes can try the product.

mod args;
mod nodes;
mod removal;
mod users;

use cli_runtime::connection::ClusterArgs;
use cli_runtime::{connection, output, request, size};
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::CSIDriver;
use kube::{Api, Client, ResourceExt as _};

use crate::install::loop_file::{self, LABEL, LoopFile};
use crate::install::options::{Lvmd, Options};
use crate::install::record::Record;
use crate::install::{self, InstallError, RunFlags, check_namespace, print_progress};

pub(crate) use args::TrialFlags;

/// Next steps for the user.
const EXAMPLE: &str = r#"
Try it:

kubectl apply -f - <<EOF
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: trial}
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: topolvm-trial
  resources: {requests: {storage: 512Mi}}
---
apiVersion: v1
kind: Pod
metadata: {name: trial}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: shell
    image: busybox:1.37
    command: [sh, -c, "date >>/data/dates && sync && exec sleep 1000000"]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    persistentVolumeClaim: {claimName: trial}
EOF
kubectl wait --for=condition=Ready pod/trial --timeout=2m
kubectl exec trial -- cat /data/dates

Remove it again:

volume=$(kubectl get persistentvolumeclaim trial -o jsonpath='{.spec.volumeName}')
kubectl delete pod/trial pvc/trial
kubectl wait --for=delete "persistentvolume/$volume" --timeout=2m
kubectl topolvm trial --remove
"#;

/// Runs `trial`.
pub(crate) async fn run(cluster: &ClusterArgs, flags: TrialFlags) -> Result<(), InstallError> {
    check_namespace(cluster)?;
    let client = connection::client(cluster).await?;
    let record = Record::read(&client).await?;
    if flags.remove {
        return Box::pin(removal::run(cluster, &client, record, &flags)).await;
    }
    let all = request::list_all::<Node>(&client).await?;
    let chosen = nodes::choose(&all, &flags)?;
    let options = match &record {
        Some(record) => added_options(record, &flags, &chosen, &all)?,
        None => new_options(cluster, &client, &flags).await?,
    };
    if let Some(problem) = options.trial_problem() {
        return Err(InstallError::Unfit(vec![problem]));
    }
    announce(&options, &chosen);
    let is_new = |name: &&String| all.iter().any(|node| node.name_any() == **name && !nodes::has_label(node));
    let new: Vec<_> = chosen.iter().filter(is_new).collect();
    for name in &new {
        nodes::label(&client, name).await?;
    }
    let run_flags = RunFlags::for_trial(flags.timeout, record.is_some(), flags.no_smoke_test);
    let changed = Box::pin(install::change(client.clone(), options, record, &run_flags)).await;
    if let Err(InstallError::Unfit(_)) = &changed {
        // Nothing else was changed
        for name in &new {
            nodes::unlabel(&client, name).await?;
        }
    }
    changed?;
    Ok(output::print(EXAMPLE)?)
}

fn announce(options: &Options, nodes: &[String]) {
    let Some(LoopFile { size, directory, .. }) = &options.trial else { return };
    print_progress(&format!(
        "a volume group {} in a file of {} in {directory} on {}. This is for evaluation only, not for data that you \
         need: the file shares its disk with the node, and each write passes through two filesystems",
        loop_file::NAME,
        size::human(*size),
        nodes.join(", "),
    ));
}

/// Returns the options of an installation for the trial alone, on its nodes alone.
async fn new_options(cluster: &ClusterArgs, client: &Client, flags: &TrialFlags) -> Result<Options, InstallError> {
    let options = Options {
        legacy: cluster.legacy,
        image: flags.image.clone(),
        kubelet_dir: flags.kubelet_dir.clone(),
        node_selector: [(LABEL.0.to_owned(), LABEL.1.to_owned())].into(),
        storage_class: None,
        trial: Some(LoopFile { size: flags.size, directory: flags.directory.clone(), is_alone: true }),
        ..Options::default()
    };
    let drivers = Api::<CSIDriver>::all(client.clone());
    if request::get(&drivers, options.flavor().driver_name()).await?.is_some() {
        let problem = "TopoLVM is installed, but not by kubectl topolvm install; docs/trial.md explains how to add the \
                       device class to manifests and to the chart";
        return Err(InstallError::Unfit(vec![problem.to_owned()]));
    }
    Ok(options)
}

/// Returns the options of the recorded installation with the trial.
fn added_options(
    record: &Record,
    flags: &TrialFlags,
    chosen: &[String],
    nodes: &[Node],
) -> Result<Options, InstallError> {
    let mut problems = Vec::new();
    if record.is_removed {
        problems.push("the programs are removed; reinstall them with kubectl topolvm install".to_owned());
    }
    if record.options.lvmd == Lvmd::Host {
        problems.push(
            "lvmd runs on the host with its own configuration; docs/trial.md explains what to add to it".to_owned(),
        );
    }
    let before = record.options.trial.as_ref();
    if let Some(before) = before.filter(|before| before.directory != flags.directory) {
        let directory = &before.directory;
        problems.push(format!("the file is in {directory}; use --directory {directory}, or remove the trial first"));
    }
    // The trial adds its own label to them afterwards
    let selector = record.options.node_selector.iter().filter(|(key, _)| *key != LABEL.0);
    for (key, value) in selector {
        let lacks = |node: &&Node| chosen.contains(&node.name_any()) && node.labels().get(key) != Some(value);
        problems.extend(nodes.iter().filter(lacks).map(|node| {
            format!("node {} does not have the label {key}={value}, so TopoLVM does not run there", node.name_any())
        }));
    }
    if !problems.is_empty() {
        return Err(InstallError::Unfit(problems));
    }
    let trial = LoopFile {
        // It is never made smaller
        size: before.map_or(flags.size, |before| before.size.max(flags.size)),
        directory: flags.directory.clone(),
        is_alone: before.is_some_and(|before| before.is_alone),
    };
    let image = flags.image.clone().or_else(|| record.options.image.clone());
    Ok(Options { trial: Some(trial), image, ..record.options.clone() })
}

#[cfg(test)]
mod tests {
    use clap::{Args as _, Command, FromArgMatches as _};
    use kube::api::ObjectMeta;

    use super::*;

    fn record(options: Options) -> Record {
        Record { version: "1".to_owned(), options, objects: [].into(), has_made_namespace: true, is_removed: false }
    }

    fn flags(words: &[&str]) -> TrialFlags {
        let matches = TrialFlags::augment_args(Command::new("trial")).get_matches_from([&["trial"], words].concat());
        TrialFlags::from_arg_matches(&matches).unwrap()
    }

    fn added(options: Options, words: &[&str]) -> Result<Options, String> {
        let node =
            Node { metadata: ObjectMeta { name: Some("a".to_owned()), ..ObjectMeta::default() }, ..Node::default() };
        let added = added_options(&record(options), &flags(words), &["a".to_owned()], &[node]);
        added.map_err(|error| error.to_string())
    }

    #[test]
    fn an_installation_keeps_its_options_and_its_file_never_shrinks() {
        let before = Options { image: Some("r/t:1".to_owned()), ..Options::default() };
        let first = added(before.clone(), &["--size=4Gi"]).unwrap();
        let trial = LoopFile { size: 4 << 30, directory: "/var/lib/topolvm-trial".to_owned(), is_alone: false };
        assert_eq!(first, Options { trial: Some(trial), ..before });
        assert_eq!(added(first.clone(), &["--size=2Gi"]).unwrap(), first);
        assert_eq!(added(first.clone(), &["--size=5Gi"]).unwrap().trial.unwrap().size, 5 << 30);
        let error = added(first, &["--directory=/data"]).unwrap_err();
        assert!(error.contains("--directory /var/lib/topolvm-trial"), "{error}");
    }

    #[test]
    fn a_node_without_the_programs_is_refused() {
        let options =
            Options { node_selector: [("storage".to_owned(), "local".to_owned())].into(), ..Options::default() };
        assert!(added(options, &[]).unwrap_err().contains("node a does not have the label storage=local"));
    }
}
