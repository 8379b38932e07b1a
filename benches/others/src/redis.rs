//! Redis, `appendfsync always`, over its own protocol (RESP).
//!
//! **Own names**: `SET name token NX PX 30000`; released by a script that compares the token and deletes, called by its hash.
//!
//! **One name**: a token in a list. `BLPOP` takes it or waits, first come first served; `RPUSH` hands it to the first who waits, and is
//! sent in one write with the next `BLPOP`. This is the fastest way we know: a handoff is one flush of the file and one round trip, as in
//! Conclave, while polling for `SET NX` adds its pauses. It flatters Redis: who dies with the token takes it along, there is no lease.

use crate::Result;
use crate::wire::Wire;
use crate::work::{Client, Workload};

const RELEASE: &str =
    "if redis.call('get',KEYS[1])==ARGV[1] then return redis.call('del',KEYS[1]) end return 0";

/// One client.
pub struct Redis {
    wire: Wire,
    workload: Workload,
    name: String,
    token: String,
    /// The hash of [`RELEASE`].
    script: String,
}

/// What Redis answers, as far as it is looked at.
#[derive(Debug, PartialEq, Eq)]
enum Reply {
    Nil,
    Text(String),
    Number(i64),
    List(Vec<Reply>),
}

/// Whether it answers: one server always leads.
pub async fn leads(server: &str) -> Result<bool> {
    let mut wire = Wire::connect(server).await?;
    ask(&mut wire.out, &["PING"]);
    Ok(wire.receive(parse).await? == Reply::Text("PONG".into()))
}

impl Client for Redis {
    async fn connect(server: &str, number: u32, workload: Workload) -> Result<Self> {
        let wire = Wire::connect(server).await?;
        let (name, token) = (workload.name(number), format!("token-{number}"));
        let mut client = Self { wire, workload, name, token, script: String::new() };
        ask(&mut client.wire.out, &["SCRIPT", "LOAD", RELEASE]);
        match client.answer().await? {
            Reply::Text(hash) => client.script = hash,
            other => return Err(format!("no hash of a script: {other:?}").into()),
        }
        // The first of them makes things as they should be, whatever an earlier run left.
        if workload != Workload::Contended || number == 0 {
            ask(&mut client.wire.out, &["DEL", &client.name]);
            client.answer().await?;
        }
        if workload == Workload::Contended && number == 0 {
            client.ask_release();
            client.released().await?;
        }
        Ok(client)
    }

    fn ask_acquire(&mut self) {
        match self.workload {
            Workload::Own | Workload::Bare => {
                ask(&mut self.wire.out, &["SET", &self.name, &self.token, "NX", "PX", "30000"]);
            }
            Workload::Contended => ask(&mut self.wire.out, &["BLPOP", &self.name, "0"]),
        }
    }

    async fn acquired(&mut self) -> Result<()> {
        match (self.workload, self.answer().await?) {
            (Workload::Own | Workload::Bare, Reply::Text(ok)) if ok == "OK" => Ok(()),
            (Workload::Contended, Reply::List(_)) => Ok(()),
            (_, other) => Err(format!("not acquired: {other:?}").into()),
        }
    }

    fn ask_release(&mut self) {
        match self.workload {
            Workload::Own | Workload::Bare => {
                ask(&mut self.wire.out, &["EVALSHA", &self.script, "1", &self.name, &self.token]);
            }
            Workload::Contended => ask(&mut self.wire.out, &["RPUSH", &self.name, "token"]),
        }
    }

    async fn released(&mut self) -> Result<()> {
        match self.answer().await? {
            Reply::Number(1) => Ok(()),
            other => Err(format!("not released: {other:?}").into()),
        }
    }

    async fn close(self) -> Result<()> {
        Ok(())
    }
}

impl Redis {
    async fn answer(&mut self) -> Result<Reply> {
        self.wire.receive(parse).await
    }
}

/// A request is a list of strings.
fn ask(out: &mut Vec<u8>, words: &[&str]) {
    out.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
    for word in words {
        out.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
}

/// The first answer in `bytes` and its length, or `None` if it is not whole. An error that Redis reports is one.
fn parse(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some((b'*', line, mut at)) = line(bytes)? else { return parse_item(bytes) };
    if line == "-1" {
        return Ok(Some((Reply::Nil, at)));
    }
    let mut items = Vec::new();
    for _ in 0..line.parse::<usize>()? {
        let Some((item, length)) = parse_item(&bytes[at..])? else { return Ok(None) };
        items.push(item);
        at += length;
    }
    Ok(Some((Reply::List(items), at)))
}

/// What is not a list, and all that a list has in it here.
fn parse_item(bytes: &[u8]) -> Result<Option<(Reply, usize)>> {
    let Some((kind, line, after)) = line(bytes)? else { return Ok(None) };
    Ok(match kind {
        b'+' => Some((Reply::Text(line.to_owned()), after)),
        b':' => Some((Reply::Number(line.parse()?), after)),
        b'-' => return Err(line.into()),
        b'$' if line == "-1" => Some((Reply::Nil, after)),
        b'$' => {
            let whole = after.saturating_add(line.parse()?);
            let text = bytes.get(after..whole).filter(|_| bytes.len() >= whole.saturating_add(2));
            text.map(|text| (Reply::Text(String::from_utf8_lossy(text).into_owned()), whole + 2))
        }
        _ => return Err("this is not Redis".into()),
    })
}

/// The first byte, the rest of its line, and where the next line begins.
fn line(bytes: &[u8]) -> Result<Option<(u8, &str, usize)>> {
    let Some(end) = bytes.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let (kind, line) = bytes[..end].split_first().ok_or("this is not Redis")?;
    Ok(Some((*kind, str::from_utf8(line)?, end + 2)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_found_only_when_it_is_whole() {
        let bytes = b"*2\r\n$4\r\nname\r\n$5\r\ntoken\r\n:7\r\n";
        let whole = bytes.len() - 4;
        for cut in 0..whole {
            assert!(parse(&bytes[..cut]).unwrap().is_none(), "{cut}");
        }
        let list = Reply::List(vec![Reply::Text("name".into()), Reply::Text("token".into())]);
        assert_eq!(parse(bytes).unwrap(), Some((list, whole)));
        assert_eq!(parse(&bytes[whole..]).unwrap(), Some((Reply::Number(7), 4)));
    }

    #[test]
    fn nothing_and_errors_are_told_apart() {
        assert_eq!(parse(b"$-1\r\n").unwrap(), Some((Reply::Nil, 5)));
        assert!(parse(b"-NOSCRIPT\r\n").is_err());
        assert!(parse(b"\r\n").is_err());
        assert!(parse(b"*1\r\n*1\r\n").is_err());
        assert!(parse(b"$18446744073709551615\r\nx\r\n").unwrap().is_none());
    }
}
