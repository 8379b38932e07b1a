//! The native frontend: length-prefixed protobuf frames on a connection (see [`conclave_api::proto::frame`]), by TCP or by a Unix
//! socket.
//!
//! **Rules.** One task a connection. It takes as many frames from one read as there are and hands them to the hub as one
//! batch. The hub answers by writing to the socket itself; what does not go through is sent by the task. While it does
//! not, and while the hub is behind with queries, nothing is read: who does not take answers cannot ask more.
//!
//! **Bounds.** A frame of at most 1 MiB; at most [`frame::READ_BYTES`] are read before the hub gets them, unless a frame is larger.
//! Whoever begins a frame goes on with it, and whoever has answers to read reads some of them, within [`PROGRESS_LIMIT`], or
//! the connection ends: it costs memory. What cannot be read is answered by a goodbye that says why; then the connection is
//! closed, after the client had a moment to read it.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use conclave_api::proto::frame::{self, CLIENT_MAGIC, FrameError, PREFACE_BYTES, VERSION};
use conclave_api::proto::v1::ClientFrame;
use conclave_api::socket::{Reader, Writer};
use conclave_api::{Code, Error};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::hub::{Door, Link};
use super::outbox::Outbox;
use super::wire::Ask;

/// How long nothing may move in the midst of a frame, or while a client does not read what there is for it.
pub(super) const PROGRESS_LIMIT: Duration = Duration::from_secs(30);
/// So many bytes are some progress.
const PROGRESS_BYTES: usize = 64 * 1024;
/// How long a client has to read the last word.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Serves one connection until it ends; its preface has been read, and `version` was the last byte of it.
pub(crate) async fn serve((mut reader, writer): (Reader, Writer), version: u8, door: Door) -> io::Result<()> {
    writer.write_all(&frame::preface(CLIENT_MAGIC)).await?;
    let writer = Arc::new(writer);
    let Ok(link) = door.attach(Some(writer.clone())).await else { return Ok(()) };
    if version != VERSION {
        let text =
            format!("version {version} of the protocol is not supported; this server uses version {VERSION}");
        link.fail(Error::new(Code::Unsupported, text)).await;
    }
    let mut input = BytesMut::new();
    let mut readable = version == VERSION;
    loop {
        tokio::select! {
            biased;
            rest = poll_fn(|cx| link.outbox.poll_take(cx)) => match rest {
                Some(rest) => {
                    write(&writer, &rest, PROGRESS_LIMIT).await?;
                    link.on_sent();
                }
                None => return close(reader, &writer).await,
            },
            read = read_some(&link.outbox, &mut reader, &mut input, PROGRESS_LIMIT), if readable => {
                if read? == 0 {
                    return Ok(());
                }
                readable = take_frames(&link, &mut input).await;
            }
        }
    }
}

/// Reads, once the hub is not behind with what was read before. Whoever asks for more of the outbox at the same time is
/// woken when it is not.
async fn read_some(
    outbox: &Outbox,
    reader: &mut Reader,
    input: &mut BytesMut,
    limit: Duration,
) -> io::Result<usize> {
    poll_fn(|_| if outbox.is_behind() { Poll::Pending } else { Poll::Ready(()) }).await;
    let is_in_midst = !input.is_empty();
    frame::make_room(input);
    let read = reader.read_buf(input);
    if is_in_midst { tokio::time::timeout(limit, read).await? } else { read.await }
}

async fn write(writer: &Writer, bytes: &[u8], limit: Duration) -> io::Result<()> {
    for some in bytes.chunks(PROGRESS_BYTES) {
        tokio::time::timeout(limit, writer.write_all(some)).await??;
    }
    Ok(())
}

/// Hands every whole frame to the hub; `false` if the rest cannot be read.
async fn take_frames(link: &Link, input: &mut BytesMut) -> bool {
    let mut asks: Vec<Ask> = Vec::new();
    let error = loop {
        match frame::decode::<ClientFrame>(input) {
            Ok(Some(frame)) => asks.extend(frame.messages.into_iter().map(Ask::from)),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let taken = link.send(asks).await.is_ok();
    if let Some(error) = error {
        link.fail(unreadable(&error)).await;
        return false;
    }
    taken
}

fn unreadable(error: &FrameError) -> Error {
    let code = match error {
        FrameError::TooLong { .. } | FrameError::TooMany => Code::TooLarge,
        FrameError::Garbled(_) => Code::Unsupported,
    };
    Error::new(code, error.to_string())
}

/// Closes so that the last word arrives: were unread bytes left behind, the system would cut the connection off and the
/// client might never see what was sent.
async fn close(mut reader: Reader, writer: &Writer) -> io::Result<()> {
    writer.shutdown()?;
    let mut rest = [0; 4096];
    let drain = async { while reader.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {} };
    // Whoever goes on sending is cut off.
    drop(tokio::time::timeout(LAST_WORD, drain).await);
    Ok(())
}

/// Reads a preface that is known to begin like one of ours.
pub(crate) async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; PREFACE_BYTES]> {
    let mut preface = [0; PREFACE_BYTES];
    stream.read_exact(&mut preface).await?;
    Ok(preface)
}

#[cfg(test)]
mod tests {
    use conclave_api::socket::Socket;
    use tokio::io::AsyncWriteExt;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    const MOMENT: Duration = Duration::from_millis(1);

    async fn connected() -> ((Reader, Writer), TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (Socket::Tcp(listener.accept().await.unwrap().0).into_split(), client)
    }

    #[tokio::test]
    async fn a_client_that_never_reads_does_not_stay() {
        let ((_reader, writer), _client) = connected().await;
        // More than the system keeps for anybody.
        let error = write(&writer, &vec![0; 256 * 1024 * 1024], MOMENT).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_client_may_say_nothing_but_not_half_a_frame() {
        let ((mut reader, _writer), mut client) = connected().await;
        let (outbox, mut input) = (Outbox::default(), BytesMut::new());
        let read = read_some(&outbox, &mut reader, &mut input, Duration::ZERO);
        let sent = async {
            tokio::task::yield_now().await;
            client.write_all(&[0, 0]).await.unwrap();
        };
        let (read, ()) = tokio::join!(read, sent);
        assert_eq!(read.unwrap(), 2);
        let error = read_some(&outbox, &mut reader, &mut input, MOMENT).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }
}
