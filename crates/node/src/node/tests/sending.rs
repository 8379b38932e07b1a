//! The order of sending, and the time at which batches go.

use super::*;

#[test]
fn connections_are_sent_to_in_the_order_of_their_first_reply() {
    let mut fixture = Fixture::attached(4);
    (1..=4).for_each(|connection| fixture.bind(connection));
    fixture.send();
    let replies = [
        (1, Answer::Done),
        (3, granted()),
        (2, Answer::Done),
        (3, Answer::Done),
        (4, granted()),
        (2, granted()),
    ];
    for (request, (session, answer)) in (1..).zip(replies) {
        fixture.reply(session, request, answer);
    }
    assert_eq!(fixture.send(), [1, 3, 2, 4]);
}

#[test]
fn replies_to_many_connections_are_sent_over_several_turns() {
    let many = 2 * MAX_PER_TURN as u64 + 1;
    let mut fixture = Fixture::attached(many);
    (1..=many).for_each(|connection| fixture.node.push(connection, &Reply::KeptAlive { token: 0 }));
    let mut sent = Vec::new();
    for count in [MAX_PER_TURN, 2 * MAX_PER_TURN, 2 * MAX_PER_TURN + 1] {
        assert!(fixture.has_work());
        sent.extend(fixture.send());
        assert_eq!(sent.len(), count);
    }
    assert!(!fixture.has_work());
    assert_eq!(sent, (1..=many).collect::<Vec<_>>());
}

/// Three clients with a session each. A batch is on disk at once, unless a test keeps it.
struct Three {
    fixture: Fixture,
    request: u64,
}

impl Three {
    fn attached() -> Self {
        let mut fixture = Fixture::attached(3);
        (1..=3).for_each(|connection| fixture.bind(connection));
        fixture.send();
        Self { fixture, request: 0 }
    }

    fn asks(&mut self, connection: ConnectionId) {
        self.request += 1;
        self.fixture.request(connection, release(self.request));
    }

    /// Returns whether the requests go to the disk now.
    fn goes(&mut self) -> bool {
        let batches = self.fixture.proposed();
        batches.iter().for_each(|batch| self.fixture.applied(*batch));
        !batches.is_empty()
    }

    fn is_answered(&mut self, connection: ConnectionId) {
        self.fixture.reply(connection, self.request, Answer::Done);
    }

    /// The connection gets an early grant.
    fn inherits(&mut self, connection: ConnectionId) {
        let (session, request) = (SessionId(connection), RequestId(self.request));
        let effects = vec![Effect::Reply { session, request, answer: granted(), after: 0 }];
        self.fixture.handle(Input::Early { effects });
    }

    /// 1 and 2 have sent requests together, and got their replies from one batch.
    fn two_answered() -> Self {
        let mut three = Self::attached();
        three.asks(1);
        three.asks(2);
        assert!(three.goes(), "no reply was sent before");
        three.is_answered(1);
        three.is_answered(2);
        three.fixture.send();
        three
    }
}

// No clock decides here: a pause begins in the first turn that looks for it.

#[test]
fn the_first_returning_client_waits_for_the_other() {
    let mut three = Three::two_answered();
    three.asks(1);
    assert!(!three.goes());
    three.asks(2);
    assert!(three.goes());
}

#[test]
fn on_one_processor_no_client_is_delayed() {
    let mut three = Three::two_answered();
    three.fixture.node.multi_core = false;
    three.asks(1);
    assert!(three.goes());
}

#[test]
fn a_client_with_a_rejected_request_is_expected_too() {
    let mut three = Three::attached();
    three.asks(1);
    let batch = three.fixture.proposed()[0];
    three.fixture.handle(Input::Proposed { batch, results: vec![Err(ProposeError::Retry)] });
    three.fixture.send();
    three.asks(3);
    assert!(!three.goes());
}

#[test]
fn the_request_after_an_early_grant_does_not_wait_for_the_sync() {
    let mut three = Three::attached();
    let batches = |three: &mut Three| three.fixture.proposed().len();
    three.asks(1);
    assert_eq!(batches(&mut three), 1);
    three.asks(2);
    assert_eq!(batches(&mut three), 0, "one at a time");
    three.inherits(3);
    assert_eq!(batches(&mut three), 0, "it has sent no request yet");
    three.asks(3);
    assert_eq!(batches(&mut three), 1, "with all other requests");
    three.asks(3);
    assert_eq!(batches(&mut three), 0, "once");
    // Reads are served between two batches: there must be such a time.
    three.inherits(1);
    three.fixture.handle(Input::Writable(2));
    three.asks(1);
    assert_eq!(batches(&mut three), 0);
    three.fixture.node.clients.take_writable();
    assert_eq!(batches(&mut three), 1);
}

#[test]
fn a_detached_connection_is_not_expected() {
    let mut three = Three::two_answered();
    three.fixture.handle(Input::Detached(2));
    three.asks(1);
    assert!(three.goes());
}

#[test]
fn the_pause_begins_after_the_replies_are_sent() {
    let mut three = Three::attached();
    three.asks(1);
    assert!(three.goes());
    three.is_answered(1);
    assert!(!three.goes(), "no request waits, but the pause has begun");
    // Sending takes longer than the pause.
    three.fixture.now += Duration::from_millis(1);
    three.fixture.send();
    three.asks(3);
    assert!(!three.goes());
}
