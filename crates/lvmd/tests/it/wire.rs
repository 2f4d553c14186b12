//! The bytes on the socket. Nothing here knows the generated types: messages are written and read by field number, as a
//! client of another make does, and paths are spelled out.

use std::path::Path;

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use topolvm_runtime::grpc::{RpcMetrics, serve};
use topolvm_runtime::unix;
use topolvm_testkit::lvm::{EXTENT, FakeVolume};

use crate::node::{GIB, MANAGED, Node};

/// Passes bytes through.
#[derive(Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Vec<u8>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        *self
    }

    fn decoder(&mut self) -> Self {
        *self
    }
}

impl Encoder for Raw {
    type Item = Vec<u8>;
    type Error = Status;

    fn encode(&mut self, message: Vec<u8>, buffer: &mut EncodeBuf<'_>) -> Result<(), Status> {
        buffer.put_slice(&message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, buffer: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(buffer.copy_to_bytes(buffer.remaining())))
    }
}

/// The value of a field: wire type 0 or wire type 2.
#[derive(Clone, Debug, PartialEq)]
enum Field {
    Number(u64),
    Double(f64),
    Bytes(Vec<u8>),
}

fn text(value: &str) -> Field {
    Field::Bytes(value.as_bytes().to_vec())
}

fn varint(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(u8::try_from(value & 0x7f).unwrap() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap());
}

fn message(fields: &[(u64, Field)]) -> Vec<u8> {
    let mut out = Vec::new();
    for (number, field) in fields {
        match field {
            Field::Number(value) => {
                varint(number << 3, &mut out);
                varint(*value, &mut out);
            }
            Field::Double(value) => {
                varint(number << 3 | 1, &mut out);
                out.extend(value.to_le_bytes());
            }
            Field::Bytes(value) => {
                varint(number << 3 | 2, &mut out);
                varint(value.len().try_into().unwrap(), &mut out);
                out.extend(value);
            }
        }
    }
    out
}

fn read_varint(bytes: &mut Bytes) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.get_u8();
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            break;
        }
    }
    value
}

fn read(mut bytes: Bytes) -> Vec<(u64, Field)> {
    let mut fields = Vec::new();
    while bytes.has_remaining() {
        let key = read_varint(&mut bytes);
        let field = match key & 7 {
            0 => Field::Number(read_varint(&mut bytes)),
            2 => {
                let length = read_varint(&mut bytes).try_into().unwrap();
                Field::Bytes(bytes.split_to(length).to_vec())
            }
            1 => Field::Double(bytes.get_f64_le()),
            other => panic!("wire type {other} is in no message of lvmd"),
        };
        fields.push((key >> 3, field));
    }
    fields
}

struct Client(Grpc<Channel>);

impl Client {
    async fn connect(socket: &Path) -> Self {
        let endpoint = Endpoint::try_from(format!("unix:{}", socket.display())).unwrap();
        Self(Grpc::new(endpoint.connect().await.unwrap()))
    }

    async fn call(&mut self, path: &'static str, fields: &[(u64, Field)]) -> Result<Vec<(u64, Field)>, Status> {
        self.0.ready().await.unwrap();
        let request = Request::new(message(fields));
        let response = self.0.unary(request, PathAndQuery::from_static(path), Raw).await?;
        Ok(read(response.into_inner()))
    }
}

/// Serves on a real socket.
async fn served() -> (Node, tempfile::TempDir, Client) {
    serve_node(Node::start().await).await
}

async fn serve_node(node: Node) -> (Node, tempfile::TempDir, Client) {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("lvmd.sock");
    let listener = unix::listen(&socket).await.unwrap();
    let metrics = RpcMetrics::register(&mut prometheus_client::registry::Registry::default());
    let (routes, shutdown) = (lvmd::routes(&node.engine), node.shutdown.clone());
    node.tasks.spawn("gRPC server", async move { serve(listener, routes, &metrics, shutdown).await });
    let client = Client::connect(&socket).await;
    (node, dir, client)
}

#[tokio::test(start_paused = true)]
async fn create_resize_and_remove() {
    let (node, _dir, mut client) = served().await;
    // Number 2 is the size in GiB of clients before 0.36.5 and means nothing.
    let create = [
        (1, text("a")),
        (2, Field::Number(7)),
        (3, text("t1")),
        (3, text("t2")),
        (4, text("ssd")),
        (6, Field::Number(GIB)),
    ];
    let created = client.call("/proto.LVService/CreateLV", &create).await.unwrap();
    let [(1, Field::Bytes(volume))] = &created[..] else { panic!("{created:?}") };
    let expected = [
        (1, text("a")),
        (3, Field::Number(253)),
        (5, text("t1")),
        (5, text("t2")),
        (5, text(MANAGED)),
        (6, Field::Number(GIB)),
        (7, text("/dev/vg-ssd/a")),
        (8, text("-wi-a-----")),
    ];
    assert_eq!(read(volume.clone().into()), expected);

    let resize = [(1, text("a")), (3, text("ssd")), (7, Field::Number(2 * GIB))];
    let resized = client.call("/proto.LVService/ResizeLV", &resize).await.unwrap();
    assert_eq!(resized, [(1, Field::Number(2 * GIB))]);

    let removed = client.call("/proto.LVService/RemoveLV", &[(1, text("a")), (2, text("ssd"))]).await.unwrap();
    assert_eq!(removed, []);
    assert_eq!(node.lvm.volumes("vg-ssd"), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn the_option_class_is_field_5() {
    let (node, _dir, mut client) = served().await;
    let create = [(1, text("a")), (4, text("hdd")), (5, text("mirrored")), (6, Field::Number(GIB))];
    client.call("/proto.LVService/CreateLV", &create).await.unwrap();
    assert!(node.lvm.commands().iter().any(|command| command.contains("--type=raid1")));
}

#[tokio::test(start_paused = true)]
async fn a_negative_size_travels_as_ten_bytes() {
    let (_node, _dir, mut client) = served().await;
    let create = [(1, text("a")), (6, Field::Number(u64::MAX))];
    let status = client.call("/proto.LVService/CreateLV", &create).await.unwrap_err();
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "invalid size -1: it must be a positive multiple of 4096 bytes")
    );
}

#[tokio::test(start_paused = true)]
async fn snapshots_have_a_method() {
    let (node, _dir, mut client) = serve_node(Node::start_thin().await).await;
    node.create("thin", "a", GIB).await.unwrap();
    let snapshot = [
        (1, text("s")),
        (2, text("t1")),
        (3, text("thin")),
        (4, text("a")),
        (5, Field::Number(7)),
        (6, text("ro")),
        (7, Field::Number(2 * GIB)),
    ];
    let made = client.call("/proto.LVService/CreateLVSnapshot", &snapshot).await.unwrap();
    let [(1, Field::Bytes(volume))] = &made[..] else { panic!("{made:?}") };
    let expected = [
        (1, text("s")),
        (3, Field::Number(253)),
        (4, Field::Number(3)),
        (5, text("t1")),
        (5, text(MANAGED)),
        (5, text("topolvm.io/source=a")),
        (6, Field::Number(2 * GIB)),
        (7, text("/dev/vg/s")),
        (8, text("Vri-a-tz--")),
    ];
    assert_eq!(read(volume.clone().into()), expected);
}

#[tokio::test(start_paused = true)]
async fn list_and_free_bytes() {
    let (node, _dir, mut client) = served().await;
    node.lvm.add_volume("vg-hdd", "b", FakeVolume { active: false, ..FakeVolume::thick(GIB) });
    node.notice().await;
    let listed = client.call("/proto.VGService/GetLVList", &[(1, text("hdd"))]).await.unwrap();
    let [(1, Field::Bytes(volume))] = &listed[..] else { panic!("{listed:?}") };
    // Zero is not sent: no device numbers, no tags.
    let expected = [(1, text("b")), (6, Field::Number(GIB)), (7, text("/dev/vg-hdd/b")), (8, text("-wi-------"))];
    assert_eq!(read(volume.clone().into()), expected);

    let free = client.call("/proto.VGService/GetFreeBytes", &[(1, text("hdd"))]).await.unwrap();
    assert_eq!(free, [(1, Field::Number(19 * GIB))]);
}

#[tokio::test(start_paused = true)]
async fn watch_is_a_stream_of_free_bytes_and_items() {
    let (_node, _dir, mut client) = served().await;
    client.0.ready().await.unwrap();
    let path = PathAndQuery::from_static("/proto.VGService/Watch");
    let mut stream = client.0.server_streaming(Request::new(Vec::new()), path, Raw).await.unwrap().into_inner();
    let first = read(stream.message().await.unwrap().unwrap());
    let [(1, Field::Number(free)), (2, Field::Bytes(ssd)), (2, Field::Bytes(hdd)), (100, default)] = &first[..] else {
        panic!("{first:?}")
    };
    assert_eq!((*free, default), (9 * GIB, &text("ssd")));
    let item = |class: &str, free, size| {
        [(1, Field::Number(free)), (2, text(class)), (3, Field::Number(size)), (100, Field::Number(free))]
    };
    let [ssd, hdd] = [ssd, hdd].map(|item| read(item.clone().into()));
    assert_eq!(ssd[..4], item("ssd", 9 * GIB, 10 * GIB));
    assert_eq!(hdd[..4], item("hdd", 20 * GIB, 20 * GIB));
    // Ours, as field 100 is: clients that do not know the field skip it
    let [(101, Field::Bytes(own)), (101, Field::Bytes(mirrored)), (101, Field::Bytes(_))] = &hdd[4..] else {
        panic!("{hdd:?}")
    };
    let layout = |free, stripes, images| [(2, free), (3, stripes), (4, images)].map(|(at, n)| (at, Field::Number(n)));
    assert_eq!(read(own.clone().into()), layout(20 * GIB, 2, 2));
    let mirrored = read(mirrored.clone().into());
    assert_eq!((&mirrored[0], &mirrored[1..]), (&(1, text("mirrored")), &layout(10 * GIB - EXTENT, 1, 2)[..]));

    client.call("/proto.LVService/CreateLV", &[(1, text("a")), (6, Field::Number(GIB))]).await.unwrap();
    let second = read(stream.message().await.unwrap().unwrap());
    assert_eq!(second.first(), Some(&(1, Field::Number(8 * GIB))));
}

#[tokio::test(start_paused = true)]
async fn a_thin_class_has_its_pool_in_field_4() {
    let (node, _dir, mut client) = serve_node(Node::start_thin().await).await;
    node.lvm.edit_volume("vg", "pool", |pool| (pool.data_percent, pool.metadata_percent) = (12.5, 1.25));
    node.notice().await;
    client.0.ready().await.unwrap();
    let path = PathAndQuery::from_static("/proto.VGService/Watch");
    let mut stream = client.0.server_streaming(Request::new(Vec::new()), path, Raw).await.unwrap().into_inner();
    let first = read(stream.message().await.unwrap().unwrap());
    let Some((2, Field::Bytes(thin))) = first.get(2) else { panic!("{first:?}") };
    let item = read(thin.clone().into());
    let Some((4, Field::Bytes(pool))) = item.get(3) else { panic!("{item:?}") };
    // The last is ours: clients that do not know the field skip it
    let expected = [
        (1, Field::Double(12.5)),
        (2, Field::Double(1.25)),
        (3, Field::Number(5 * GIB)),
        (4, Field::Number(4 * GIB)),
        (100, Field::Bytes(b"twi-aotz--".to_vec())),
    ];
    assert_eq!(read(pool.clone().into()), expected);
}

#[tokio::test(start_paused = true)]
async fn codes_and_messages_arrive() {
    let (_node, _dir, mut client) = served().await;
    let status = client.call("/proto.LVService/RemoveLV", &[(1, text("gone")), (2, text("ssd"))]).await.unwrap_err();
    assert_eq!((status.code(), status.message()), (Code::NotFound, "logical volume vg-ssd/gone not found"));
}

/// The only detail: `google.rpc.Status` with one `Any`, which is an `ErrorInfo`.
fn reason(status: &Status) -> (String, String) {
    let details = read(Bytes::copy_from_slice(status.details()));
    let [(1, Field::Number(code)), (2, Field::Bytes(message)), (3, Field::Bytes(any))] = &details[..] else {
        panic!("{details:?}")
    };
    assert_eq!(
        (i32::try_from(*code).unwrap(), message.as_slice()),
        (status.code().into(), status.message().as_bytes())
    );
    let any = read(any.clone().into());
    let [(1, kind), (2, Field::Bytes(info))] = &any[..] else { panic!("{any:?}") };
    assert_eq!(*kind, text("type.googleapis.com/google.rpc.ErrorInfo"));
    let info = read(info.clone().into());
    let [(1, Field::Bytes(reason)), (2, Field::Bytes(domain))] = &info[..] else { panic!("{info:?}") };
    let string = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
    (string(reason), string(domain))
}

#[tokio::test(start_paused = true)]
async fn status_has_a_reason_in_addition_to_the_code() {
    let (node, _dir, mut client) = served().await;
    node.create("ssd", "a", GIB).await.unwrap();
    node.lvm.edit_volume("vg-ssd", "a", |volume| volume.open = true);
    let large = || (6, Field::Number(100 * GIB));
    let requests = [
        ("/proto.LVService/RemoveLV", vec![(1, text("gone")), (2, text("ssd"))], "LV_NOT_FOUND"),
        ("/proto.LVService/RemoveLV", vec![(1, text("b")), (2, text("none"))], "DEVICE_CLASS_UNKNOWN"),
        ("/proto.LVService/RemoveLV", vec![(1, text("a")), (2, text("ssd"))], "LV_IN_USE"),
        ("/proto.LVService/ResizeLV", vec![(1, text("gone")), (3, text("ssd"))], "LV_NOT_FOUND"),
        ("/proto.LVService/CreateLV", vec![(1, text("b")), (4, text("ssd")), large()], "NO_SPACE"),
        ("/proto.LVService/CreateLV", vec![(1, text("a")), (4, text("ssd")), large()], "LV_EXISTS"),
        ("/proto.LVService/CreateLV", vec![(1, text("b")), (5, text("x")), large()], "OPTION_CLASS_UNKNOWN"),
        ("/proto.VGService/GetLVList", vec![(1, text("none"))], "DEVICE_CLASS_UNKNOWN"),
    ];
    for (path, request, expected) in requests {
        let status = client.call(path, &request).await.unwrap_err();
        assert_eq!(reason(&status), (expected.to_owned(), "lvmd.topolvm.io".to_owned()), "{path} {request:?}");
    }
    node.lvm.remove_group("vg-ssd");
    let status = client.call("/proto.LVService/RemoveLV", &[(1, text("a")), (2, text("ssd"))]).await.unwrap_err();
    assert_eq!(reason(&status).0, "VG_NOT_FOUND");
}

#[tokio::test(start_paused = true)]
async fn the_server_ends_while_a_watch_is_open() {
    let (node, dir, mut client) = served().await;
    client.0.ready().await.unwrap();
    let path = PathAndQuery::from_static("/proto.VGService/Watch");
    let mut stream = client.0.server_streaming(Request::new(Vec::new()), path, Raw).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    node.shutdown.cancel();
    let (ended, last) = tokio::join!(node.tasks.wait(), stream.message());
    ended.unwrap();
    assert_eq!(last.unwrap_err().code(), Code::Unavailable);
    assert!(!dir.path().join("lvmd.sock").exists());
}
