//! lvmd as a service: its messages to systemd, a configuration that changes, who may use the socket, and its end.
#![expect(clippy::disallowed_methods, reason = "the program under test is a process")]

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::path::Path;
use std::pin::pin;
use std::process::Command;
use std::time::{Duration, Instant};

use tonic::Code;
use tonic::transport::{Channel, Endpoint};
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_check_response::ServingStatus;
use tonic_health::pb::health_client::HealthClient;
use topolvm_proto::lvmd::CreateLvRequest;
use topolvm_proto::lvmd::lv_service_client::LvServiceClient;

use crate::program::{Place, Server};

const CLASSES: &str = "device-classes: [{name: ssd, volume-group: myvg1, default: true, spare-gb: 1}]";

/// The end of the line that is systemd's.
struct Systemd {
    socket: UnixDatagram,
}

impl Systemd {
    fn new(place: &Place) -> Self {
        let socket = UnixDatagram::bind(place.path("notify")).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { socket }
    }

    /// Starts lvmd as systemd would, up to "ready".
    fn start(&self, place: &Place) -> Server {
        let mut lvmd = place.lvmd(&["--metrics-bind-address=", "--log-level=off"]);
        lvmd.env("NOTIFY_SOCKET", place.path("notify")).env("WATCHDOG_USEC", "400000");
        let server = Server { child: lvmd.spawn().unwrap(), log: None };
        self.until("READY=1");
        server
    }

    /// Reads messages up to the one that begins like this.
    fn until(&self, beginning: &str) -> String {
        loop {
            let mut message = [0; 4096];
            let length = self.socket.recv(&mut message).expect(beginning);
            let message = std::str::from_utf8(message.get(..length).unwrap()).unwrap();
            if message.starts_with(beginning) {
                return message.to_owned();
            }
        }
    }
}

fn signal(server: &Server, name: &str) {
    Command::new("kill").args(["-s", name, &server.child.id().to_string()]).status().unwrap();
}

async fn channel(socket: &Path) -> Channel {
    Endpoint::try_from(format!("unix:{}", socket.display())).unwrap().connect().await.unwrap()
}

#[test]
fn systemd_is_notified_of_readiness_watchdog_and_stop() {
    let place = Place::new();
    let systemd = Systemd::new(&place);
    let mut server = systemd.start(&place);
    UnixStream::connect(place.socket()).unwrap();
    systemd.until("WATCHDOG=1");
    systemd.until("WATCHDOG=1");
    signal(&server, "TERM");
    systemd.until("STOPPING=1");
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
}

#[test]
fn invalid_configuration_is_reported_to_systemd_and_not_applied() {
    let place = Place::new();
    let systemd = Systemd::new(&place);
    let mut server = systemd.start(&place);
    place.configure("device-classes: []");
    let reloading = systemd.until("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    systemd.until("READY=1");
    let status = systemd.until("STATUS=LVM works; the previous configuration is in use: ");
    assert!(status.contains("no device class is configured"), "{status}");
    let health = place.lvmd(&["health", "--log-level=off"]).output().unwrap();
    assert!(health.status.success());
    let said = String::from_utf8(health.stdout).unwrap();
    assert!(said.contains("uses its previous configuration"), "{said}");

    place.configure(CLASSES);
    systemd.until("RELOADING=1");
    // Who says something else at this moment may still say the status of before
    while systemd.until("STATUS=") != "STATUS=LVM works" {}
    assert_eq!(server.stop(), Some(0));
}

#[test]
fn sighup_reads_the_configuration_again() {
    let place = Place::new();
    let systemd = Systemd::new(&place);
    let mut server = systemd.start(&place);
    signal(&server, "HUP");
    systemd.until("RELOADING=1");
    systemd.until("READY=1");
    assert_eq!(server.stop(), Some(0));
}

#[tokio::test]
async fn the_health_service_knows_whether_the_configuration_is_in_use() {
    let place = Place::new();
    let mut server = place.serve();
    let mut health = HealthClient::new(channel(&place.socket()).await);
    let request = HealthCheckRequest { service: "configuration".to_owned() };
    let mut states = health.watch(request).await.unwrap().into_inner();
    assert_eq!(states.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    place.configure("device-classes: []");
    assert_eq!(states.message().await.unwrap().unwrap().status(), ServingStatus::NotServing);
    place.configure(CLASSES);
    assert_eq!(states.message().await.unwrap().unwrap().status(), ServingStatus::Serving);
    drop(states);
    assert_eq!(tokio::task::spawn_blocking(move || server.stop()).await.unwrap(), Some(0));
}

/// The server's answer to the beginning of HTTP/2, as this user. Only this thread becomes it. `None` when we are
/// not root.
fn greeted_as(uid: u32, socket: &Path) -> Option<Vec<u8>> {
    let socket = socket.to_owned();
    let greeting = std::thread::spawn(move || {
        let user = rustix::process::Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(user, user, user).ok()?;
        let mut connection = UnixStream::connect(socket).unwrap();
        connection.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        // Refused, this fails or not, as it happens
        drop(connection.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0"));
        let mut answer = vec![0; 9];
        let length = connection.read(&mut answer).unwrap_or(0);
        answer.truncate(length);
        Some(answer)
    });
    greeting.join().unwrap()
}

#[test]
fn only_root_and_the_users_in_the_configuration_are_served() {
    let (listed, stranger) = (4_000_001, 4_000_002);
    let place = Place::new();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
    place.configure(&format!("allowed-uids: [{listed}]\n{CLASSES}"));
    let mut server = place.serve();
    let Some(nothing) = greeted_as(stranger, &place.socket()) else {
        println!("skipped: not root, so there is no other user to connect as");
        return;
    };
    assert_eq!(nothing, b"");
    // SETTINGS, the first frame of a server
    assert_eq!(greeted_as(listed, &place.socket()).unwrap()[3], 4);
    assert_eq!(greeted_as(0, &place.socket()).unwrap()[3], 4);
    assert_eq!(server.stop(), Some(0));
}

#[tokio::test]
async fn a_change_that_runs_at_sigterm_is_finished_and_answered() {
    let place = Place::new();
    let (begun, go) = (place.path("begun"), place.path("go"));
    Command::new("mkfifo").args([&begun, &go]).status().unwrap();
    let report = fs::read_to_string(place.path("lvm")).unwrap();
    place.lvm(&format!(
        "[ $# -gt 0 ] || exit 3\ncase $1 in lvcreate) echo begun >{}; read line <{}; echo 'disk on fire' >&2; exit 5;; \
         esac\n{report}",
        begun.display(),
        go.display()
    ));
    let mut server = place.serve();
    let mut client = LvServiceClient::new(channel(&place.socket()).await);
    let create = CreateLvRequest { name: "b".to_owned(), size_bytes: 1 << 30, ..CreateLvRequest::default() };
    let signalling = async {
        assert_eq!(tokio::fs::read_to_string(&begun).await.unwrap(), "begun\n");
        signal(&server, "TERM");
        let signalled = Instant::now();
        // Waits for the reader: lvcreate, which was not stopped
        tokio::fs::write(&go, "\n").await.unwrap();
        signalled
    };
    let mut answer = pin!(client.create_lv(create));
    let signalled = tokio::select! {
        answer = &mut answer => panic!("lvcreate was not run: {answer:?}"),
        signalled = signalling => signalled,
    };
    let error = answer.await.unwrap_err();
    assert_eq!(error.code(), Code::Internal);
    assert!(error.message().contains("disk on fire"), "{error}");
    assert_eq!(tokio::task::spawn_blocking(move || server.child.wait()).await.unwrap().unwrap().code(), Some(0));
    assert!(signalled.elapsed() < Duration::from_secs(30));
    assert!(!place.socket().exists());
}

#[test]
fn volumes_are_served_while_the_metrics_port_is_taken() {
    let place = Place::new();
    let systemd = Systemd::new(&place);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let mut lvmd = place.lvmd(&["--log-level=off", &format!("--metrics-bind-address={address}")]);
    lvmd.env("NOTIFY_SOCKET", place.path("notify")).env("WATCHDOG_USEC", "400000");
    let mut server = Server { child: lvmd.spawn().unwrap(), log: None };
    systemd.until("READY=1");
    for _ in 0..3 {
        systemd.until("WATCHDOG=1");
    }
    UnixStream::connect(place.socket()).unwrap();
    drop(taken);
    let deadline = Instant::now() + Duration::from_secs(20);
    while TcpStream::connect(&address).is_err() {
        systemd.until("WATCHDOG=1");
        assert!(Instant::now() < deadline, "no metrics on the free port");
    }
    assert_eq!(server.stop(), Some(0));
}

/// Returns an address of a free port.
fn free_address() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string()
}

/// Starts lvmd with probes at this address, and waits until it is ready.
fn start_ready(place: &Place, address: &str) -> Server {
    let probes = format!("--health-probe-bind-address={address}");
    let child = place.lvmd(&["--metrics-bind-address=", "--log-level=off", &probes]).spawn().unwrap();
    let server = Server { child, log: None };
    let deadline = Instant::now() + Duration::from_secs(20);
    while !probe(address).starts_with("HTTP/1.1 200") {
        assert!(Instant::now() < deadline, "{}", probe(address));
        std::thread::sleep(Duration::from_millis(20));
    }
    server
}

/// Returns the answer of `/readyz`; empty where nothing listens.
fn probe(address: &str) -> String {
    let Ok(mut stream) = TcpStream::connect(address) else { return String::new() };
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: lvmd\r\nConnection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

/// With `maxSurge` the second one is ready so that the first one ends.
#[test]
fn readyz_succeeds_while_a_second_lvmd_waits_for_the_socket() {
    let place = Place::new();
    let (first, second) = (free_address(), free_address());
    let mut serving = start_ready(&place, &first);
    let mut waiting = start_ready(&place, &second);
    assert_eq!(serving.stop(), Some(0));
    let deadline = Instant::now() + Duration::from_secs(20);
    while UnixStream::connect(place.socket()).is_err() {
        assert!(Instant::now() < deadline, "the second lvmd does not serve");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(waiting.stop(), Some(0));
}
