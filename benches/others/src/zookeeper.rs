//! ZooKeeper, over its own protocol (jute records in frames with a length before them).
//!
//! A lock is the recipe of ZooKeeper's documentation: create a sequential ephemeral node, list the children; the lowest holds; everybody
//! else watches the one before it, and lists again when that is gone.
//!
//! **Own names**: one request at a time, as its clients do it: three round trips a pair, two of them durable.
//!
//! **One name**: the deletion, the next creation and the listing do not need each other's answers and are sent in one write;
//! ZooKeeper keeps the order of a session's requests.
//!
//! **Bare**: create an ephemeral node, delete it. Two round trips; nobody could wait for such a lock in a queue.

use std::time::Duration;

use crate::Result;
use crate::wire::Wire;
use crate::work::{Client, Workload};

/// The most that a server with the usual tick allows. No pings are sent: who measures is never silent for a third of it.
const SESSION_MS: i32 = 40_000;
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const GET_CHILDREN: i32 = 8;
const CLOSE: i32 = -11;
/// In place of a request's number: this is an event of a watch.
const EVENT: i32 = -1;
const PERSISTENT: i32 = 0;
const EPHEMERAL: i32 = 1;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;

/// One client: a session.
pub struct Zookeeper {
    wire: Wire,
    workload: Workload,
    /// The folder of a name, or its bare node.
    path: String,
    /// In the folder: the node that stands for this client's turn.
    turn: String,
    last_request: i32,
    /// Events that arrived while an answer was waited for.
    events: u32,
}

/// An answer: the error or 0, and what follows the header.
struct Answer {
    error: i32,
    body: Vec<u8>,
}

/// Asks in the one word that a server understands without a session.
pub async fn leads(server: &str) -> Result<bool> {
    let asked = async {
        let mut wire = Wire::connect(server).await?;
        wire.out.extend_from_slice(b"srvr");
        wire.rest().await
    };
    let text = tokio::time::timeout(Duration::from_secs(2), asked).await??;
    match text.lines().find_map(|line| line.strip_prefix("Mode: ")) {
        Some("leader" | "standalone") => Ok(true),
        Some("follower") => Ok(false),
        _ => Err(format!("not serving: {text}").into()),
    }
}

impl Client for Zookeeper {
    async fn connect(server: &str, number: u32, workload: Workload) -> Result<Self> {
        let mut wire = Wire::connect(server).await?;
        let mut hello = Record::default();
        // Version 0, no transaction seen, timeout, no session yet, no password yet, not read-only.
        hello.int(0).long(0).int(SESSION_MS).long(0).bytes(&[0; 16]).bool(false);
        hello.frame(&mut wire.out);
        let welcome = wire.receive(frame).await?;
        if Reader(&welcome).skip(4)?.int()? <= 0 {
            return Err("the session was refused".into());
        }
        let path = format!("/{}", workload.name(number));
        let mut client = Self { wire, workload, path, turn: String::new(), last_request: 0, events: 0 };
        if workload == Workload::Own || (workload == Workload::Contended && number == 0) {
            client.ask_create(&client.path.clone(), PERSISTENT);
            match client.answer().await?.error {
                0 | NODE_EXISTS => {}
                error => return Err(refused(error)),
            }
        }
        Ok(client)
    }

    fn ask_acquire(&mut self) {
        match self.workload {
            Workload::Bare => self.ask_create(&self.path.clone(), EPHEMERAL),
            Workload::Own => self.ask_create(&format!("{}/turn-", self.path), EPHEMERAL_SEQUENTIAL),
            Workload::Contended => {
                self.ask_create(&format!("{}/turn-", self.path), EPHEMERAL_SEQUENTIAL);
                self.ask_about(GET_CHILDREN, &self.path.clone(), false);
            }
        }
    }

    async fn acquired(&mut self) -> Result<()> {
        let created = self.answer().await?.body()?;
        if self.workload == Workload::Bare {
            return Ok(());
        }
        self.turn = Reader(&created).string()?;
        if self.workload == Workload::Own {
            self.ask_about(GET_CHILDREN, &self.path.clone(), false);
        }
        loop {
            let children = children(&self.answer().await?.body()?)?;
            let own = self.turn.rsplit('/').next().unwrap_or_default();
            // The numbers have leading zeros, so the order of the names is that of their creation.
            let Some(before) = children.iter().filter(|child| child.as_str() < own).max() else {
                return Ok(());
            };
            self.ask_about(EXISTS, &format!("{}/{before}", self.path), true);
            match self.answer().await?.error {
                0 => self.event().await?,
                NO_NODE => {}
                error => return Err(refused(error)),
            }
            self.ask_about(GET_CHILDREN, &self.path.clone(), false);
        }
    }

    fn ask_release(&mut self) {
        let path = if self.workload == Workload::Bare { &self.path } else { &self.turn };
        let mut record = Record::default();
        record.string(path).int(-1); // whatever its version
        self.ask(DELETE, &record);
    }

    async fn released(&mut self) -> Result<()> {
        self.answer().await?.body()?;
        Ok(())
    }

    async fn close(mut self) -> Result<()> {
        self.ask(CLOSE, &Record::default());
        self.answer().await?.body()?;
        Ok(())
    }
}

impl Zookeeper {
    fn ask_create(&mut self, path: &str, flags: i32) {
        let mut record = Record::default();
        // No data; one rule of access: everybody may do everything.
        record.string(path).bytes(&[]).int(1).int(31).string("world").string("anyone").int(flags);
        self.ask(CREATE, &record);
    }

    fn ask_about(&mut self, operation: i32, path: &str, watch: bool) {
        let mut record = Record::default();
        record.string(path).bool(watch);
        self.ask(operation, &record);
    }

    fn ask(&mut self, operation: i32, record: &Record) {
        self.last_request += 1;
        let mut request = Record::default();
        request.int(self.last_request).int(operation);
        request.0.extend_from_slice(&record.0);
        request.frame(&mut self.wire.out);
    }

    /// The next answer; they arrive in the order of the requests.
    async fn answer(&mut self) -> Result<Answer> {
        loop {
            match self.frame().await? {
                None => self.events += 1,
                Some(answer) => return Ok(answer),
            }
        }
    }

    /// There is one watch at a time, and it fires once.
    async fn event(&mut self) -> Result<()> {
        if self.events == 0 && self.frame().await?.is_some() {
            return Err("an answer to nothing".into());
        }
        self.events = 0;
        Ok(())
    }

    /// An answer, or `None` for an event.
    async fn frame(&mut self) -> Result<Option<Answer>> {
        let mut body = self.wire.receive(frame).await?;
        let mut header = Reader(&body);
        let request = header.int()?;
        let error = header.skip(8)?.int()?;
        body.drain(..16);
        Ok((request != EVENT).then_some(Answer { error, body }))
    }
}

impl Answer {
    fn body(self) -> Result<Vec<u8>> {
        if self.error == 0 { Ok(self.body) } else { Err(refused(self.error)) }
    }
}

fn refused(error: i32) -> Box<dyn std::error::Error + Send + Sync> {
    format!("ZooKeeper's error {error}").into()
}

/// What a whole frame holds, without its length.
fn frame(bytes: &[u8]) -> Result<Option<(Vec<u8>, usize)>> {
    let Some(length) = bytes.first_chunk() else { return Ok(None) };
    let whole = 4 + usize::try_from(i32::from_be_bytes(*length))?;
    Ok(bytes.get(4..whole).map(|body| (body.to_vec(), whole)))
}

fn children(body: &[u8]) -> Result<Vec<String>> {
    let mut reader = Reader(body);
    (0..reader.int()?).map(|_| reader.string()).collect()
}

/// Writes jute: everything big-endian, strings and buffers with their length before them.
#[derive(Default)]
struct Record(Vec<u8>);

impl Record {
    fn int(&mut self, value: i32) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn long(&mut self, value: i64) -> &mut Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn bool(&mut self, value: bool) -> &mut Self {
        self.0.push(u8::from(value));
        self
    }

    fn bytes(&mut self, value: &[u8]) -> &mut Self {
        self.int(i32::try_from(value.len()).expect("only short names are written"));
        self.0.extend_from_slice(value);
        self
    }

    fn string(&mut self, value: &str) -> &mut Self {
        self.bytes(value.as_bytes())
    }

    fn frame(&self, out: &mut Vec<u8>) {
        let mut framed = Self::default();
        framed.bytes(&self.0);
        out.extend_from_slice(&framed.0);
    }
}

/// Reads jute.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn int(&mut self) -> Result<i32> {
        let (value, rest) = self.0.split_first_chunk().ok_or("an answer cut short")?;
        self.0 = rest;
        Ok(i32::from_be_bytes(*value))
    }

    fn string(&mut self) -> Result<String> {
        let length = usize::try_from(self.int()?)?;
        let (value, rest) = self.0.split_at_checked(length).ok_or("an answer cut short")?;
        self.0 = rest;
        Ok(String::from_utf8_lossy(value).into_owned())
    }

    fn skip(&mut self, length: usize) -> Result<&mut Self> {
        self.0 = self.0.get(length..).ok_or("an answer cut short")?;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_is_found_only_when_it_is_whole() {
        let mut record = Record::default();
        record.int(2).string("turn-0000000001").string("turn-0000000002");
        let mut bytes = Vec::new();
        record.frame(&mut bytes);
        for cut in 0..bytes.len() {
            assert!(frame(&bytes[..cut]).unwrap().is_none(), "{cut}");
        }
        let (body, length) = frame(&bytes).unwrap().unwrap();
        assert_eq!(length, bytes.len());
        assert_eq!(children(&body).unwrap(), ["turn-0000000001", "turn-0000000002"]);
        assert!(children(&body[..body.len() - 1]).is_err());
    }
}
