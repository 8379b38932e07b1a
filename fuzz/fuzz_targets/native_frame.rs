//! Reads a client's byte stream as frames. The stream is split into whole frames or rejected, and a length alone reserves no memory.
//! Twin in CI: `crates/wire/src/frame.rs`, `crates/service/tests/frontends/doors.rs`.

#![no_main]

use bytes::BytesMut;
use conclave_wire::frame::{MAX_FRAME_BYTES, decode, encode};
use conclave_wire::v1::ClientFrame;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut input = BytesMut::from(bytes);
    while let Ok(Some(frame)) = decode::<ClientFrame>(&mut input) {
        let mut output = BytesMut::new();
        if encode(&frame, &mut output).is_ok() {
            let again: ClientFrame = decode(&mut output).expect("our own").expect("whole");
            assert_eq!(again, frame);
        }
    }
    assert!(input.capacity() <= bytes.len() + MAX_FRAME_BYTES + 4);
});
