//! The program lvmd: flags, files, exit statuses, signals. Its "lvm" is a shell script.
#![expect(clippy::disallowed_methods, reason = "the program under test is a process")]

use std::fs;
use std::io::{self, BufRead as _, BufReader, Lines, Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

use rstest::rstest;
use tempfile::TempDir;
use tokio_stream::StreamExt as _;
use tonic::transport::Endpoint;
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;
use topolvm_proto::lvmd::vg_service_client::VgServiceClient;
use topolvm_proto::lvmd::{Empty, RemoveLvRequest, ResizeLvRequest};

/// A group of 10 GiB, half of it free, on a disk that cannot be read.
const GROUP: &str = "
  LVM2_VG_NAME='myvg1' LVM2_VG_UUID='u' LVM2_VG_SEQNO='3' LVM2_VG_SIZE='10737418240' LVM2_VG_FREE='5368709120' \
  LVM2_VG_EXTENT_SIZE='4194304' LVM2_VG_MISSING_PV_COUNT='0' LVM2_VG_TAGS='' LVM2_PV_COUNT='1' LVM2_LV_COUNT='$count' \
  LVM2_MAX_LV='0' LVM2_VG_PERMISSIONS='writeable' LVM2_VG_SYSTEMID='' LVM2_VG_EXPORTED=''
  LVM2_PV_NAME='/dev/no-such-disk' LVM2_PV_UUID='p' LVM2_PV_MAJOR='98' LVM2_PV_MINOR='16' LVM2_PV_SIZE='10737418240' \
  LVM2_PV_FREE='5368709120' LVM2_PV_MISSING='' LVM2_PV_ALLOCATABLE='allocatable' LVM2_PV_TAGS=''
  LVM2_PV_UUID='p' LVM2_PVSEG_START='0' LVM2_PVSEG_SIZE='1280'";
/// The volume in it.
const VOLUME: &str = "
  LVM2_LV_UUID='l' LVM2_LV_NAME='a' LVM2_LV_PATH='/dev/myvg1/a' LVM2_LV_SIZE='4194304' LVM2_LV_KERNEL_MAJOR='254' \
  LVM2_LV_KERNEL_MINOR='3' LVM2_ORIGIN='' LVM2_ORIGIN_SIZE='' LVM2_POOL_LV='' LVM2_LV_TAGS='' \
  LVM2_LV_ATTR='-wi-a-----' LVM2_DATA_PERCENT='' LVM2_METADATA_PERCENT='' LVM2_LV_METADATA_SIZE=''";

/// A directory with a fake lvm, a configuration that uses it, and the place of the socket.
pub(crate) struct Place {
    dir: TempDir,
}

impl Place {
    pub(crate) fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().unwrap() };
        // Without arguments it is LVM's shell. It notes each line that it is given.
        place.lvm(&format!(
            "here={}
             answer() {{
                 echo \"$*\" >> $here/said
                 case $1 in
                     lvremove) touch $here/removed ;;
                     fullreport) report ;;
                     formats) echo lvm2 ;;
                     end-of-commands-*) echo \"No such command\" $1 >&2 ;;
                 esac
             }}
             report() {{
                 if [ -e $here/removed ]; then count=0; else count=1; fi
                 cat <<X\n{GROUP}\nX
                 if [ $count = 1 ]; then cat <<X\n{VOLUME}\nX\nfi
             }}
             if [ $# -gt 0 ]; then
                 answer \"$@\"
             else
                 while read -r line; do answer $line; done
             fi",
            place.dir.path().display()
        ));
        place.configure("device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 1}]");
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.path("lvmd.sock")
    }

    pub(crate) fn lvm(&self, script: &str) {
        fs::write(self.path("lvm.new"), format!("#!/bin/sh\n{script}\n")).unwrap();
        fs::set_permissions(self.path("lvm.new"), fs::Permissions::from_mode(0o755)).unwrap();
        fs::rename(self.path("lvm.new"), self.path("lvm")).unwrap();
    }

    pub(crate) fn configure(&self, classes: &str) {
        let (socket, lvm) = (self.socket(), self.path("lvm"));
        let text = format!("socket-name: {}\nlvm-command-prefix: [{}]\n{classes}\n", socket.display(), lvm.display());
        fs::write(self.path("lvmd.yaml"), text).unwrap();
    }

    pub(crate) fn lvmd(&self, args: &[&str]) -> Command {
        let mut command = Command::new(assert_cmd::cargo::cargo_bin!("lvmd"));
        command.arg("--config").arg(self.path("lvmd.yaml")).args(args);
        command
    }

    /// Status and standard error of an lvmd that ends by itself.
    fn ends(&self, args: &[&str]) -> (i32, String) {
        let Output { status, stderr, .. } = self.lvmd(&["--log-level=off"]).args(args).output().unwrap();
        (status.code().unwrap(), String::from_utf8(stderr).unwrap())
    }

    pub(crate) fn serve(&self) -> Server {
        let mut command = self.lvmd(&["--metrics-bind-address=", "--log-format=text"]);
        let mut server = Server { child: command.stderr(Stdio::piped()).spawn().unwrap(), log: None };
        let mut lines = BufReader::new(server.child.stderr.take().unwrap()).lines();
        let listens = lines.by_ref().any(|line| line.unwrap().contains("listening"));
        assert!(listens, "lvmd ended");
        server.log = Some(lines);
        server
    }
}

pub(crate) struct Server {
    pub(crate) child: Child,
    /// Kept open, so that it can go on writing.
    pub(crate) log: Option<Lines<BufReader<ChildStderr>>>,
}

impl Server {
    /// Sends SIGTERM and gives the exit status.
    pub(crate) fn stop(&mut self) -> Option<i32> {
        Command::new("kill").arg(self.child.id().to_string()).status().unwrap();
        self.child.wait().unwrap().code()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // It has ended already, unless the test failed.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

#[test]
fn text_that_is_not_read_in_a_terminal_has_no_colours() {
    let output = Place::new().lvmd(&["check-config", "--log-format=text"]).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(log.contains("starting"), "{log}");
    assert!(!log.contains('\u{1b}'), "{log:?}");
}

#[rstest]
#[case("lvmd", &["--help"])]
#[case("lvmd-health", &["health", "--help"])]
#[case("lvmd-check-config", &["check-config", "--help"])]
fn help(#[case] name: &str, #[case] args: &[&str]) {
    let output = Command::new(assert_cmd::cargo::cargo_bin!("lvmd")).args(args).env("COLUMNS", "100").output().unwrap();
    assert!(output.status.success());
    insta::assert_snapshot!(name, String::from_utf8(output.stdout).unwrap());
}

#[rstest]
#[case(&["--spare=3"], "unexpected argument '--spare'")]
#[case(&["--zap-log-level=loud"], "must be debug, info, error or panic")]
#[case(&["-v=loud"], "must be a whole number")]
#[case(&["--metrics-bind-address=8080"], "use :PORT, HOST:PORT or [IPV6]:PORT")]
#[case(&["--lvm-path=/sbin/lvm"], "--lvm-path and lvm-command-prefix in the configuration file are mutually exclusive")]
fn flags_that_cannot_be_used_end_with_64_and_a_hint(#[case] args: &[&str], #[case] hint: &str) {
    let (status, message) = Place::new().ends(args);
    assert_eq!(status, 64);
    assert!(message.contains(hint), "{message}");
}

#[test]
fn a_flag_for_profiles_is_taken_and_warned_of() {
    let output = Place::new().lvmd(&["--profiling-bind-address=:6060", "check-config"]).output().unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && log.contains("--profiling-bind-address=:6060 has no effect"), "{log}");
}

/// As containers of TopoLVM have them.
#[test]
fn klog_and_zap_flags_are_accepted_and_warn_once_if_ignored() {
    let log = |flags: &[&str]| {
        let output = Place::new().lvmd(&[flags, &["check-config"]].concat()).output().unwrap();
        assert!(output.status.success(), "{flags:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let messages = log(&["-v=2", "--logtostderr=true", "--vmodule=lvm=4", "--vmodule=lvmd=4", "--zap-encoder=json"]);
    for flag in ["logtostderr", "vmodule"] {
        assert_eq!(messages.matches(&format!("--{flag} has no effect")).count(), 1, "{messages}");
    }
    assert_eq!(messages.matches("has no effect").count(), 2, "{messages}");
    assert!(messages.contains("\"message\":\"starting\""), "{messages}");
    assert_eq!(log(&["--zap-log-level=error", "--logtostderr"]), "");
    let text = log(&["--zap-encoder=console"]);
    assert!(text.contains(" INFO starting"), "{text}");
}

#[rstest]
#[case("device-classes: [{name: a, volume-group: vg, type: fat}]", "unknown type \"fat\"; use thick")]
#[case("device-classes: []", "no device class is configured; add at least one")]

fn a_configuration_that_cannot_work_ends_with_64(#[case] classes: &str, #[case] sentence: &str) {
    let place = Place::new();
    place.configure(classes);
    let (status, message) = place.ends(&[]);
    assert_eq!(status, 64);
    assert!(message.contains(sentence), "{message}");
}

#[test]
fn an_empty_prefix_ends_with_64() {
    let place = Place::new();
    fs::write(place.path("lvmd.yaml"), "lvm-command-prefix: []\ndevice-classes: [{name: a, volume-group: vg}]")
        .unwrap();
    let (status, message) = place.ends(&[]);
    assert_eq!(status, 64);
    assert!(message.contains("lvm-command-prefix is empty; remove it to use the default"), "{message}");
}

#[test]
fn a_missing_configuration_file_ends_with_64() {
    let place = Place::new();
    fs::remove_file(place.path("lvmd.yaml")).unwrap();
    let (status, message) = place.ends(&[]);
    assert_eq!(status, 64);
    assert!(message.contains("cannot read the configuration file") && message.contains("--config"), "{message}");
}

#[test]
fn a_missing_volume_group_ends_with_1() {
    let place = Place::new();
    place.lvm("echo '  Volume group \"myvg1\" not found' >&2; exit 5");
    let (status, message) = place.ends(&[]);
    assert_eq!(status, 1);
    assert!(message.contains("there is no volume group myvg1; create it with `vgcreate myvg1 DEVICE...`"), "{message}");
}

#[test]
fn an_lvm_that_does_not_work_ends_with_1() {
    let place = Place::new();
    place.lvm("echo '  /run/lock/lvm: Permission denied' >&2; exit 5");
    let (status, message) = place.ends(&[]);
    assert_eq!(status, 1);
    assert!(message.contains("LVM does not work") && message.contains("Permission denied"), "{message}");
}

#[test]
fn sigterm_ends_it_while_it_waits_for_an_lvm_that_hangs() {
    let place = Place::new();
    Command::new("mkfifo").arg(place.path("begun")).status().unwrap();
    place.lvm(&format!("echo begun > {}; exec sleep 1000", place.path("begun").display()));
    let child = place.lvmd(&["--metrics-bind-address=", "--log-level=off"]).spawn().unwrap();
    let mut server = Server { child, log: None };
    assert_eq!(fs::read_to_string(place.path("begun")).unwrap(), "begun\n");
    let start = std::time::Instant::now();
    assert_eq!(server.stop(), Some(0));
    // LVM is given a minute
    assert!(start.elapsed() < std::time::Duration::from_secs(30));
}

// Types of HTTP/2 frames (RFC 9113 §6)
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;

/// Returns an HTTP/2 frame of the first stream (RFC 9113 §4.1).
fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
    let stream = u8::from(kind != SETTINGS);
    let length = u16::try_from(payload.len()).unwrap().to_be_bytes();
    [&[0], &length[..], &[kind, flags, 0, 0, 0, stream], payload].concat()
}

/// grpc-go, as in TopoLVM's agent, sends the path of a socket as authority if the target is not `unix:PATH`.
#[test]
fn a_client_that_sends_a_path_as_authority_is_answered() {
    let place = Place::new();
    let mut server = place.serve();
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/grpc.health.v1.Health/Check"),
        (":authority", "%2Frun%2Ftopolvm%2Flvmd.sock"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ];
    // Literals that are not indexed (RFC 7541 §6.2.2)
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    let block = fields.map(|(name, value)| [vec![0], text(name), text(value)].concat()).concat();
    let request = [
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec(),
        frame(SETTINGS, 0, &[]),
        frame(HEADERS, 4, &block),
        // An empty message, and the end of the stream
        frame(DATA, 1, &[0; 5]),
    ];
    let mut connection = UnixStream::connect(place.socket()).unwrap();
    connection.write_all(&request.concat()).unwrap();
    let answer = loop {
        let mut head = [0; 9];
        connection.read_exact(&mut head).unwrap();
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        io::copy(&mut (&mut connection).take(length.into()), &mut io::sink()).unwrap();
        if [HEADERS, RST_STREAM].contains(&head[3]) {
            break head[3];
        }
    };
    assert_eq!(answer, HEADERS, "the stream was reset");
    drop(connection);
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn a_directory_in_the_place_of_the_socket_ends_with_1() {
    let place = Place::new();
    fs::create_dir(place.socket()).unwrap();
    let (status, message) = place.ends(&[]);
    assert_eq!(status, 1);
    assert!(message.contains("is not a socket; remove it or set another socket path"), "{message}");
}

#[test]
fn check_config_says_what_a_file_means() {
    let place = Place::new();
    let output = place.lvmd(&["--log-level=off", "check-config"]).output().unwrap();
    assert!(output.status.success());
    let expected = "device class ssd: volume group myvg1, spare 1 GiB, default\nthe configuration is valid\n";
    assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
}

#[test]
fn check_config_says_which_nodes_a_disk_group_is_for() {
    let place = Place::new();
    let file = place.path("groups.yaml");
    let group = "{name: a, mode: auto, paths: [x], node-labels: [kind=fast, kind=new, example.com/zone]}";
    fs::write(&file, format!("disk-groups: [{group}]\n")).unwrap();
    let output = place.lvmd(&["--log-level=off", "check-config", file.to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8(output.stdout).unwrap();
    let expected =
        "disk group a: blank disks are added, on nodes with the labels example.com/zone,kind in (fast,new)\n";
    assert!(said.contains(expected), "{said}");
    let (status, message) = place.ends(&["disks", "--node-labels", "kind"]);
    assert_eq!(status, 64);
    assert!(message.contains("\"kind\" has no value; write KEY=VALUE"), "{message}");
}

#[test]
fn check_config_lists_all_mistakes() {
    let place = Place::new();
    let other = place.path("other.yaml");
    fs::write(&other, "device-classes:\n- name: a\n- name: b\n  volume-group: vg\n  type: fat\n").unwrap();
    let (status, message) = place.ends(&["check-config", other.to_str().unwrap()]);
    assert_eq!(status, 64);
    assert!(
        message.contains("other.yaml:2: device class \"a\"") && message.contains("other.yaml:3: device class \"b\""),
        "{message}"
    );
}

#[test]
fn health_without_a_server_fails() {
    let place = Place::new();
    let (status, message) = place.ends(&["health"]);
    assert_eq!(status, 1);
    assert!(message.contains("cannot connect to lvmd on"), "{message}");
}

#[tokio::test]
async fn health_is_that_of_lvm() {
    let place = Place::new();
    let mut server = place.serve();
    assert_eq!(place.ends(&["health"]), (0, String::new()));

    place.lvm("exit 5");
    let mut client = LvServiceClient::new(client_channel(&place).await);
    let missing = ResizeLvRequest { name: "b".to_owned(), ..ResizeLvRequest::default() };
    client.resize_lv(missing).await.unwrap_err();
    // The health service learns it a moment later; watching it needs no guess how much later.
    let mut health = tonic_health::pb::health_client::HealthClient::new(client_channel(&place).await);
    let lvm = tonic_health::pb::HealthCheckRequest { service: "proto.LVService".to_owned() };
    let mut states = health.watch(lvm).await.unwrap().into_inner();
    while states.message().await.unwrap().unwrap().status()
        != tonic_health::pb::health_check_response::ServingStatus::NotServing
    {}
    let (status, message) = place.ends(&["health"]);
    assert_eq!(status, 1);
    assert!(message.contains("LVM does not work"), "{message}");
    // To a probe of TopoLVM's agent lvmd itself is well
    let process = tonic_health::pb::HealthCheckRequest::default();
    let answer = health.check(process).await.unwrap().into_inner().status();
    assert_eq!(answer, tonic_health::pb::health_check_response::ServingStatus::Serving);
    drop(states);
    assert_eq!(tokio::task::spawn_blocking(move || server.stop()).await.unwrap(), Some(0));
}

async fn client_channel(place: &Place) -> tonic::transport::Channel {
    Endpoint::try_from(format!("unix:{}", place.socket().display())).unwrap().connect().await.unwrap()
}

#[tokio::test]
async fn a_change_is_given_to_lvms_shell_line_by_line() {
    let place = Place::new();
    let mut server = place.serve();
    let mut client = LvServiceClient::new(client_channel(&place).await);
    let request = RemoveLvRequest { name: "a".to_owned(), ..RemoveLvRequest::default() };
    client.remove_lv(request.clone()).await.unwrap();
    let said = fs::read_to_string(place.path("said")).unwrap();
    // Without the settings that each command carries, and without the question for those of the host, which is asked at
    // some time
    let plain = |line: &str| {
        if line.starts_with("vgchange") {
            return "vgchange".to_owned();
        }
        let (before, rest) = line.split_once(" --config ").unwrap_or((line, ""));
        let after = rest.split_once("report_command_log=0").or_else(|| rest.split_once("hints=\"none\"'"));
        let line = format!("{before}{}", after.map_or("", |(_, after)| after));
        line.split(' ').take(3).collect::<Vec<_>>().join(" ")
    };
    let names: Vec<_> = said.lines().filter(|line| !line.starts_with("lvmconfig")).map(plain).collect();
    let report = "fullreport --noheadings --nameprefixes";
    // At the start, also about other groups, and before the change because the disk cannot be read; then the input
    // of the shell.
    let others = "vgs --noheadings --nameprefixes";
    // The group gets the tag of the machine that runs the test, if that has an identity
    let tagging = if lvmd_config::Machine::read(Path::new("/")).is_some() { &["vgchange", report][..] } else { &[] };
    let greeting = ["formats", "end-of-commands-1"];
    let change = ["lvremove -f -S", report, "end-of-commands-2"];
    assert_eq!(names, [&[report][..], tagging, &[others, report], &greeting, &change].concat());
    assert_eq!(client.remove_lv(request).await.unwrap_err().code(), tonic::Code::NotFound);
    assert_eq!(tokio::task::spawn_blocking(move || server.stop()).await.unwrap(), Some(0));
}

#[tokio::test]
async fn sigterm_ends_it_while_a_watch_is_open() {
    let place = Place::new();
    let mut server = place.serve();
    assert_eq!(fs::metadata(place.socket()).unwrap().permissions().mode() & 0o777, 0o600);
    let mut client = VgServiceClient::new(client_channel(&place).await);
    let mut stream = client.watch(Empty {}).await.unwrap().into_inner();
    let first = stream.next().await.unwrap().unwrap();
    assert_eq!(first.free_bytes, 4 << 30);

    let stopped = tokio::task::spawn_blocking(move || server.stop());
    assert!(stream.next().await.unwrap().is_err());
    assert_eq!(stopped.await.unwrap(), Some(0));
    assert!(!place.socket().exists());
}
