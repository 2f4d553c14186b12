//! Two machines with a shared disk, like nodes with a LUN or a multi-attach cloud disk: two guests, each with a
//! separate kernel and machine-id, whose `/dev/ubdb` is the same file.

use std::fs;
use std::path::PathBuf;
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use testbed::guest::{Guest, GuestSpec, Output};

use crate::fixture::{DISKS, MIB, run_ok};

/// The disk that only this machine has.
pub(crate) const OWN: &str = DISKS[0];
/// The disk that both machines have.
pub(crate) const SHARED: &str = DISKS[1];
/// Timeout of the waits of one machine, and of both together.
const LONG: Duration = Duration::from_mins(1);

/// A work and its name, which is the first argument of this program in the guest. No other name has the same first 16
/// characters.
pub(crate) type Work = (&'static str, fn(&Marks));

/// Does a work in the guest that is this machine. `directory` is that of the marks.
pub(crate) fn work((name, work): Work, directory: &str) -> ExitCode {
    let mut id = [0; 16];
    name.bytes().zip(&mut id).for_each(|(byte, digits)| *digits = byte);
    fs::write("/etc/machine-id", format!("{:032x}\n", u128::from_be_bytes(id))).unwrap();
    work(&Marks(directory.into()));
    ExitCode::SUCCESS
}

/// Marks by which the machines wait for each other: files in a directory that both see.
pub(crate) struct Marks(PathBuf);

impl Marks {
    pub(crate) fn set(&self, mark: &str) {
        fs::write(self.0.join(mark), "").unwrap();
    }

    /// Waits until the other machine has set the mark.
    pub(crate) fn wait_for(&self, mark: &str) {
        let end = Instant::now() + LONG;
        while !self.0.join(mark).exists() {
            assert!(Instant::now() < end, "the other machine did not set {mark:?}");
            sleep(Duration::from_millis(20));
        }
    }
}

/// Returns the contents of the shared disk: LVM's metadata and the data of its volumes.
pub(crate) fn shared_contents() -> String {
    run_ok("sh", &["-c", &format!("dd if={SHARED} bs=1M iflag=direct status=none | sha256sum")])
}

/// Runs the command in a message, between backticks.
pub(crate) fn run_command_of(message: &str) {
    let command = message.split('`').nth(1).unwrap_or_else(|| panic!("no command in {message:?}"));
    run_ok("sh", &["-c", command]);
}

/// Boots two machines that do the works of these names, and waits until both have ended.
pub(crate) fn boot(works: [&str; 2]) {
    let (disks, marks) = (tempfile::tempdir_in("/dev/shm").unwrap(), tempfile::tempdir().unwrap());
    let shared = disks.path().join("shared");
    fs::File::create(&shared).and_then(|file| file.set_len(96 * MIB)).unwrap();
    let start = |work: &str| {
        let program = std::env::current_exe().unwrap().to_str().unwrap().to_owned();
        Guest::start(GuestSpec {
            disks: vec![96 * MIB],
            shared_disks: vec![shared.clone()],
            out_dir: Some(marks.path().to_owned()),
            timeout: 3 * LONG,
            output: Output::Keep,
            ..GuestSpec::new([program, work.to_owned(), marks.path().to_str().unwrap().to_owned()])
        })
        .unwrap()
    };
    let guests = works.map(|work| (work, start(work)));
    let ends = guests.map(|(work, guest)| (work, guest.wait()));
    let failures: Vec<_> = ends
        .into_iter()
        .filter_map(|(work, end)| match end {
            Ok(end) if end.status == 0 => None,
            Ok(end) => Some(format!(
                "{work}: {}\n{}{}",
                end.status,
                String::from_utf8_lossy(&end.stdout),
                String::from_utf8_lossy(&end.stderr)
            )),
            Err(error) => Some(format!("{work}: {error:#}")),
        })
        .collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}
