//! A snapshot is read whole or refused; what is read is written back as the same bytes.
//! Twin in CI: `crates/service/src/state/tests/fuzz.rs`.

#![no_main]

use conclave_service::state::State;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    read(bytes);
    // Nobody guesses a checksum: with the right one the state behind it is looked at.
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
