//! The client of lvmd, and an lvmd that dies.

use std::path::Path;

use lvmd_client::LvmdClient;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::oneshot;
use tonic::Code;
use topolvm_proto::lvmd::CreateLvRequest;
use topolvm_runtime::grpc::GrpcCode as _;
use topolvm_testkit::lvm::FakeLvm;

use crate::lvmd_process::{LvmdProcess, ONE_CLASS, VG, unreachable_lvmd};

fn new_lv(size_bytes: i64) -> CreateLvRequest {
    CreateLvRequest { name: "u1".to_owned(), size_bytes, ..CreateLvRequest::default() }
}

#[tokio::test]
async fn an_lvmd_that_is_not_there_may_come_back() {
    let error = unreachable_lvmd().create(new_lv(1 << 30)).await.unwrap_err();
    assert!(error.is_transient(), "{error}");
    assert_eq!(error.code(), Code::Unavailable);
}

/// Forwards one connection until `cut` is sent.
async fn pass_on(listener: UnixListener, lvmd: &Path, cut: oneshot::Receiver<()>) {
    let (mut client, _) = listener.accept().await.unwrap();
    let mut server = UnixStream::connect(lvmd).await.unwrap();
    tokio::select! {
        _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
        _ = cut => {}
    }
}

#[tokio::test]
async fn an_lvmd_that_dies_in_the_middle_of_a_change_may_come_back() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("lvmd.sock");
    let lvm = FakeLvm::new().with_group(VG, 10 << 30);
    let _lvmd = LvmdProcess::start(&lvm, ONE_CLASS).await.listen(&socket).await;
    let frail = dir.path().join("frail.sock");
    let (cut, is_cut) = oneshot::channel();
    let listener = UnixListener::bind(&frail).unwrap();
    let client = LvmdClient::connect(&frail).unwrap();

    let mut change = lvm.pause("lvcreate");
    let dying = async {
        change.reached().await;
        cut.send(()).unwrap();
    };
    let (error, (), ()) = tokio::join!(client.create(new_lv(1 << 30)), pass_on(listener, &socket, is_cut), dying);
    let error = error.unwrap_err();
    assert!(error.is_transient(), "{error:?}");
}

#[tokio::test]
async fn a_refusal_keeps_its_code_and_words() {
    let lvm = FakeLvm::new().with_group(VG, 10 << 30);
    let lvmd = LvmdProcess::start(&lvm, ONE_CLASS).await;
    let error = lvmd.client().create(new_lv(20 << 30)).await.unwrap_err();
    assert!(!error.is_transient());
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.detail().starts_with("no enough space"), "{error}");
}
