//! Writes objects into etcd, beneath the API server, which would take many minutes for as many. The messages are those
//! of etcd's gRPC API.

use anyhow::{Context as _, Result};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic_prost::ProstCodec;

/// Objects that are written at once: the most that etcd takes.
const BATCH: usize = 128;
const TXN: &str = "/etcdserverpb.KV/Txn";

/// A connection to etcd.
pub(super) struct Etcd {
    kv: Grpc<Channel>,
    batch: Vec<RequestOp>,
}

/// etcd's `TxnRequest`, without conditions.
#[derive(Clone, PartialEq, prost::Message)]
struct TxnRequest {
    #[prost(message, repeated, tag = "2")]
    success: Vec<RequestOp>,
}

/// etcd's `RequestOp`, for puts alone.
#[derive(Clone, PartialEq, prost::Message)]
struct RequestOp {
    #[prost(message, optional, tag = "2")]
    request_put: Option<PutRequest>,
}

/// etcd's `PutRequest`.
#[derive(Clone, PartialEq, prost::Message)]
struct PutRequest {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

/// etcd's `TxnResponse`.
#[derive(Clone, PartialEq, prost::Message)]
struct TxnResponse {
    #[prost(bool, tag = "2")]
    succeeded: bool,
}

impl Etcd {
    /// Connects inside the namespace of this thread.
    pub(super) async fn connect(url: &'static str) -> Result<Self> {
        let channel = Endpoint::from_static(url).connect().await.context("connect to etcd")?;
        Ok(Self { kv: Grpc::new(channel), batch: Vec::new() })
    }

    /// Writes an object of the API server, at the latest with [`flush`](Self::flush).
    pub(super) async fn put(&mut self, key: String, value: String) -> Result<()> {
        self.batch.push(RequestOp { request_put: Some(PutRequest { key, value }) });
        if self.batch.len() == BATCH { self.flush().await } else { Ok(()) }
    }

    /// Writes all that was put.
    pub(super) async fn flush(&mut self) -> Result<()> {
        let request = TxnRequest { success: std::mem::take(&mut self.batch) };
        self.kv.ready().await.context("wait for etcd")?;
        let codec = ProstCodec::<TxnRequest, TxnResponse>::default();
        let path = PathAndQuery::from_static(TXN);
        self.kv.unary(tonic::Request::new(request), path, codec).await.context("write to etcd").map(drop)
    }
}
