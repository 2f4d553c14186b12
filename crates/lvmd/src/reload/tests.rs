//! Tests of the configuration reload.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use prometheus_client::registry::Registry;
use tempfile::TempDir;
use tokio::sync::{Mutex, mpsc};

use super::*;

/// A file that is followed, and the device classes that were applied.
struct Following {
    dir: TempDir,
    status: watch::Receiver<ReloadStatus>,
    applied: mpsc::UnboundedReceiver<Vec<String>>,
    registry: Registry,
    /// The answer of `apply`.
    answer: Arc<Mutex<Result<(), &'static str>>>,
    _task: tokio::task::JoinHandle<anyhow::Result<()>>,
}

const ONE: &str = "device-classes: [{name: one, volume-group: vg}]";

impl Following {
    fn start() -> Self {
        Self::start_with(ONE, ONE)
    }

    /// The process has read `read`, and `found` is what stands in the file when it begins to follow it.
    fn start_with(read: &str, found: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lvmd.yaml");
        fs::write(&path, found).unwrap();
        let config = Config::parse("lvmd.yaml", read).unwrap();
        let mut registry = Registry::default();
        let metrics = ConfigMetrics::register(&mut registry, || UNIX_EPOCH + Duration::from_secs(7));
        let reload = Reload::new(path, config, Mode::Standalone, Systemd::default(), metrics).unwrap();
        let status = reload.status();
        let (sender, applied) = mpsc::unbounded_channel();
        let answer = Arc::new(Mutex::new(Ok(())));
        let answers = Arc::clone(&answer);
        let apply = move |classes: DeviceClasses| {
            let (sender, answers) = (sender.clone(), Arc::clone(&answers));
            async move {
                let names = classes.iter().map(|class| class.name.clone()).collect();
                sender.send(names).unwrap();
                (*answers.lock().await).map_err(anyhow::Error::msg)
            }
        };
        #[expect(clippy::disallowed_methods, reason = "the end of the runtime ends it")]
        let task = tokio::spawn(reload.run(apply, CancellationToken::new()));
        Self { dir, status, applied, registry, answer, _task: task }
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("lvmd.yaml")
    }

    /// Puts a file there and waits until it was read.
    async fn write(&mut self, text: &str) -> ReloadStatus {
        write(&self.path(), text);
        self.read().await
    }

    async fn read(&mut self) -> ReloadStatus {
        let changed = tokio::time::timeout(Duration::from_secs(20), self.status.changed()).await;
        changed.expect("the change was not noticed").unwrap();
        self.status.borrow_and_update().clone()
    }

    fn metric(&self, name: &str) -> String {
        let mut page = String::new();
        prometheus_client::encoding::text::encode(&mut page, &self.registry).unwrap();
        let line = page.lines().find_map(|line| line.strip_prefix(&format!("topolvm_lvmd_config_last_reload_{name} ")));
        line.unwrap().to_owned()
    }
}

fn write(path: &Path, text: &str) {
    let new = path.with_extension("new");
    fs::write(&new, text).unwrap();
    fs::rename(new, path).unwrap();
}

#[tokio::test]
async fn other_device_classes_are_applied() {
    let mut following = Following::start();
    let status = following.write("device-classes: [{name: two, volume-group: vg}]").await;
    assert_eq!(status, ReloadStatus::default());
    assert_eq!(following.applied.recv().await.unwrap(), ["two"]);
    assert_eq!(following.metric("success_timestamp_seconds"), "7.0");
}

#[tokio::test]
async fn a_file_that_cannot_work_changes_nothing_until_it_is_right() {
    let mut following = Following::start();
    let status = following.write("device-classes: []").await;
    let failure = status.failure.unwrap();
    assert!(failure.contains("lvmd.yaml:1: no device class is configured"), "{failure}");
    assert_eq!(following.metric("successful"), "0");
    fs::remove_file(following.path()).unwrap();
    let failure = following.read().await.failure.unwrap();
    assert!(failure.contains("cannot read the configuration file"), "{failure}");
    // What is in use already is not applied again
    let status = following.write(ONE).await;
    assert_eq!(status, ReloadStatus::default());
    assert_eq!(following.metric("successful"), "1");
    following.applied.try_recv().unwrap_err();
}

#[tokio::test]
async fn reload_refuses_classes_that_share_space_and_sets_the_metric() {
    let mut following = Following::start();
    let thin = |name| {
        format!("{{name: {name}, volume-group: vg, type: thin, thin-pool: {{name: p, overprovision-ratio: 2}}}}")
    };
    for more in ["{name: two, volume-group: vg}".to_owned(), format!("{}, {}", thin("two"), thin("three"))] {
        let failure =
            following.write(&format!("device-classes: [{{name: one, volume-group: vg}}, {more}]")).await.failure;
        assert!(failure.as_ref().is_some_and(|failure| failure.contains("belongs to device class")), "{failure:?}");
        assert_eq!(following.metric("successful"), "0");
    }
    following.applied.try_recv().unwrap_err();
}

#[tokio::test]
async fn reload_retries_device_classes_that_could_not_be_applied() {
    let mut following = Following::start();
    *following.answer.lock().await = Err("there is no volume group vg2");
    let other = "device-classes: [{name: two, volume-group: vg2}]";
    let status = following.write(other).await;
    assert_eq!(status.failure.unwrap(), "cannot apply its device classes: there is no volume group vg2");
    assert_eq!(following.metric("successful"), "0");
    *following.answer.lock().await = Ok(());
    let status = following.write(other).await;
    assert_eq!(status, ReloadStatus::default());
    assert_eq!(following.applied.recv().await.unwrap(), ["two"]);
    assert_eq!(following.applied.recv().await.unwrap(), ["two"]);
}

#[tokio::test]
async fn settings_for_the_start_are_named_until_they_are_as_they_were() {
    let mut following = Following::start();
    let changed =
        format!("socket-name: /x\nallowed-uids: [1]\nallowed-gids: [1]\nlvm-command-prefix: [/sbin/lvm]\n{ONE}");
    let status = following.write(&changed).await;
    let keys = ["socket-name", "allowed-uids", "allowed-gids", "lvm-command-prefix"];
    assert_eq!((status.failure, &status.needs_restart[..]), (None, &keys[..]));
    following.applied.try_recv().unwrap_err();
    assert_eq!(following.write(ONE).await, ReloadStatus::default());
}

#[tokio::test]
async fn what_was_written_before_the_file_was_followed_is_noticed() {
    let mut following = Following::start_with(ONE, "device-classes: [{name: two, volume-group: vg}]");
    following.read().await;
    assert_eq!(following.applied.recv().await.unwrap(), ["two"]);
}
