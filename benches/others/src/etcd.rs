//! etcd, over gRPC.
//!
//! **Own names**: a transaction that puts the key, with the client's lease, if it does not exist; delete it.
//!
//! **One name**: what etcd's own client library does (`concurrency.Mutex`, which is also behind `etcdctl lock`). Every client puts a key of its
//! own under the name; the key that was created first holds; everybody else watches the last one created before its own, from the revision at
//! which it was seen, until it is deleted. A watch from a revision that has passed by the time it arrives is served by a loop of
//! etcd's that runs ten times a second; that is what bounds the figure.
//!
//! Calls are unary and wait for each other: etcd keeps no order between calls of one connection.

use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;
use tonic::transport::{Channel, Endpoint};

use self::pb::kv_client::KvClient;
use self::pb::lease_client::LeaseClient;
use self::pb::maintenance_client::MaintenanceClient;
use self::pb::watch_client::WatchClient;
use self::pb::watch_request::RequestUnion;
use crate::Result;
use crate::work::{Client, Workload};

#[allow(unused_qualifications, reason = "as generated")]
mod pb {
    tonic::include_proto!("etcdserverpb");
}

/// Longer than a measurement, so that it needs no renewal.
const LEASE_S: i64 = 3_600;

/// One client: a lease, and a connection of its own.
pub struct Etcd {
    kv: KvClient<Channel>,
    leases: LeaseClient<Channel>,
    lease: i64,
    /// The own name, or the name that is shared and a slash.
    prefix: Vec<u8>,
    /// The key that stands for this client.
    key: Vec<u8>,
    watches: Option<Watches>,
}

/// The one stream of a client's watches.
struct Watches {
    ask: mpsc::Sender<pb::WatchRequest>,
    answers: Streaming<pb::WatchResponse>,
}

/// Whether it answers, and says that it leads.
pub async fn leads(server: &str) -> Result<bool> {
    let mut maintenance = MaintenanceClient::new(channel(server).await?);
    let status = maintenance.status(pb::StatusRequest {}).await?.into_inner();
    if status.leader == 0 {
        return Err("no leader is known".into());
    }
    Ok(status.header.is_some_and(|header| header.member_id == status.leader))
}

impl Client for Etcd {
    async fn connect(server: &str, number: u32, workload: Workload) -> Result<Self> {
        let channel = channel(server).await?;
        let (kv, mut leases) = (KvClient::new(channel.clone()), LeaseClient::new(channel.clone()));
        let lease = leases.lease_grant(pb::LeaseGrantRequest { ttl: LEASE_S }).await?.into_inner().id;
        let mut prefix = workload.name(number).into_bytes();
        let mut key = prefix.clone();
        let mut watches = None;
        if workload == Workload::Contended {
            prefix.push(b'/');
            key = [prefix.as_slice(), format!("{lease:x}").as_bytes()].concat();
            watches = Some(Watches::open(channel).await?);
        }
        Ok(Self { kv, leases, lease, prefix, key, watches })
    }

    async fn acquired(&mut self) -> Result<()> {
        let own = self.put_if_absent().await?;
        if self.watches.is_none() {
            return Ok(());
        }
        let mut known = own.first;
        // The transaction has already looked who is first.
        while known != own.revision {
            let Some((before, seen_at)) = self.last_before(own.revision).await? else { return Ok(()) };
            if let Some(watches) = &mut self.watches {
                watches.deleted(before, seen_at).await?;
            }
            known = 0;
        }
        Ok(())
    }

    async fn released(&mut self) -> Result<()> {
        let request = pb::DeleteRangeRequest { key: self.key.clone() };
        match self.kv.delete_range(request).await?.into_inner().deleted {
            1 => Ok(()),
            _ => Err("not released".into()),
        }
    }

    async fn close(mut self) -> Result<()> {
        self.leases.lease_revoke(pb::LeaseRevokeRequest { id: self.lease }).await?;
        Ok(())
    }
}

/// When the own key was created, and when the first of all under the name was.
struct Turn {
    revision: i64,
    first: i64,
}

impl Etcd {
    async fn put_if_absent(&mut self) -> Result<Turn> {
        use pb::compare::{Result as Is, Target, TargetUnion};
        use pb::request_op::Request;

        let absent = pb::Compare {
            result: Is::Equal.into(),
            target: Target::Create.into(),
            key: self.key.clone(),
            target_union: Some(TargetUnion::CreateRevision(0)),
        };
        let put = pb::PutRequest { key: self.key.clone(), value: Vec::new(), lease: self.lease };
        let mut success = vec![pb::RequestOp { request: Some(Request::RequestPut(put)) }];
        if self.watches.is_some() {
            let first = self.under_the_name(pb::range_request::SortOrder::Ascend, 0);
            success.push(pb::RequestOp { request: Some(Request::RequestRange(first)) });
        }
        let answer = self.kv.txn(pb::TxnRequest { compare: vec![absent], success }).await?.into_inner();
        if !answer.succeeded {
            return Err("not acquired: the key is there".into());
        }
        let revision = answer.header.map_or(0, |header| header.revision);
        let first = answer.responses.into_iter().find_map(|response| match response.response {
            Some(pb::response_op::Response::ResponseRange(range)) => {
                range.kvs.first().map(|kv| kv.create_revision)
            }
            _ => None,
        });
        Ok(Turn { revision, first: first.unwrap_or(revision) })
    }

    /// The last key under the name that was created before `revision`, and the revision at which this was so.
    async fn last_before(&mut self, revision: i64) -> Result<Option<(Vec<u8>, i64)>> {
        let request = self.under_the_name(pb::range_request::SortOrder::Descend, revision - 1);
        let answer = self.kv.range(request).await?.into_inner();
        let seen_at = answer.header.map_or(0, |header| header.revision);
        Ok(answer.kvs.into_iter().next().map(|kv| (kv.key, seen_at)))
    }

    /// The first key in the order of creation; created at `newest` at most, unless that is 0.
    fn under_the_name(&self, order: pb::range_request::SortOrder, newest: i64) -> pb::RangeRequest {
        // The end of a prefix: its last byte, a slash here, and one more.
        let mut range_end = self.prefix.clone();
        if let Some(last) = range_end.last_mut() {
            *last += 1;
        }
        pb::RangeRequest {
            key: self.prefix.clone(),
            range_end,
            limit: 1,
            sort_order: order.into(),
            sort_target: pb::range_request::SortTarget::Create.into(),
            max_create_revision: newest,
        }
    }
}

impl Watches {
    async fn open(channel: Channel) -> Result<Self> {
        // One watch at a time: one request to cancel the last, one for the next.
        let (ask, asked) = mpsc::channel(2);
        // etcd opens its side of the stream with its first answer: so something must be asked. Of this key nothing is ever heard.
        let create = pb::WatchCreateRequest { key: b"bench-nothing".to_vec(), start_revision: 0 };
        ask.send(pb::WatchRequest { request_union: Some(RequestUnion::CreateRequest(create)) }).await?;
        let mut answers = WatchClient::new(channel).watch(ReceiverStream::new(asked)).await?.into_inner();
        answers.message().await?.ok_or("the watches ended")?;
        Ok(Self { ask, answers })
    }

    /// Returns when `key`, which was there at `revision`, is deleted.
    async fn deleted(&mut self, key: Vec<u8>, revision: i64) -> Result<()> {
        let create = pb::WatchCreateRequest { key, start_revision: revision };
        self.ask(RequestUnion::CreateRequest(create)).await?;
        let mut watch = None;
        loop {
            let answer = self.answers.message().await?.ok_or("the watches ended")?;
            if answer.created {
                watch = Some(answer.watch_id);
            } else if Some(answer.watch_id) == watch {
                if answer.canceled {
                    return Err("a watch was cancelled".into());
                }
                if answer.events.iter().any(|event| event.r#type() == pb::event::EventType::Delete) {
                    let cancel = pb::WatchCancelRequest { watch_id: answer.watch_id };
                    return self.ask(RequestUnion::CancelRequest(cancel)).await;
                }
            } // else: of a watch before this one
        }
    }

    async fn ask(&mut self, request: RequestUnion) -> Result<()> {
        Ok(self.ask.send(pb::WatchRequest { request_union: Some(request) }).await?)
    }
}

async fn channel(server: &str) -> Result<Channel> {
    Ok(Endpoint::from_shared(format!("http://{server}"))?.tcp_nodelay(true).connect().await?)
}
