use super::*;

fn pod(name: &str) -> PodInfo {
    PodInfo { namespace: "shop".to_owned(), name: name.to_owned(), uid: format!("uid-{name}") }
}

fn files(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn pods_survive_a_restart_while_their_volume_is_mounted() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("pods");
    let pods = PublishedPods::load(records.clone(), Some(HashSet::new())).await;
    for (volume, target, name) in [("v1", "/a", "web-1"), ("v1", "/b", "web-0"), ("v2", "/c", "db-0")] {
        pods.insert(volume, Path::new(target), pod(name)).await;
    }
    assert_eq!(
        (pods.names("v1"), pods.names("v2"), pods.names("v3")),
        ("web-0,web-1".into(), "db-0".into(), String::new())
    );

    // The machine was booted meanwhile, and kubelet has published one of them again
    std::fs::write(records.join("v9.broken.json"), "{").unwrap();
    std::fs::write(records.join("other"), "").unwrap();
    let mounted = HashSet::from(["/b".into(), "/x".into()]);
    let pods = PublishedPods::load(records.clone(), Some(mounted)).await;
    assert_eq!((pods.names("v1"), pods.names("v2")), ("web-0".into(), String::new()));
    assert_eq!(files(&records), ["other", "v1.uid-web-0.json"]);

    let pods = PublishedPods::load(records.clone(), None).await;
    pods.remove("v1", Path::new("/elsewhere")).await;
    assert_eq!(pods.names("v1"), "web-0");
    pods.remove("v1", Path::new("/b")).await;
    assert_eq!((pods.names("v1"), files(&records)), (String::new(), vec!["other".to_owned()]));
    assert!(pods.pods.lock().is_empty(), "nothing is kept of volumes without pods");
}

#[tokio::test]
async fn published_pods_survive_an_unwritable_record_directory() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("pods");
    let pods = PublishedPods::load(records.clone(), None).await;
    pods.insert("v1", Path::new("/a"), pod("web-0")).await;
    std::fs::remove_dir_all(&records).unwrap();
    std::fs::write(&records, "no directory").unwrap();
    pods.insert("v1", Path::new("/a"), pod("web-0")).await;
    pods.insert("v2", Path::new("/b"), pod("web-1")).await;
    assert_eq!((pods.names("v1"), pods.names("v2")), ("web-0".into(), "web-1".into()));
}

#[tokio::test]
async fn ids_that_could_lead_elsewhere_are_kept_in_memory_alone() {
    let directory = tempfile::tempdir().unwrap();
    let records = directory.path().join("pods");
    let pods = PublishedPods::load(records.clone(), None).await;
    for volume in ["../v", "", "a/b"] {
        pods.insert(volume, Path::new("/a"), pod("web-0")).await;
        assert_eq!(pods.names(volume), "web-0");
        pods.remove(volume, Path::new("/a")).await;
    }
    assert!(!records.exists());
}
