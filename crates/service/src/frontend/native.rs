//! The native frontend: length-prefixed protobuf frames on a connection (see [`conclave_api::proto::frame`]), by TCP or by a Unix
//! socket.
//!
//! **Rules.** Each connection has one task. It decodes as many frames from one read as there are, and passes them to the node as
//! one group. The driver writes the replies to the socket itself; the task writes the bytes that the socket did not take. Until
//! they are written, and while the node has paused reading, the task reads nothing: a client that does not take replies cannot
//! send more requests.
//!
//! **Bounds.** A frame has at most 1 MiB; at most [`frame::READ_BYTES`] are read before the node gets them, unless a frame is larger.
//! A client that has started a frame must continue it, and a client with replies to read must read some of them, within
//! [`PROGRESS_LIMIT`]. Otherwise the connection closes, because it costs memory. Bytes that cannot be decoded get a last message with
//! the reason; then the connection closes, after the client had a moment to read it.

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

use crate::driver::Outbox;
use crate::driver::{ConnectionHandle, NodeHandle};
use conclave_node::node::ClientRequest;

/// How long nothing may move in the midst of a frame, or while a client does not read what there is for it.
pub(super) const PROGRESS_LIMIT: Duration = Duration::from_secs(30);
/// So many bytes are some progress.
const PROGRESS_BYTES: usize = 64 * 1024;
/// How long a client has to read the last word.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Serves one connection until it ends; its preface has been read, and `version` was the last byte of it.
pub(crate) async fn serve(
    (mut reader, writer): (Reader, Writer),
    version: u8,
    node: NodeHandle,
) -> io::Result<()> {
    writer.write_all(&frame::preface(CLIENT_MAGIC)).await?;
    let writer = Arc::new(writer);
    let Ok(connection) = node.attach(Some(writer.clone())).await else { return Ok(()) };
    if version != VERSION {
        let text =
            format!("version {version} of the protocol is not supported; this server uses version {VERSION}");
        connection.fail(Error::new(Code::Unsupported, text)).await;
    }
    let mut input = BytesMut::new();
    let mut readable = version == VERSION;
    loop {
        tokio::select! {
            biased;
            rest = poll_fn(|cx| connection.outbox.poll_take(cx)) => match rest {
                Some(rest) => {
                    write(&writer, &rest, PROGRESS_LIMIT).await?;
                    connection.on_sent();
                }
                None => return close(reader, &writer).await,
            },
            read = read_some(&connection.outbox, &mut reader, &mut input, PROGRESS_LIMIT), if readable => {
                if read? == 0 {
                    return Ok(());
                }
                readable = take_frames(&connection, &mut input).await;
            }
        }
    }
}

/// Reads, unless the node has paused reading. A caller that also waits for the outbox is woken when reading resumes.
async fn read_some(
    outbox: &Outbox,
    reader: &mut Reader,
    input: &mut BytesMut,
    limit: Duration,
) -> io::Result<usize> {
    poll_fn(|_| if outbox.is_reading_paused() { Poll::Pending } else { Poll::Ready(()) }).await;
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

/// Passes every whole frame to the node. Returns `false` if the rest cannot be decoded.
async fn take_frames(connection: &ConnectionHandle, input: &mut BytesMut) -> bool {
    let mut requests: Vec<ClientRequest> = Vec::new();
    let error = loop {
        match frame::decode::<ClientFrame>(input) {
            Ok(Some(frame)) => requests.extend(frame.messages.into_iter().map(ClientRequest::from)),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let taken = connection.send(requests).await.is_ok();
    if let Some(error) = error {
        connection.fail(unreadable(&error)).await;
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
