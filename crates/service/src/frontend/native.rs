//! The native frontend: length-prefixed protobuf frames ([`conclave_wire::frame`]) over TCP or a Unix
//! socket.
//!
//! **Rules.** Each connection has one task. It decodes all frames of one read and passes them to the node as
//! one group. The driver writes the replies to the socket; the task writes only the bytes that the socket did
//! not take. The task reads nothing until they are written, and nothing while the node has paused reading. So
//! a client that does not read replies cannot send more requests.
//!
//! **Bounds.** A frame has at most 1 MiB. At most [`frame::READ_BYTES`] are read before the node gets them,
//! unless a frame is larger. An incomplete frame, and replies that the client has not read, must progress
//! within [`PROGRESS_LIMIT`], or the connection closes. If bytes cannot be decoded, the server sends a last
//! message with the reason. It closes the connection after the client had time to read it.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use bytes::BytesMut;
use conclave_core::{Code, Error};
use conclave_wire::frame::{self, CLIENT_MAGIC, FrameError, PREFACE_BYTES, VERSION};
use conclave_wire::socket::{Reader, Writer};
use conclave_wire::v1::ClientFrame;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::driver::Outbox;
use crate::driver::{ConnectionHandle, NodeHandle};
use conclave_node::node::ClientRequest;

/// The longest time without progress of an incomplete frame, or of a client with replies to read.
pub(super) const PROGRESS_LIMIT: Duration = Duration::from_secs(30);
/// The number of bytes that must be written within [`PROGRESS_LIMIT`].
const PROGRESS_BYTES: usize = 64 * 1024;
/// The longest wait for the client to close the connection after the last message.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// Serves one connection until it ends. The caller has read the preface; `version` is its last byte.
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

/// Reads bytes, unless the node has paused reading. A caller that also polls the outbox is woken when reading
/// resumes.
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

/// Passes every complete frame to the node. Returns `false` if the rest cannot be decoded or the node has
/// stopped.
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

/// Closes the connection so that the last message arrives. If unread bytes remained, the kernel would reset
/// the connection, and the client could miss the message.
async fn close(mut reader: Reader, writer: &Writer) -> io::Result<()> {
    writer.shutdown()?;
    let mut rest = [0; 4096];
    let drain = async { while reader.read(&mut rest).await.is_ok_and(|bytes| bytes > 0) {} };
    // A client that continues to send is disconnected after the limit.
    drop(tokio::time::timeout(CLOSE_TIMEOUT, drain).await);
    Ok(())
}

/// Reads the preface of a connection.
pub(crate) async fn read_preface(stream: &mut (impl AsyncRead + Unpin)) -> io::Result<[u8; PREFACE_BYTES]> {
    let mut preface = [0; PREFACE_BYTES];
    stream.read_exact(&mut preface).await?;
    Ok(preface)
}

#[cfg(test)]
mod tests {
    use conclave_wire::socket::Socket;
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
        // This is more than the buffers of the kernel take.
        let error = write(&writer, &vec![0; 256 * 1024 * 1024], MOMENT).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn an_incomplete_frame_times_out_and_an_idle_client_does_not() {
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
