//! Tests of `run` with a server that refuses a request to end a deadlock.
//!
//! One `run` sends one request and holds nothing while it waits, so today it cannot be a victim of a real
//! deadlock. A server may still send this reply.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;

use bytes::BytesMut;
use conclave_core::{Deadlock, Error, LockName, WaitsFor};
use conclave_wire::v1::client_message::Message;
use conclave_wire::{frame, v1};

use crate::service::support::conclave;

#[test]
fn the_victim_of_a_deadlock_gets_its_edges() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let server = thread::spawn(move || refuse_all(listener.accept().unwrap().0));
    let output = conclave().args(["run", "--server", &address, "a", "--", "true"]).output().unwrap();
    server.join().unwrap();
    let errors = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(77), "{errors}");
    assert!(errors.contains("p waits for a, held by q"), "{errors}");
}

/// Opens sessions and rejects every acquire as a deadlock, until the client disconnects.
fn refuse_all(mut stream: TcpStream) {
    let (mut input, mut output) = (BytesMut::new(), BytesMut::new());
    output.extend_from_slice(&frame::preface(frame::CLIENT_MAGIC));
    let mut preface = [0; frame::PREFACE_BYTES];
    stream.read_exact(&mut preface).unwrap();
    loop {
        while let Some(frame) = frame::decode::<v1::ClientFrame>(&mut input).unwrap() {
            let messages =
                frame.messages.into_iter().filter_map(|message| answer(message.message?)).collect();
            frame::encode(&v1::ServerFrame { messages }, &mut output).unwrap();
        }
        stream.write_all(&output).unwrap();
        output.clear();
        let mut read = [0; 4096];
        match stream.read(&mut read).unwrap() {
            0 => return,
            count => input.extend_from_slice(&read[..count]),
        }
    }
}

fn answer(message: Message) -> Option<v1::ServerMessage> {
    match message {
        Message::Open(_) => {
            let opened = v1::Opened { session: 1, secret: vec![0; 16], ttl_ms: 10_000, ..Default::default() };
            Some(opened.into())
        }
        Message::Request(request) => {
            let result = match request.op? {
                v1::request::Op::Acquire(_) => v1::answer::Result::Error((&deadlock()).into()),
                _ => v1::answer::Result::Done(v1::Done {}),
            };
            Some(v1::Answer { id: request.id, result: Some(result) }.into())
        }
        _ => None,
    }
}

fn deadlock() -> Error {
    let edge = WaitsFor { waiter: "p".into(), name: LockName::new("a").unwrap(), holder: "q".into() };
    Error::deadlock(Deadlock { cycle: vec![edge], victim: Some("p".into()) })
}
