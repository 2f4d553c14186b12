use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use block_device::Claim;
use lvm::{CommandRunner, Freeze, Lvm, LvmCommand, Output, RunError};
use lvmd_config::Config;
use parking_lot::Condvar;
use tokio::time::sleep;
use topolvm_testkit::lvm::FakeLvm;

use super::*;

const PATIENCE: Duration = Duration::from_millis(20);
const DISK: Number = Number { major: 8, minor: 16 };

/// A machine with one disk that does not answer until `answers` is true, and an LVM that does not end in time.
#[derive(Clone, Debug, Default)]
struct Stuck {
    answers: Arc<(Mutex<bool>, Condvar)>,
    lvm_processes: Arc<AtomicUsize>,
}

impl Machine for Stuck {
    fn disks(&self) -> io::Result<Vec<Disk>> {
        Ok(vec![Disk {
            name: "sdb".to_owned(),
            path: "/dev/sdb".to_owned(),
            number: DISK,
            sequence: 0,
            size: 1 << 30,
            read_only: false,
            rotational: None,
            removable: false,
            model: None,
            serial: None,
            wwid: None,
            transport: None,
            ids: Vec::new(),
            bus_paths: Vec::new(),
            uses: Vec::new(),
        }])
    }

    fn open(&self, _: &Disk) -> io::Result<Box<dyn OpenDisk>> {
        Ok(Box::new(self.clone()))
    }
}

impl OpenDisk for Stuck {
    fn touch(&self) -> io::Result<()> {
        let (answers, changed) = &*self.answers;
        changed.wait_while(&mut answers.lock(), |answers| !*answers);
        Ok(())
    }

    fn contents(&self) -> io::Result<Contents> {
        self.touch().map(|()| Contents::Blank)
    }

    fn claim(&self) -> io::Result<Claim> {
        Ok(Claim::of_nothing())
    }
}

impl CommandRunner for Stuck {
    async fn run(&self, _: &[LvmCommand]) -> Result<Output, RunError> {
        self.lvm_processes.fetch_add(1, Ordering::Relaxed);
        sleep(4 * PATIENCE).await;
        Err(RunError::Timeout(4 * PATIENCE))
    }

    async fn run_program(&self, program: &'static str, _: &[String]) -> Result<Output, RunError> {
        panic!("{program} is started for a disk of which nothing was read")
    }

    async fn freeze(&self, devices: &[String], _: Duration) -> Result<Result<Freeze, Output>, RunError> {
        panic!("{devices:?} are frozen by a scan of disks")
    }
}

impl Host for Stuck {
    type Devices = FakeLvm;

    fn devices(&self) -> Arc<FakeLvm> {
        Arc::new(FakeLvm::new())
    }

    fn root(&self) -> PathBuf {
        PathBuf::new()
    }
}

#[tokio::test]
async fn hung_disks_are_named_and_block_only_one_lvm_process() {
    let machine = Stuck::default();
    let (_, labels) = watch::channel(None);
    let scanner = Scanner { patience: PATIENCE, ..Scanner::new(machine.clone(), Lvm::new(machine.clone()), labels) };
    let groups = Config::parse("f", "disk-groups: [{name: ssd, mode: auto, paths: [/dev/sdb]}]").unwrap().disk_groups;
    let warnings = Mutex::new(Vec::new());
    let look = async || scanner.scan(&groups, |why| warnings.lock().push(why)).await.unwrap_err().to_string();
    let names_the_disk = |text: &str| text.contains("these disks do not answer: /dev/sdb;");

    let why = look().await;
    assert!(names_the_disk(&why), "{why}");
    assert!(matches!(&warnings.lock()[..], [early] if names_the_disk(early)));
    for _ in 0..3 {
        let why = look().await;
        assert!(names_the_disk(&why), "{why}");
    }
    assert_eq!(machine.lvm_processes.load(Ordering::Relaxed), 1, "one waits for the dead disk already");

    *machine.answers.0.lock() = true;
    machine.answers.1.notify_all();
    while scanner.silence.is_waiting(DISK) {
        tokio::task::yield_now().await;
    }
    let why = look().await;
    assert!(!names_the_disk(&why), "{why}");
    assert_eq!(machine.lvm_processes.load(Ordering::Relaxed), 2);
}
