//! Between nodes: one TCP connection to each, many questions on it at once.
//!
//! ```text
//! preface   C1 'c' 'o' 'n' 'p' 'e' 'r' VERSION             the caller first, then the other
//! question  LENGTH (4, big-endian)  NUMBER (8)  KIND (1)  BODY      answered by a frame of the same number and kind
//! ```
//!
//! Kinds: 0 is consensus ([`Replica::answer`] makes the answer), 1 are keep-alives of clients of a node that does not lead,
//! 2 is about belonging to the cluster (`joining`). The bodies are postcard, and name the cluster they are meant for. A
//! question that is refused is answered by kind 255 with the reason as text; under number 0 that is the last word on
//! the connection.
//!
//! **Rules.** A connection is made when it is needed. When it breaks, every question on it fails and the next makes a new
//! one; nothing is sent twice from here, since only the caller knows whether that is right.
//!
//! **Bounds.** [`MAX_BYTES`] a frame, [`MAX_CALLS`] questions under way on a connection, with [`MAX_IN_FLIGHT_BYTES`] in all.
//! A question beyond the first two fails at once; one beyond the last is read when there is room. Whoever begins a frame goes on
//! with it within [`PROGRESS_LIMIT`], or the connection ends.

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf, BufMut, BytesMut};
use conclave_api::SessionId;
use conclave_api::proto::frame::{self, PEER_MAGIC, VERSION};
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

/// The longest frame.
pub const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Questions under way on one connection.
pub const MAX_CALLS: usize = 1024;
/// Bytes of the questions that are being answered on one connection.
pub const MAX_IN_FLIGHT_BYTES: usize = 2 * MAX_BYTES;

const CONNECT_LIMIT: Duration = Duration::from_secs(2);
/// How long what was sent may stay unacknowledged by the other machine before the connection is given up. Otherwise TCP would
/// ask ever more seldom, and find a node that is back only minutes later.
const UNACKNOWLEDGED_LIMIT: Duration = Duration::from_secs(3);
/// How long nothing may move in the midst of a frame: what has come of it takes memory, and hides whatever follows.
pub const PROGRESS_LIMIT: Duration = Duration::from_secs(30);
const KEEP_ALIVE_LIMIT: Duration = Duration::from_secs(5);
const HEADER: usize = 9;

const CONSENSUS: u8 = 0;
const KEEP_ALIVE: u8 = 1;
pub(crate) const JOINING: u8 = 2;
const REFUSED: u8 = 255;

/// How long a stranger has to take the last word.
const LAST_WORD: Duration = Duration::from_secs(1);

/// Makes connections to other nodes: [`Tcp`], or something that a test can cut.
pub trait Dial: Send + Sync + 'static {
    /// Connects to `address`. Whoever calls sets a time limit.
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<TcpStream>>;
}

/// The network of the operating system.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tcp;

impl Dial for Tcp {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<TcpStream>> {
        let address = address.to_owned();
        Box::pin(async move { TcpStream::connect(address).await })
    }
}

/// The connections to other nodes.
pub struct Peers {
    cluster: u128,
    dial: Arc<dyn Dial>,
    /// By address. A closed sender is a broken connection.
    links: Mutex<HashMap<String, mpsc::Sender<Call>>>,
}

#[derive(Debug)]
struct Call {
    kind: u8,
    body: Vec<u8>,
    answer: Reply,
}

/// Where an answer goes, or why there is none.
type Reply = oneshot::Sender<io::Result<Vec<u8>>>;
/// The questions on one connection that are not answered.
type Pending = Arc<Mutex<HashMap<u64, Reply>>>;

impl Peers {
    /// No connections yet, to nodes of this cluster.
    pub fn new(cluster: u128, dial: Arc<dyn Dial>) -> Self {
        Self { cluster, dial, links: Mutex::default() }
    }

    /// Passes keep-alives on to the leader; what each came to.
    pub(crate) async fn keep_alive(
        &self,
        to: NodeId,
        member: &Member,
        sessions: &[SessionId],
    ) -> io::Result<Vec<KeepAliveResult>> {
        let body = postcard::to_stdvec(&(self.cluster, to, sessions)).map_err(invalid)?;
        let answer =
            tokio::time::timeout(KEEP_ALIVE_LIMIT, self.ask(&member.address, KEEP_ALIVE, body)).await??;
        Ok(answer.into_iter().map(kept_from_byte).collect())
    }

    fn ask(
        &self,
        address: &str,
        kind: u8,
        body: Vec<u8>,
    ) -> impl Future<Output = io::Result<Vec<u8>>> + use<> {
        let link = self.link(address);
        async move {
            let (answer, answered) = oneshot::channel();
            link.send(Call { kind, body, answer }).await.map_err(|_| unreachable())?;
            answered.await.map_err(|_| io::Error::from(io::ErrorKind::NotConnected))?
        }
    }

    fn link(&self, address: &str) -> mpsc::Sender<Call> {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(link) = links.get(address).filter(|link| !link.is_closed()) {
            return link.clone();
        }
        let (link, calls) = mpsc::channel(MAX_CALLS);
        tokio::spawn(call(self.dial.clone(), address.to_owned(), calls));
        links.insert(address.to_owned(), link.clone());
        link
    }
}

impl Transport for Peers {
    fn call(&self, _: NodeId, member: &Member, request: Vec<u8>) -> BoxFuture<'static, io::Result<Vec<u8>>> {
        Box::pin(self.ask(&member.address, CONSENSUS, request))
    }
}

/// Makes a connection and carries questions until it breaks. Dropping those that were sent tells whoever asked.
async fn call(dial: Arc<dyn Dial>, address: String, mut calls: mpsc::Receiver<Call>) {
    let connected = tokio::time::timeout(CONNECT_LIMIT, connect(&*dial, &address)).await;
    if let Ok(Ok((reader, writer))) = connected {
        carry(reader, writer, &mut calls).await;
    }
    calls.close();
    while let Ok(Call { answer, .. }) = calls.try_recv() {
        // Whoever stopped waiting does not want to know.
        drop(answer.send(Err(unreachable())));
    }
}

async fn carry(reader: OwnedReadHalf, mut writer: OwnedWriteHalf, calls: &mut mpsc::Receiver<Call>) {
    let pending = Pending::default();
    let mut reading = tokio::spawn(read_answers(reader, pending.clone()));
    let (mut number, mut batch, mut output) = (0_u64, Vec::new(), BytesMut::new());
    loop {
        tokio::select! {
            count = calls.recv_many(&mut batch, 64) => if count == 0 { break },
            _ = &mut reading => return,
        }
        put_questions(&mut output, &mut number, &pending, batch.drain(..));
        if writer.write_all(&output).await.is_err() {
            break;
        }
        output.clear();
    }
    reading.abort();
}

/// Writes questions that keep to the bounds; whoever asked the others is told.
fn put_questions(
    output: &mut BytesMut,
    number: &mut u64,
    pending: &Pending,
    batch: impl Iterator<Item = Call>,
) {
    let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
    // Whoever stopped waiting is not answered, and not counted.
    pending.retain(|_, answer| !answer.is_closed());
    for Call { kind, body, answer } in batch {
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

/// Why a question was not sent.
fn unreachable() -> io::Error {
    io::ErrorKind::HostUnreachable.into()
}

/// Asks one question of somebody who may be of any cluster, on a connection of its own.
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
        // Whoever stopped waiting does not want to know.
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

/// Answers another node's questions until the connection ends; its preface has been read.
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
    let room = Arc::new(Semaphore::new(MAX_IN_FLIGHT_BYTES));
    let mut input = BytesMut::new();
    let ended = loop {
        let (number, kind, body) = match read_frame(&mut reader, &mut input, PROGRESS_LIMIT).await {
            Ok(Some(question)) => question,
            Ok(None) => break Ok(()),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                // The stream cannot be read any further: the last word.
                drop(answers.send((0, REFUSED, error.to_string().into_bytes())).await);
                drop(answers);
                drop(tokio::time::timeout(LAST_WORD, writing).await);
                return Err(error);
            }
            Err(error) => break Err(error),
        };
        // As if none were short: so there are never more than MAX_CALLS.
        let cost = u32::try_from(body.len().max(MAX_IN_FLIGHT_BYTES / MAX_CALLS)).unwrap_or(u32::MAX);
        let Ok(permit) = room.clone().acquire_many_owned(cost).await else { break Ok(()) };
        let (join_server, node_handle, answers) = (join_server.clone(), node_handle.clone(), answers.clone());
        tokio::spawn(async move {
            let (kind, body) = match answer(&join_server, &node_handle, kind, &body).await {
                Ok(body) => (kind, body),
                Err(why) => (REFUSED, why.into_bytes()),
            };
            // A connection that has ended needs no answers.
            drop(answers.send((number, kind, body)).await);
            drop(permit);
        });
    };
    writing.abort();
    ended
}

/// The answer to one question, or why there is none.
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
            let ask = postcard::from_bytes(body).map_err(not_understood)?;
            postcard::to_stdvec(&join_server.answer(ask).await).map_err(|error| error.to_string())
        }
        _ => Err(format!("messages of kind {kind} are unknown")),
    }
}

/// The next frame; `None` at the end. Before it begins it may take its time, then something of it comes within `limit`.
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
            // In steps: a stranger's length alone must not cost its memory.
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

    /// Takes one connection and answers `answers` questions on it with their own bodies turned round, last one first.
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
        let ask = |body: &[u8]| peers.ask(&address, CONSENSUS, body.to_vec());
        let (one, two, ()) = tokio::join!(ask(b"abc"), ask(b"xyz"), answer_backwards(&listener, 2));
        assert_eq!((one.unwrap(), two.unwrap()), (b"cba".to_vec(), b"zyx".to_vec()));
    }

    #[tokio::test]
    async fn a_question_is_known_not_to_be_sent_where_nobody_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let peers = Peers::new(7, Arc::new(Tcp));
        for _ in 0..2 {
            let asked = tokio::join!(
                peers.ask(&address, CONSENSUS, b"abc".to_vec()),
                peers.ask(&address, CONSENSUS, b"xyz".to_vec())
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
            tokio::join!(peers.ask(&address, CONSENSUS, vec![1]), answer_backwards(&listener, 0));
        assert_eq!(lost.unwrap_err().kind(), io::ErrorKind::NotConnected);
        let again = async {
            loop {
                // Until the broken connection is noticed, questions on it fail too.
                if let Ok(answer) = peers.ask(&address, CONSENSUS, vec![1, 2]).await {
                    return answer;
                }
            }
        };
        let (answer, ()) = tokio::join!(again, answer_backwards(&listener, 1));
        assert_eq!(answer, [2, 1]);
    }

    #[tokio::test]
    async fn questions_beyond_the_bounds_fail_at_once_and_say_why() {
        let pending = Pending::default();
        let (mut output, mut number) = (BytesMut::new(), 0);
        let call = |bytes: usize| {
            let (answer, answered) = oneshot::channel();
            (Call { kind: CONSENSUS, body: vec![0; bytes], answer }, answered)
        };
        let (calls, mut waiting): (Vec<_>, Vec<_>) = (0..=MAX_CALLS).map(|_| call(1)).unzip();
        put_questions(&mut output, &mut number, &pending, calls.into_iter());
        let refused = waiting.pop().unwrap().await.unwrap().unwrap_err();
        assert_eq!(refused.to_string(), "too many requests are in flight to this node");
        assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
        assert!(waiting.iter_mut().all(|answered| answered.try_recv().is_err()));
        // Whoever stopped waiting makes room.
        waiting.pop();
        let ((calls, mut waiting), before) =
            ([call(1)].into_iter().unzip::<_, _, Vec<_>, Vec<_>>(), output.len());
        put_questions(&mut output, &mut number, &pending, calls.into_iter());
        assert!(waiting[0].try_recv().is_err() && output.len() > before);
        let (long, answered) = call(MAX_BYTES - HEADER + 1);
        put_questions(&mut output, &mut number, &pending, [long].into_iter());
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
    async fn a_node_may_say_nothing_but_not_half_a_frame() {
        let (mut there, mut reader, _writer) = connected().await;
        let mut input = BytesMut::new();
        let read = read_frame(&mut reader, &mut input, Duration::from_millis(1));
        let sent = async {
            // It is waited for, and has not begun.
            tokio::task::yield_now().await;
            there.write_all(&[0, 0, 0, 200, 1]).await.unwrap();
        };
        let (read, ()) = tokio::join!(read, sent);
        assert_eq!(read.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(input.len(), 5);
    }

    #[test]
    fn what_a_keep_alive_came_to_survives_the_wire() {
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
