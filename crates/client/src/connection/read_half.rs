//! The read half of a connection: bytes from the socket become messages for the core.
//!
//! Two threads may read: the task of the client, and the keep-alive thread while the task cannot run. The
//! lock around the read half keeps the frames whole and in order.

use std::io;
use std::pin::pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, BytesMut};
use conclave_wire::frame::{self, CLIENT_MAGIC, PREFACE_BYTES};
use conclave_wire::socket::Reader;
use conclave_wire::v1;
use tokio::io::AsyncReadExt;

use super::Shared;
use crate::core::Core;

/// The size of a read of the keep-alive thread, in bytes.
const CHUNK: usize = 16 * 1024;
/// The maximum number of reads in one step of the keep-alive thread. The next step reads the rest.
const MAX_CHUNKS: usize = 64;

pub(super) struct ReadHalf {
    reader: Reader,
    /// Received bytes that are not a complete frame yet.
    input: BytesMut,
    is_greeted: bool,
    /// The error of the last read by the keep-alive thread. The task returns it at its next read.
    error: Option<io::Error>,
}

impl ReadHalf {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, input: BytesMut::new(), is_greeted: false, error: None }
    }

    /// Reads once, and passes all complete messages to the core. Returns `false` at the end of the
    /// connection.
    pub(super) fn poll_receive(&mut self, cx: &mut Context<'_>, shared: &Shared) -> Poll<io::Result<bool>> {
        if let Some(error) = self.error.take() {
            return Poll::Ready(Err(error));
        }
        frame::make_room(&mut self.input);
        if ready!(pin!(self.reader.read_buf(&mut self.input)).poll(cx))? == 0 {
            return Poll::Ready(Ok(false));
        }
        Poll::Ready(self.process(shared).map(|()| true))
    }

    /// Reads the bytes that have arrived, without the runtime. Ignores the end of the connection, which the
    /// task reads later.
    pub(super) fn receive_now(&mut self, shared: &Shared) {
        for _ in 0..MAX_CHUNKS {
            let mut chunk = [0; CHUNK];
            let received = match self.reader.read_now(&mut chunk) {
                Ok(0) => return,
                Ok(read) => {
                    self.input.extend_from_slice(&chunk[..read]);
                    self.process(shared)
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(error) => Err(error),
            };
            if let Err(error) = received {
                self.error = Some(error);
                return;
            }
        }
    }

    fn process(&mut self, shared: &Shared) -> io::Result<()> {
        self.is_greeted = self.is_greeted || greet(&mut self.input, shared)?;
        if self.is_greeted { take(&mut self.input, shared) } else { Ok(()) }
    }
}

fn greet(input: &mut BytesMut, shared: &Shared) -> io::Result<bool> {
    if input.len() < PREFACE_BYTES {
        return Ok(false);
    }
    if input[..PREFACE_BYTES - 1] != CLIENT_MAGIC {
        shared.with(|core, _| core.on_refused());
        let first = String::from_utf8_lossy(&input[..PREFACE_BYTES]);
        let text = format!("is not a conclave server: its first bytes are {first:?}");
        return Err(io::Error::new(io::ErrorKind::InvalidData, text));
    }
    // If the versions differ, the server sends a `Goodbye` with the reason.
    input.advance(PREFACE_BYTES);
    shared.with(Core::on_greeted);
    Ok(true)
}

fn take(input: &mut BytesMut, shared: &Shared) -> io::Result<()> {
    while let Some(frame) = frame::decode::<v1::ServerFrame>(input)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, format!("sent a wrong frame: {error}")))?
    {
        shared.with(|core, now| frame.messages.into_iter().for_each(|message| core.on_message(now, message)));
    }
    Ok(())
}
