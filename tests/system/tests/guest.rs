//! The guest that every test with real LVM uses: a command's output and status come back, and no file or process stays.
#![expect(clippy::unwrap_used, clippy::disallowed_methods, reason = "tests, which also inspect processes from outside")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::exec::{Request, Target};
use testbed::guest::{self, Finished, Guest, GuestSpec, Network, Output};
use testbed::netns::NetNs;
use testbed::process::Process;
use testbed::size::{GIB, MIB};
use testbed::{agent, exec, machine, suite};

/// Timeout that is longer than any step takes on a slow machine.
const LONG: Duration = Duration::from_mins(2);
/// Address at which the agent in a guest listens.
const AGENT: &str = "10.9.8.2:7070";
/// Flag `--role NAME` with which this program starts itself as one that the tests observe from outside.
const ROLE: &str = "--role";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>().as_slice() {
        [ROLE, "wait"] => return wait_in_a_guest(),
        [ROLE, "agent"] => {
            agent::serve(AGENT.parse().unwrap()).unwrap();
            return ExitCode::SUCCESS;
        }
        [ROLE, "drop"] => {
            drop_a_guest();
            return ExitCode::SUCCESS;
        }
        _ => {}
    }
    let tests: &[(&str, fn())] = &[
        ("output_errors_and_status_of_the_command_come_back", output_errors_and_status_of_the_command_come_back),
        ("long_output_comes_back_whole", long_output_comes_back_whole),
        ("environment_and_directory_reach_the_command", environment_and_directory_reach_the_command),
        ("only_the_output_directory_is_written_to", only_the_output_directory_is_written_to),
        ("disks_are_blank_and_of_the_chosen_size", disks_are_blank_and_of_the_chosen_size),
        ("disks_in_a_directory_outlive_a_power_cut", disks_in_a_directory_outlive_a_power_cut),
        ("lvm_works_down_to_a_file_system", lvm_works_down_to_a_file_system),
        ("a_disk_is_added_and_removed_while_the_guest_runs", a_disk_is_added_and_removed_while_the_guest_runs),
        ("the_agent_runs_commands_and_its_death_is_noticed", the_agent_runs_commands_and_its_death_is_noticed),
        ("several_guests_run_at_once", several_guests_run_at_once),
        ("a_panic_is_an_error_with_the_kernels_messages", a_panic_is_an_error_with_the_kernels_messages),
        ("a_hanging_guest_meets_its_timeout", a_hanging_guest_meets_its_timeout),
        ("guest_without_a_waiting_caller_ends", guest_without_a_waiting_caller_ends),
        ("nothing_stays_of_a_guest_when_its_program_is_asked_to_end", nothing_stays_when_asked_to_end),
        ("a_guest_dies_with_its_program", a_guest_dies_with_its_program),
    ];
    let tests_on_host = tests.iter().map(|&(name, test)| {
        let test = suite::panicking_test(name, test);
        // Only the agent needs a network.
        let network = Path::new("/dev/net/tun").exists();
        test.with_ignored_flag(name.contains("agent") && !network)
    });
    suite::on_host_unless(machine::missing_for_guests(), tests_on_host.collect())
}

fn spec_with_output(script: &str) -> GuestSpec {
    GuestSpec { output: Output::Keep, timeout: LONG, ..GuestSpec::script(script) }
}

fn stdout(finished: Finished) -> String {
    assert_eq!(
        (finished.status, String::from_utf8_lossy(&finished.stderr).as_ref()),
        (0, ""),
        "{}",
        finished.kernel_messages
    );
    String::from_utf8(finished.stdout).unwrap()
}

fn output_errors_and_status_of_the_command_come_back() {
    let finished = guest::run(spec_with_output(
        "echo '<4>a warning' >/dev/kmsg; printf 'a\\nb\\001\\r\\n\\377'; echo complaint >&2; exit 42",
    ))
    .unwrap();
    assert_eq!(finished.status, 42);
    assert_eq!(finished.stdout, b"a\nb\x01\r\n\xff");
    assert_eq!(finished.stderr, b"complaint\n");
    assert!(finished.kernel_messages.contains("a warning"), "{}", finished.kernel_messages);
}

fn long_output_comes_back_whole() {
    let output = stdout(guest::run(spec_with_output("seq 1 200000")).unwrap());
    let wanted = (1..=200_000).map(|n| n.to_string()).collect::<Vec<_>>().join("\n") + "\n";
    assert!(output == wanted, "{} bytes instead of {}", output.len(), wanted.len());
}

fn environment_and_directory_reach_the_command() {
    let mut spec = spec_with_output("echo \"$COLOUR\"; pwd; id -u");
    spec.env.insert("COLOUR".into(), "it's \"green\" $x".into());
    spec.cwd = "/usr/share".into();
    assert_eq!(stdout(guest::run(spec).unwrap()), "it's \"green\" $x\n/usr/share\n0\n");
}

fn only_the_output_directory_is_written_to() {
    let directory = tempfile::tempdir().unwrap();
    let (inside, outside) = (directory.path().join("out"), directory.path().join("elsewhere"));
    fs::create_dir(&inside).unwrap();
    let mut spec = spec_with_output(&format!(
        "echo kept >{}/file; echo lost >{}; cat {0}/file {1}",
        inside.display(),
        outside.display()
    ));
    spec.out_dir = Some(inside.clone());
    assert_eq!(stdout(guest::run(spec).unwrap()), "kept\nlost\n");
    assert_eq!(fs::read_to_string(inside.join("file")).unwrap(), "kept\n");
    assert!(!outside.exists());
}

fn disks_are_blank_and_of_the_chosen_size() {
    let mut spec = spec_with_output(
        "blockdev --getsize64 /dev/ubda /dev/ubdb; cmp /dev/ubda /dev/zero 2>&1 || true; test ! -e /dev/ubdc",
    );
    spec.disks = vec![16 * MIB, 5 * GIB];
    let output = stdout(guest::run(spec).unwrap());
    assert_eq!(output, format!("{}\n{}\ncmp: EOF on /dev/ubda after byte {0}, in line 1\n", 16 * MIB, 5 * GIB));
}

fn disks_in_a_directory_outlive_a_power_cut() {
    let directory = tempfile::tempdir().unwrap();
    let spec = |script: &str| GuestSpec {
        disk_dir: Some(directory.path().to_owned()),
        disks: vec![16 * MIB],
        ..spec_with_output(script)
    };
    let write = "echo kept | dd of=/dev/ubda bs=512 conv=sync,fsync status=none; echo written; sleep 1000";
    let guest = Guest::start(spec(write)).unwrap();
    guest.wait_for_stdout("written", LONG).unwrap();
    guest.kill();
    assert_eq!(stdout(guest::run(spec("head -n1 /dev/ubda")).unwrap()), "kept\n");
}

fn lvm_works_down_to_a_file_system() {
    let mut spec = spec_with_output(
        "exec 2>/run/log; trap 'cat /run/log' ERR
        pvcreate -q /dev/ubda /dev/ubdb >&2; vgcreate -q vg /dev/ubda /dev/ubdb >&2
        lvcreate -q -n thick -L 1g vg >&2; lvcreate -q -T -L 1g -V 20g -n thin vg/pool >&2
        mkfs.ext4 -q /dev/vg/thick; mount /dev/vg/thick /mnt; echo data >/mnt/file
        lvextend -q -L 2g -r vg/thick >&2; cat /mnt/file; umount /mnt
        lvs --noheadings --units m --nosuffix -S 'lv_name!=pool' -o lv_name,lv_size,pool_lv vg",
    );
    spec.disks = vec![4 * GIB; 2];
    let output = stdout(guest::run(spec).unwrap());
    let words: Vec<&str> = output.split_whitespace().collect();
    assert_eq!(words, ["data", "thick", "2048.00", "thin", "20480.00", "pool"]);
}

fn a_disk_is_added_and_removed_while_the_guest_runs() {
    let guest = Guest::start(spec_with_output(
        "echo ready; until [ -b /dev/ubdb ]; do sleep 0.02; done; pvcreate -qq /dev/ubdb 2>/dev/null
        blockdev --getsize64 /dev/ubdb; echo seen; while [ -b /dev/ubdb ]; do sleep 0.02; done; echo gone",
    ))
    .unwrap();
    guest.wait_for_stdout("ready", LONG).unwrap();
    let disk = guest.add_disk(3 * GIB).unwrap();
    assert_eq!(disk.device(), "/dev/ubdb");
    guest.wait_for_stdout("seen", LONG).unwrap();
    guest.remove_disk(&disk).unwrap();
    assert_eq!(stdout(guest.wait().unwrap()), format!("ready\n{}\nseen\ngone\n", 3 * GIB));
}

fn the_agent_runs_commands_and_its_death_is_noticed() {
    let directory = tempfile::tempdir().unwrap();
    let netns = NetNs::create(&directory.path().join("netns")).unwrap();
    for line in ["tuntap add tap0 mode tap", "addr add 10.9.8.1/24 dev tap0", "link set tap0 up"] {
        assert!(netns.command("ip").args(line.split(' ')).status().unwrap().success());
    }
    let program = std::env::current_exe().unwrap().into_os_string().into_string().unwrap();
    let guest = Guest::start(GuestSpec {
        network: Some(Network {
            netns: netns.clone(),
            tap: "tap0".into(),
            address: "10.9.8.2/24".into(),
            gateway: None,
        }),
        timeout: LONG,
        output: Output::Keep,
        ..GuestSpec::new([program.as_str(), ROLE, "agent"])
    })
    .unwrap();
    let agent = Target::inside(&netns, AGENT.parse().unwrap());
    agent.wait(LONG).unwrap();
    let output = exec::run(&agent, &Request::new(["sh", "-c", "cat; hostname; exit 5"]), b"input\n", LONG).unwrap();
    assert_eq!((output.status, output.stdout.as_slice()), (5, b"input\nguest\n".as_slice()));

    let begin = Instant::now();
    let crash = Request::new(["sh", "-c", "echo c >/proc/sysrq-trigger; sleep 1000"]);
    let error = exec::run(&agent, &crash, b"", LONG).unwrap_err();
    assert!(format!("{error:#}").contains("lost the agent"), "{error:#}");
    assert!(begin.elapsed() < Duration::from_secs(40));
    assert!(guest.wait().is_err());
    netns.remove().unwrap();
    assert!(!netns.path().exists());
}

fn several_guests_run_at_once() {
    // Each waits for the others, through the one thing that they share.
    let directory = tempfile::tempdir().unwrap();
    let meet = |name: &str| {
        let mut spec = spec_with_output(&format!(
            "cd {}; touch {name}; until [ -e a -a -e b -a -e c ]; do sleep 0.05; done; echo {name}",
            directory.path().display()
        ));
        spec.out_dir = Some(directory.path().to_owned());
        spec
    };
    let guests: Vec<Guest> = ["a", "b", "c"].iter().map(|name| Guest::start(meet(name)).unwrap()).collect();
    let names: Vec<String> = guests.into_iter().map(|guest| stdout(guest.wait().unwrap())).collect();
    assert_eq!(names, ["a\n", "b\n", "c\n"]);
}

fn a_panic_is_an_error_with_the_kernels_messages() {
    let error = guest::run(spec_with_output("echo c >/proc/sysrq-trigger; sleep 1000")).unwrap_err().to_string();
    assert!(
        error.contains("the guest died") && error.contains("Kernel panic - not syncing: sysrq triggered crash"),
        "{error}"
    );
}

fn a_hanging_guest_meets_its_timeout() {
    let begin = Instant::now();
    let mut spec = spec_with_output("echo a last word >/dev/console; sleep 1000");
    spec.timeout = Duration::from_secs(5);
    let error = guest::run(spec).unwrap_err().to_string();
    assert!(error.contains("did not end within 5s") && error.contains("a last word"), "{error}");
    assert!(begin.elapsed() < LONG);
}

fn guest_without_a_waiting_caller_ends() {
    // In a separate program: the guests of other tests look identical from outside.
    let program = std::env::current_exe().unwrap();
    let output = Command::new(program).args([ROLE, "drop"]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

fn drop_a_guest() {
    let guest = Guest::start(spec_with_output("echo ready; sleep 1000")).unwrap();
    guest.wait_for_stdout("ready", LONG).unwrap();
    let id = std::process::id();
    assert!(!processes(id).is_empty() && !files_and_mounts(id).is_empty());
    drop(guest);
    assert_eq!(files_and_mounts(id), Vec::<PathBuf>::new());
    wait_until(|| processes(id).is_empty());
}

fn nothing_stays_when_asked_to_end() {
    let mut program = another_program();
    let id = program.id();
    assert!(!processes(id).is_empty() && !files_and_mounts(id).is_empty());
    Process::of(id).unwrap().stop(LONG).unwrap();
    assert!(!program.wait().unwrap().success());
    assert_eq!(files_and_mounts(id), Vec::<PathBuf>::new());
    wait_until(|| processes(id).is_empty());
}

fn a_guest_dies_with_its_program() {
    let mut program = another_program();
    let id = program.id();
    assert!(!processes(id).is_empty());
    program.kill().unwrap();
    program.wait().unwrap();
    wait_until(|| processes(id).is_empty());
    // Files cannot go with it. The next guest of any program sweeps them up.
    stdout(guest::run(spec_with_output("true")).unwrap());
    assert_eq!(files_and_mounts(id), Vec::<PathBuf>::new());
}

/// Starts this program again, with a guest that runs and waits.
fn another_program() -> std::process::Child {
    let program = std::env::current_exe().unwrap();
    let mut child =
        Command::new(program).args([ROLE, "wait"]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(child.stdout.as_mut().unwrap()), &mut line).unwrap();
    assert_eq!(line, "ready\n");
    child
}

fn wait_in_a_guest() -> ExitCode {
    let spec = GuestSpec { timeout: LONG, ..GuestSpec::script("echo ready; sleep 1000") };
    if guest::run(spec).is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Lists the files and mounts of a program's guests.
fn files_and_mounts(program: u32) -> Vec<PathBuf> {
    let prefix = format!("topolvm-guest-{program}-");
    let mut found = Vec::new();
    for directory in [Path::new("/dev/shm"), &std::env::temp_dir()] {
        let entries = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap());
        found.extend(
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix)).map(|entry| entry.path()),
        );
    }
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    found.extend(mounts.lines().filter(|mount| mount.contains(&prefix)).map(PathBuf::from));
    found
}

/// Lists the processes of a program's guests: its files are among their arguments.
fn processes(program: u32) -> Vec<String> {
    let part = format!("topolvm-guest-{program}-");
    let processes =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    processes.map(|line| String::from_utf8_lossy(&line).into_owned()).filter(|line| line.contains(&part)).collect()
}

fn wait_until(is_so: impl Fn() -> bool) {
    let end = Instant::now() + LONG;
    while !is_so() {
        assert!(Instant::now() < end);
        thread::sleep(Duration::from_millis(20));
    }
}
