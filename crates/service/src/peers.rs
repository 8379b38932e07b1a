//! Requests between nodes: one TCP connection in each direction, with many requests in flight.
//!
//! ```text
//! preface   C1 'c' 'o' 'n' 'p' 'e' 'r' VERSION             the caller first, then the other
//! request   LENGTH (4, big-endian)  NUMBER (8)  KIND (1)  BODY      the reply has the same number and kind
//! ```
//!
//! Kinds: 0 is consensus ([`Replica::answer`] makes the reply). 1 is keep-alives that a follower forwards to
//! the leader. 2 is requests of `membership::join`. Bodies are postcard; each names its cluster, except the
//! request of a new node. A reply of kind 255 rejects a request with a text. With number 0 it is the last
//! frame of the connection.
//!
//! **Rules.** A node connects when it sends a request and has no connection. A break fails all requests of
//! the connection; the next request connects again. This module never sends a request twice, because only the
//! caller knows whether that is safe.
//!
//! **Bounds.** [`MAX_BYTES`] per frame; [`MAX_CALLS`] requests in flight per connection;
//! [`MAX_IN_FLIGHT_BYTES`] of requests that a server works on. Over the first two, a request fails at once.
//! Over the third, the server stops reading until it has replied to some. An incomplete frame must progress
//! within [`PROGRESS_LIMIT`], or the connection closes.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use conclave_core::SessionId;
use conclave_wire::frame::{self, PEER_MAGIC, VERSION};
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::driver::NodeHandle;
use crate::membership::join::JoinServer;
#[cfg(doc)]
use crate::replica::Replica;
use crate::replica::{Member, NodeId, Transport};
use conclave_node::leases::KeepAliveResult;

/// The most bytes of one frame. A larger request fails; a larger frame from the other node closes the
/// connection.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// The most requests in flight on one connection. A further request fails at once.
pub const MAX_CALLS: usize = 1024;
/// The most bytes of requests that a server works on for one connection. Above it, the server reads nothing
/// more.
pub const MAX_IN_FLIGHT_BYTES: usize = 2 * MAX_BYTES;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// The longest time that sent data may stay unacknowledged; the kernel then closes the connection. Otherwise
/// TCP retransmits at growing intervals and detects the return of a node only minutes later.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(3);
/// The longest pause within a frame. An incomplete frame takes memory and blocks the frames after it, so the
/// connection is then closed.
pub const PROGRESS_LIMIT: Duration = Duration::from_secs(30);
const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(5);
const HEADER: usize = 9;

const CONSENSUS: u8 = 0;
const KEEP_ALIVE: u8 = 1;
pub(crate) const JOINING: u8 = 2;
const REFUSED: u8 = 255;

/// The longest wait for the other end to read the last frame.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

/// A dialer of connections to other nodes: [`Tcp`], or that of a test, which can cut connections.
pub trait Dial: Send + Sync + 'static {
    /// Connects to `address`. The caller sets a time limit.
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<TcpStream>>;
}

/// The TCP dialer of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<TcpStream>> {
        let address = address.to_owned();
        Box::pin(async move { TcpStream::connect(address).await })
    }
}

/// The connections of this node to other nodes.
pub struct Peers {
    cluster: u128,
    dial: Arc<dyn Dial>,
    /// The queues of requests, by address. A closed one belongs to a broken connection.
    links: Mutex<HashMap<String, mpsc::Sender<Rpc>>>,
}

#[derive(Debug)]
struct Rpc {
    kind: u8,
    body: Vec<u8>,
    answer: Reply,
}

/// The sender for the reply to a request, or for its error.
type Reply = oneshot::Sender<io::Result<Vec<u8>>>;
/// The requests of one connection that have no reply yet, by number.
type Pending = Arc<Mutex<HashMap<u64, Reply>>>;

impl Peers {
    /// Creates the set of connections to nodes of `cluster`, without any connection yet.
    pub fn new(cluster: u128, dial: Arc<dyn Dial>) -> Self {
        Self { cluster, dial, links: Mutex::default() }
    }

    /// Forwards keep-alives to the leader and returns the result of each.
    pub(crate) async fn keep_alive(
        &self,
        to: NodeId,
        member: &Member,
        sessions: &[SessionId],
    ) -> io::Result<Vec<KeepAliveResult>> {
        let body = postcard::to_stdvec(&(self.cluster, to, sessions)).map_err(invalid)?;
        let answer =
            tokio::time::timeout(KEEP_ALIVE_LIMIT, self.call_address(&member.address, KEEP_ALIVE, body))
                .await??;
        Ok(answer.into_iter().map(kept_from_byte).collect())
    }

    fn call_address(
        &self,
        address: &str,
        kind: u8,
        body: Vec<u8>,
    ) -> impl Future<Output = io::Result<Vec<u8>>> + use<> {
        let link = self.link(address);
        async move {
            let (answer, answered) = oneshot::channel();
            link.send(Rpc { kind, body, answer }).await.map_err(|_| unreachable())?;
            answered.await.map_err(|_| io::Error::from(io::ErrorKind::NotConnected))?
        }
    }

    fn link(&self, address: &str) -> mpsc::Sender<Rpc> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(address).filter(|link| !link.is_closed()) {
            return link.clone();
        }
        let (link, calls) = mpsc::channel(MAX_CALLS);
        tokio::spawn(run_connection(self.dial.clone(), address.to_owned(), calls));
        links.insert(address.to_owned(), link.clone());
        link
    }
}

impl Transport for Peers {
    fn call(&self, _: NodeId, member: &Member, request: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(self.call_address(&member.address, CONSENSUS, request))
    }
}

/// Connects and carries requests until the connection breaks. Requests already sent then fail, because their
/// reply senders are dropped.
async fn run_connection(dial: Arc<dyn Dial>, address: String, mut calls: mpsc::Receiver<Rpc>) {
    let connected = tokio::time::timeout(CONNECT_LIMIT, connect(&*dial, &address)).await;
    if let Ok(Ok((reader, writer))) = connected {
        carry(reader, writer, &mut calls).await;
    }
    calls.close();
    while let Ok(Rpc { answer, .. }) = calls.try_recv() {
        // The caller may have stopped waiting.
        drop(answer.send(Err(unreachable())));
    }
}

async fn carry(reader: OwnedReadHalf, mut writer: OwnedWriteHalf, calls: &mut mpsc::Receiver<Rpc>) {
    let pending = Pending::default();
    let mut reading = tokio::spawn(read_answers(reader, pending.clone()));
    let (mut number, mut batch, mut output) = (0_u64, Vec::new(), BytesMut::new());
    loop {
        tokio::select! {
            count = calls.recv_many(&mut batch, 64) => if count == 0 { break },
            _ = &mut reading => return,
        }
        put_requests(&mut output, &mut number, &pending, batch.drain(..));
        if writer.write_all(&output).await.is_err() {
            break;
        }
        output.clear();
    }
    reading.abort();
}

/// Encodes the requests that are within the bounds. The others fail.
fn put_requests(
    output: &mut BytesMut,
    number: &mut u64,
    pending: &Pending,
    batch: impl Iterator<Item = Rpc>,
) {
    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    // Requests whose caller stopped waiting do not count.
    pending.retain(|_, answer| !answer.is_closed());
    for Rpc { kind, body, answer } in batch {
        if body.len() > MAX_BYTES - HEADER {
            let why = format!("a message of {} bytes is larger than a frame", body.len());
            drop(answer.send(Err(io::Error::new(io::ErrorKind::InvalidInput, why))));
        } else if pending.len() >= MAX_CALLS {
            let why = "too many requests are in flight to this node";
            drop(answer.send(Err(io::Error::new(io::ErrorKind::WouldBlock, why))));
        } else {
            *number += 1;
            pending.insert(*number, answer);
            put_frame(output, *number, kind, &body);
        }
    }
}

/// Returns the error for a request that was not sent.
fn unreachable() -> io::Error {
    io::ErrorKind::HostUnreachable.into()
}

/// Sends one request on its own connection, also to a node of another cluster, and returns the reply.
pub(crate) async fn call_once(dial: &dyn Dial, address: &str, kind: u8, body: &[u8]) -> io::Result<Vec<u8>> {
    let connected = tokio::time::timeout(CONNECT_LIMIT, connect(dial, address)).await;
    let (mut reader, mut writer) = connected.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    let mut output = BytesMut::new();
    put_frame(&mut output, 1, kind, body);
    writer.write_all(&output).await?;
    match read_frame(&mut reader, &mut BytesMut::new(), PROGRESS_LIMIT).await? {
        Some((_, REFUSED, why)) => Err(refused(&why)),
        Some((1, answered, body)) if answered == kind => Ok(body),
        Some(_) => Err(invalid("an answer to another question")),
        None => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

async fn connect(dial: &dyn Dial, address: &str) -> io::Result<(OwnedReadHalf, OwnedWriteHalf)> {
    let mut stream = dial.dial(address).await?;
    stream.set_nodelay(true)?;
    let limit = u32::try_from(UNACKNOWLEDGED_LIMIT.as_millis()).unwrap_or(u32::MAX);
    rustix::net::sockopt::set_tcp_user_timeout(&stream, limit)?;
    stream.write_all(&frame::preface(PEER_MAGIC)).await?;
    let mut preface = [0; frame::PREFACE_BYTES];
    stream.read_exact(&mut preface).await?;
    match preface {
        [magic @ .., VERSION] if magic == PEER_MAGIC => Ok(stream.into_split()),
        [magic @ .., version] if magic == PEER_MAGIC => {
            Err(invalid(format!("it uses version {version} between nodes, and this node uses {VERSION}")))
        }
        _ => Err(invalid("the address does not belong to a conclave node")),
    }
}

async fn read_answers(mut reader: OwnedReadHalf, pending: Pending) {
    let mut input = BytesMut::new();
    while let Ok(Some((number, kind, body))) = read_frame(&mut reader, &mut input, PROGRESS_LIMIT).await {
        let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
        let answer = if kind == REFUSED { Err(refused(&body)) } else { Ok(body) };
        // The caller may have stopped waiting.
        match (pending.remove(&number), answer) {
            (Some(reply), answer) => drop(reply.send(answer)),
            (None, Err(why)) if number == 0 => {
                pending
                    .drain()
                    .for_each(|(_, reply)| drop(reply.send(Err(io::Error::other(why.to_string())))));
            }
            (None, _) => {}
        }
    }
    pending.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Serves the requests of another node until the connection ends. The caller has read the preface.
pub(crate) async fn serve(
    mut stream: TcpStream,
    version: u8,
    join_server: Arc<JoinServer>,
    node_handle: NodeHandle,
) -> io::Result<()> {
    stream.write_all(&frame::preface(PEER_MAGIC)).await?;
    if version != VERSION {
        let mut output = BytesMut::new();
        let why = format!("version {version} is not supported here; this node uses {VERSION}");
        put_frame(&mut output, 0, REFUSED, why.as_bytes());
        stream.write_all(&output).await?;
        return stream.shutdown().await;
    }
    let (mut reader, mut writer) = stream.into_split();
    let (answers, mut answered) = mpsc::channel::<(u64, u8, Vec<u8>)>(MAX_CALLS);
    let writing = tokio::spawn(async move {
        let (mut batch, mut output) = (Vec::new(), BytesMut::new());
        while answered.recv_many(&mut batch, 64).await > 0 {
            for (number, kind, body) in batch.drain(..) {
                put_frame(&mut output, number, kind, &body);
            }
            if writer.write_all(&output).await.is_err() {
                return;
            }
            output.clear();
        }
    });
    let in_flight = Arc::new(Semaphore::new(MAX_IN_FLIGHT_BYTES));
    let mut input = BytesMut::new();
    let ended = loop {
        let (number, kind, body) = match read_frame(&mut reader, &mut input, PROGRESS_LIMIT).await {
            Ok(Some(question)) => question,
            Ok(None) => break Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                // The rest of the stream cannot be decoded. Send the reason as the last frame.
                drop(answers.send((0, REFUSED, error.to_string().into_bytes())).await);
                drop(answers);
                drop(tokio::time::timeout(CLOSE_TIMEOUT, writing).await);
                return Err(error);
            }
            Err(error) => break Err(error),
        };
        // Each request costs at least this, so that at most MAX_CALLS are in progress.
        let cost = u32::try_from(body.len().max(MAX_IN_FLIGHT_BYTES / MAX_CALLS)).unwrap_or(u32::MAX);
        let Ok(permit) = in_flight.clone().acquire_many_owned(cost).await else { break Ok(()) };
        let (join_server, node_handle, answers) = (join_server.clone(), node_handle.clone(), answers.clone());
        tokio::spawn(async move {
            let (kind, body) = match answer(&join_server, &node_handle, kind, &body).await {
                Ok(body) => (kind, body),
                Err(why) => (REFUSED, why.into_bytes()),
            };
            // An error means that the connection has ended.
            drop(answers.send((number, kind, body)).await);
            drop(permit);
        });
    };
    writing.abort();
    ended
}

/// Returns the reply to one request, or the reason of the rejection.
async fn answer(
    join_server: &JoinServer,
    node_handle: &NodeHandle,
    kind: u8,
    body: &[u8],
) -> Result<Vec<u8>, String> {
    let not_understood = |error: postcard::Error| format!("the message cannot be read: {error}");
    match kind {
        CONSENSUS => Ok(join_server.replica.answer(body).await),
        KEEP_ALIVE => {
            let (cluster, to, sessions): (u128, NodeId, Vec<SessionId>) =
                postcard::from_bytes(body).map_err(not_understood)?;
            let me = join_server.replica.identity();
            if cluster != me.cluster {
                return Err("a message of another cluster".to_owned());
            }
            if to != me.node {
                return Err(format!("the message is for node {to}, but this is node {}", me.node));
            }
            Ok(node_handle.keep_alive(sessions).await.into_iter().map(kept_to_byte).collect())
        }
        JOINING => {
            let request = postcard::from_bytes(body).map_err(not_understood)?;
            postcard::to_stdvec(&join_server.answer(request).await).map_err(|error| error.to_string())
        }
        _ => Err(format!("messages of kind {kind} are unknown")),
    }
}

/// Returns the next frame, or `None` at the end of the stream. An incomplete frame must receive bytes within
/// `limit`; an idle connection has no limit.
async fn read_frame(
    reader: &mut OwnedReadHalf,
    input: &mut BytesMut,
    limit: Duration,
) -> io::Result<Option<(u64, u8, Vec<u8>)>> {
    loop {
        if let Some(header) = input.first_chunk::<4>() {
            let bytes = u32::from_be_bytes(*header) as usize;
            if !(HEADER..=MAX_BYTES).contains(&bytes) {
                return Err(invalid(format!("a frame of {bytes} bytes is too large")));
            }
            if input.len() >= 4 + bytes {
                input.advance(4);
                let mut frame = input.split_to(bytes);
                return Ok(Some((frame.get_u64(), frame.get_u8(), frame.to_vec())));
            }
            // Reserve in steps: the length in the header may be false, and must not allocate memory by
            // itself.
            input.reserve((4 + bytes - input.len()).min(1024 * 1024));
        }
        let is_in_midst = !input.is_empty();
        let read = reader.read_buf(input);
        let count = if is_in_midst { tokio::time::timeout(limit, read).await?? } else { read.await? };
        if count == 0 {
            return Ok(None);
        }
    }
}

fn put_frame(out: &mut BytesMut, number: u64, kind: u8, body: &[u8]) {
    let bytes = u32::try_from(HEADER + body.len()).unwrap_or(u32::MAX);
    out.reserve(4 + HEADER + body.len());
    out.put_u32(bytes);
    out.put_u64(number);
    out.put_u8(kind);
    out.put_slice(body);
}

fn kept_to_byte(kept: KeepAliveResult) -> u8 {
    match kept {
        KeepAliveResult::NotLeading => 0,
        KeepAliveResult::Extended => 1,
        KeepAliveResult::Ending => 2,
        KeepAliveResult::Unknown => 3,
    }
}

fn kept_from_byte(byte: u8) -> KeepAliveResult {
    match byte {
        1 => KeepAliveResult::Extended,
        2 => KeepAliveResult::Ending,
        3 => KeepAliveResult::Unknown,
        _ => KeepAliveResult::NotLeading,
    }
}

fn refused(why: &[u8]) -> io::Error {
    io::Error::other(format!("refused: {}", String::from_utf8_lossy(why)))
}

fn invalid(what: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    /// Accepts one connection and replies to `answers` requests in reverse order, with their bodies reversed.
    async fn answer_backwards(listener: &TcpListener, answers: usize) {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut preface = [0; frame::PREFACE_BYTES];
        stream.read_exact(&mut preface).await.unwrap();
        assert_eq!(preface, frame::preface(PEER_MAGIC));
        stream.write_all(&preface).await.unwrap();
        let (mut reader, mut writer) = stream.into_split();
        let (mut input, mut output, mut questions) = (BytesMut::new(), BytesMut::new(), Vec::new());
        while questions.len() < answers {
            questions.push(read_frame(&mut reader, &mut input, PROGRESS_LIMIT).await.unwrap().unwrap());
        }
        for (number, kind, mut body) in questions.into_iter().rev() {
            body.reverse();
            put_frame(&mut output, number, kind, &body);
        }
        writer.write_all(&output).await.unwrap();
    }

    #[tokio::test]
    async fn answers_find_their_questions_in_any_order() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = Peers::new(7, Arc::new(Tcp));
        let call = |body: &[u8]| peers.call_address(&address, CONSENSUS, body.to_vec());
        let (one, two, ()) = tokio::join!(call(b"abc"), call(b"xyz"), answer_backwards(&listener, 2));
        assert_eq!((one.unwrap(), two.unwrap()), (b"cba".to_vec(), b"zyx".to_vec()));
    }

    #[tokio::test]
    async fn a_call_to_an_unreachable_node_is_reported_as_not_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let peers = Peers::new(7, Arc::new(Tcp));
        for _ in 0..2 {
            let asked = tokio::join!(
                peers.call_address(&address, CONSENSUS, b"abc".to_vec()),
                peers.call_address(&address, CONSENSUS, b"xyz".to_vec())
            );
            for asked in [asked.0, asked.1] {
                assert_eq!(asked.unwrap_err().kind(), io::ErrorKind::HostUnreachable);
            }
        }
    }

    #[tokio::test]
    async fn a_broken_connection_fails_its_questions_and_the_next_makes_a_new_one() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let peers = Peers::new(7, Arc::new(Tcp));
        let (lost, ()) =
            tokio::join!(peers.call_address(&address, CONSENSUS, vec![1]), answer_backwards(&listener, 0));
        assert_eq!(lost.unwrap_err().kind(), io::ErrorKind::NotConnected);
        let again = async {
            loop {
                // Requests fail until the broken connection is detected.
                if let Ok(answer) = peers.call_address(&address, CONSENSUS, vec![1, 2]).await {
                    return answer;
                }
            }
        };
        let (answer, ()) = tokio::join!(again, answer_backwards(&listener, 1));
        assert_eq!(answer, [2, 1]);
    }

    #[tokio::test]
    async fn requests_over_the_bounds_fail_at_once_with_a_reason() {
        let pending = Pending::default();
        let (mut output, mut number) = (BytesMut::new(), 0);
        let call = |bytes: usize| {
            let (answer, answered) = oneshot::channel();
            (Rpc { kind: CONSENSUS, body: vec![0; bytes], answer }, answered)
        };
        let (calls, mut waiting): (Vec<_>, Vec<_>) = (0..=MAX_CALLS).map(|_| call(1)).unzip();
        put_requests(&mut output, &mut number, &pending, calls.into_iter());
        let refused = waiting.pop().unwrap().await.unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "too many requests are in flight to this node");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(waiting.iter_mut().all(|answered| answered.try_recv().is_err()));
        // A caller that stops waiting frees its place.
        waiting.pop();
        let ((calls, mut waiting), before) =
            ([call(1)].into_iter().unzip::<_, _, Vec<_>, Vec<_>>(), output.len());
        put_requests(&mut output, &mut number, &pending, calls.into_iter());
        assert!(waiting[0].try_recv().is_err() && output.len() > before);
        let (long, answered) = call(MAX_BYTES - HEADER + 1);
        put_requests(&mut output, &mut number, &pending, [long].into_iter());
        assert_eq!(answered.await.unwrap().unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }

    async fn connected() -> (TcpStream, OwnedReadHalf, OwnedWriteHalf) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (there, accepted) =
            tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
        let (reader, writer) = accepted.unwrap().0.into_split();
        (there.unwrap(), reader, writer)
    }

    #[tokio::test]
    async fn a_length_out_of_range_is_refused() {
        let (mut there, mut reader, _writer) = connected().await;
        there.write_all(&u32::MAX.to_be_bytes()).await.unwrap();
        let error = read_frame(&mut reader, &mut BytesMut::new(), PROGRESS_LIMIT).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::InvalidData);
    }

    #[tokio::test]
    async fn an_incomplete_frame_times_out_and_an_idle_node_does_not() {
        let (mut there, mut reader, _writer) = connected().await;
        let mut input = BytesMut::new();
        let read = read_frame(&mut reader, &mut input, Duration::from_millis(1));
        let sent = async {
            // The reader is waiting, and no frame has begun.
            tokio::task::yield_now().await;
            there.write_all(&[0, 0, 0, 200, 1]).await.unwrap();
        };
        let (read, ()) = tokio::join!(read, sent);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(input.len(), 5);
    }

    #[test]
    fn the_result_of_a_keep_alive_survives_encoding() {
        for kept in [
            KeepAliveResult::NotLeading,
            KeepAliveResult::Extended,
            KeepAliveResult::Ending,
            KeepAliveResult::Unknown,
        ] {
            assert_eq!(kept_from_byte(kept_to_byte(kept)), kept);
        }
    }
}
