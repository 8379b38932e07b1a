//! Elections: a lock with a value.

use super::*;

/// Returns the session that holds the name exclusively, with the value that it proclaims.
fn leader(w: &World, election: &str) -> Option<(SessionId, Option<Vec<u8>>)> {
    let report = w.state.why(&name(election));
    let holder = report.holders.first().filter(|holder| holder.claim == Claim::Exclusive)?;
    Some((holder.session, report.value))
}

#[test]
fn an_election_is_a_lock_with_a_value() {
    let mut w = World::new();
    let (a, b) = (w.client(), w.client());
    let campaign = |value: &str| with(acquire("boss"), |acquire| acquire.value = Some(value.into()));
    let first = w.hold(a, campaign("a:1"));
    let second = w.wait(b, campaign("b:1"));
    assert_eq!(leader(&w, "boss"), Some((a.0, Some(b"a:1".to_vec()))));
    w.done(a, Op::Proclaim { grant: first, value: b"a:2".to_vec() });
    assert_eq!(leader(&w, "boss"), Some((a.0, Some(b"a:2".to_vec()))));
    w.release(a, first);
    assert_eq!(w.granted(b, second).unwrap(), "boss");
    assert_eq!(leader(&w, "boss"), Some((b.0, Some(b"b:1".to_vec()))));
    w.release(b, second);
    assert_eq!(leader(&w, "boss"), None);
}

#[test]
fn a_proclaimed_value_ends_with_the_campaign() {
    let value = |w: &World| leader(w, "x").and_then(|(_, value)| value);
    let campaign = || with(by("A", "x"), |acquire| acquire.value = Some(b"A".to_vec()));
    // The campaign is released while its owner holds the name by another grant.
    let mut w = World::new();
    let c = w.client();
    let elected = w.hold(c, campaign());
    w.hold(c, by("A", "x"));
    assert_eq!(value(&w), Some(b"A".to_vec()));
    w.release(c, elected);
    assert_eq!(value(&w), None);
    // The campaign is downgraded. Then another owner takes the name as a plain lock. The name is never free
    // in between.
    let mut w = World::new();
    let c = w.client();
    let elected = w.hold(c, campaign());
    w.request(c, Op::Downgrade { grant: elected });
    w.hold(c, by("B", "x:shared"));
    w.release(c, elected);
    w.hold(c, by("B", "x"));
    assert_eq!(value(&w), None);
}

#[test]
fn only_a_leader_proclaims_and_only_single_names_are_campaigned_for() {
    let mut w = World::new();
    let a = w.client();
    let plain = w.hold(a, acquire("x"));
    let proclaim = |grant| Op::Proclaim { grant, value: vec![1] };
    assert_eq!(w.refused(a, proclaim(plain)).code, Code::InvalidArgument);
    assert_eq!(w.refused(a, proclaim(RequestId(999))).code, Code::NotHeld);
    for expr in ["y & z", "y:shared"] {
        let op = with(acquire(expr), |acquire| acquire.value = Some(vec![1]));
        assert_eq!(w.refused(a, op).code, Code::InvalidArgument);
    }
    let huge = with(acquire("y"), |acquire| acquire.value = Some(vec![0; MAX_VALUE_BYTES + 1]));
    assert_eq!(w.refused(a, huge).code, Code::TooLarge);
    assert_eq!(w.state.totals().names, 1);
}

#[test]
fn only_the_campaign_proclaims_not_another_grant_of_its_owner() {
    let mut w = World::new();
    let c = w.client();
    let elected = w.hold(c, with(by("A", "x"), |acquire| acquire.value = Some(b"A".to_vec())));
    let plain = w.hold(c, by("A", "x"));
    let proclaim = |grant| Op::Proclaim { grant, value: vec![1] };
    assert_eq!(w.refused(c, proclaim(plain)).code, Code::InvalidArgument);
    w.done(c, proclaim(elected));
    assert_eq!(leader(&w, "x").unwrap().1, Some(vec![1]));
}

#[test]
fn an_owner_campaigns_for_a_name_once() {
    let mut w = World::new();
    let c = w.client();
    let campaign = |value: u8| with(by("A", "x"), |acquire| acquire.value = Some(vec![value]));
    let held = w.hold(c, acquire("x"));
    let first = w.wait(c, campaign(1));
    // While the first campaign waits, a second one of the same owner is rejected.
    assert_eq!(w.refused(c, urgent(campaign(2), 1)).code, Code::InvalidArgument);
    w.release(c, held);
    assert_eq!(w.refused(c, campaign(2)).code, Code::InvalidArgument);
    assert_eq!(leader(&w, "x").unwrap().1, Some(vec![1]));
    w.done(c, Op::Proclaim { grant: first, value: vec![3] });
    w.release(c, first);
    w.hold(c, campaign(2));
}

#[test]
fn a_watch_of_an_election_reports_the_end_of_its_leader() {
    let mut w = World::new();
    let c = w.client();
    let elected = w.hold(c, with(acquire("x"), |acquire| acquire.value = Some(b"A".to_vec())));
    let told = |w: &World| w.effects.iter().filter(|effect| matches!(effect, Effect::Changed(_))).count();
    w.request(c, Op::Downgrade { grant: elected });
    assert_eq!((leader(&w, "x"), told(&w)), (None, 1));
    // A lock that is no election has no leader that could step down.
    let plain = w.hold(c, acquire("y"));
    w.request(c, Op::Downgrade { grant: plain });
    assert_eq!(told(&w), 0);
}
