//! Reads a snapshot. It is rejected, or writing it again gives the same bytes. Twin in CI:
//! `crates/node/src/state/tests/fuzz.rs`.

#![no_main]

use conclave_node::state::State;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    // Random bytes never have the right checksum. Insert it, so that the reader of the state is reached.
    let checksum = crc32fast::hash(bytes).to_le_bytes();
    read(&[b"CNCS", &1_u16.to_le_bytes()[..], &checksum, bytes].concat());
});

fn read(bytes: &[u8]) {
    if let Ok(state) = State::from_snapshot(bytes) {
        let written = state.to_snapshot();
        let again = State::from_snapshot(&written).expect("our own");
        assert_eq!(again.to_snapshot(), written);
    }
}
