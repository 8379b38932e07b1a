use std::collections::BTreeMap;
use std::string::{String, ToString};
use std::vec;
use std::vec::Vec;

use proptest::prelude::*;

use super::*;

fn x(name: &str) -> Request<String> {
    Request::exclusive(name.to_string())
}

fn pool(count: u32) -> Request<String> {
    Request::permits("pool".to_string(), count).expect("positive")
}

fn names(claims: &[Claim<String>]) -> Vec<&str> {
    claims.iter().map(|claim| claim.resource.as_str()).collect()
}

fn with_permits(free: u32) -> impl FnMut(&String, Demand) -> bool {
    move |_, demand| !matches!(demand, Demand::Permits(count) if count > free)
}

#[test]
fn the_first_alternative_from_the_left_is_taken_and_nothing_beyond_it() {
    let request = Request::at_least(2, [x("a"), x("b"), x("c"), x("d")]).unwrap();
    let chosen = request.satisfy(|name, _| name != "b").unwrap();
    assert_eq!(names(&chosen), ["a", "c"]);
    assert_eq!(request.satisfy(|name, _| name == "d"), None);
}

#[test]
fn members_of_a_threshold_are_expressions_and_must_be_different() {
    let both = Request::all([x("a"), x("b")]).unwrap();
    let request = Request::at_least(2, [both, x("c"), x("d")]).unwrap();
    assert_eq!(names(&request.satisfy(|_, _| true).unwrap()), ["a", "b", "c"]);
    // The first member fails, so its part `a` must not stay in the result.
    assert_eq!(names(&request.satisfy(|name, _| name != "b").unwrap()), ["c", "d"]);
    assert_eq!(request.satisfy(|name, _| matches!(name.as_str(), "a" | "c")), None);
}

#[test]
fn a_name_twice_merges_to_the_stronger_mode_and_permits_add() {
    let request = Request::all([Request::shared("a".to_string()), x("a"), pool(2), x("b"), pool(3)]).unwrap();
    let chosen = request.satisfy(|_, _| true).unwrap();
    let demands: Vec<Demand> = chosen.iter().map(|claim| claim.demand).collect();
    assert_eq!(names(&chosen), ["a", "pool", "b"]);
    assert_eq!(demands, [Demand::Exclusive, Demand::Permits(5), Demand::Exclusive]);
    assert!(!request.is_satisfied(with_permits(4)));
}

#[test]
fn an_alternative_that_takes_too_many_permits_from_another_is_reconsidered() {
    let group = Request::any([pool(2), x("x")]).unwrap();
    let request = Request::all([group, pool(2)]).unwrap();
    assert!(request.is_entangled());
    let chosen = request.satisfy(with_permits(3)).unwrap();
    assert_eq!(names(&chosen), ["x", "pool"]);
    assert_eq!(chosen[1].demand, Demand::Permits(2));
    assert_eq!(request.satisfy(with_permits(4)).unwrap()[0].demand, Demand::Permits(4));
}

#[test]
fn ten_of_twenty_has_184_756_terms_and_comes_back_as_ten_of_twenty() {
    let request = Request::at_least(10, (0..20u32).map(Request::exclusive)).unwrap();
    assert_eq!(request.alternatives(), 184_756);
    assert_eq!(request.to_and_or(10_000), Err(RequestError::TooManyTerms { terms: 184_756 }));
    let terms = request.to_and_or(184_756).unwrap();
    assert_eq!(terms.len(), 184_756);
    assert!(terms.iter().all(|term| term.len() == 10));
    assert_eq!(Request::from_and_or(&terms).unwrap(), request);
    assert_ne!(Request::from_and_or(&terms[1..]).unwrap(), request);
}

#[test]
fn and_or_that_is_no_threshold_stays_an_or_of_ands() {
    let request = Request::all([x("a"), Request::any([x("b"), x("c")]).unwrap()]).unwrap();
    let terms = request.to_and_or(2).unwrap();
    assert_eq!(terms.iter().map(|term| names(term)).collect::<Vec<_>>(), [["a", "b"], ["a", "c"]]);
    let back = Request::from_and_or(&terms).unwrap();
    assert_eq!(back.to_and_or(2).unwrap(), terms);
}

#[test]
fn what_is_no_request_is_refused() {
    assert_eq!(Request::<u8>::all([]), Err(RequestError::Empty));
    assert_eq!(Request::at_least(0, [x("a")]), Err(RequestError::Threshold { need: 0, members: 1 }));
    assert_eq!(Request::at_least(2, [x("a")]), Err(RequestError::Threshold { need: 2, members: 1 }));
    assert_eq!(Request::permits("pool", 0), Err(RequestError::NoPermits));
    assert_eq!(Request::any([pool(1), x("pool")]), Err(RequestError::LockAndSemaphore));
    let tangled = Request::at_least(10, (0..20).map(|_| pool(1)));
    assert_eq!(tangled, Err(RequestError::Entangled { alternatives: 184_756 }));
    let wide = Request::at_least(2, (0..20_000).map(|_| pool(1)));
    assert!(matches!(wide, Err(RequestError::Entangled { .. })));
}

#[test]
fn a_serialised_request_that_is_no_tree_is_refused() {
    let claim = || Token::Claim(Claim { resource: 'a', demand: Demand::Exclusive });
    let of = |need, members| Token::Of { need, members };
    for tokens in [vec![], vec![of(1, 2), claim()], vec![claim(), claim()], vec![of(1, 1), claim(), claim()]]
    {
        assert_eq!(Request::try_from(tokens), Err(RequestError::Malformed));
    }
    let good = Request::try_from(vec![of(1, 2), claim(), of(1, 1), claim()]).unwrap();
    assert_eq!(Request::try_from(Vec::from(good.clone())), Ok(good));
}

#[test]
fn limits_on_names_and_depth_are_checked() {
    let mut nested = x("a");
    for _ in 0..8 {
        nested = Request::any([nested]).unwrap();
    }
    assert_eq!(nested.check(Limits::SERVICE), Ok(()));
    let deeper = Request::any([nested]).unwrap();
    assert_eq!(deeper.check(Limits::SERVICE), Err(RequestError::TooDeep { depth: 9 }));
    let wide = Request::all((0..65u32).map(Request::shared)).unwrap();
    assert_eq!(wide.check(Limits::SERVICE), Err(RequestError::TooManyClaims { claims: 65 }));
}

#[test]
fn a_tree_of_a_million_claims_is_handled_without_recursion_or_squares() {
    let all = Request::all((0..1_000_000u32).map(Request::exclusive)).unwrap();
    assert_eq!(all.alternatives(), 1);
    assert!(!all.is_satisfied(|&name, _| name != 999_999));
    // 1 of (0, 1 of (1, 1 of (2, ...))): a deep tree, built from its serialised form.
    let mut tokens = Vec::new();
    for name in 0..1_000_000u32 {
        tokens.push(Token::Of { need: 1, members: 2 });
        tokens.push(Token::Claim(Claim { resource: name, demand: Demand::Exclusive }));
    }
    tokens.push(Token::Claim(Claim { resource: 1_000_000, demand: Demand::Exclusive }));
    let deep = Request::try_from(tokens).unwrap();
    assert_eq!(deep.depth(), 1_000_000);
    let chosen = deep.satisfy(|&name, _| name == 777_777).unwrap();
    assert_eq!(chosen[0].resource, 777_777);
}

#[test]
fn the_normal_form_opens_nested_groups_and_drops_what_is_said_twice() {
    let inner = Request::all([x("b"), Request::all([x("a")]).unwrap()]).unwrap();
    let request = Request::all([x("a"), inner, Request::any([x("c"), x("c")]).unwrap()]).unwrap();
    let expected = Request::all([x("a"), x("b"), x("c")]).unwrap();
    assert_eq!(request.normalized(), expected);
    assert_eq!(expected.normalized(), expected);
}

#[test]
fn the_envelope_is_the_most_any_alternative_takes() {
    let request = Request::all([
        Request::any([pool(2), pool(5), Request::shared("a".to_string())]).unwrap(),
        Request::at_least(2, [pool(1), pool(3), x("a")]).unwrap(),
    ])
    .unwrap();
    let envelope = request.envelope();
    assert_eq!(names(&envelope), ["a", "pool"]);
    assert_eq!(envelope[0].demand, Demand::Exclusive);
    assert_eq!(envelope[1].demand, Demand::Permits(9));
}

/// Names 0 to 3 are locks, 4 and 5 semaphores.
pub(crate) fn any_request() -> impl Strategy<Value = Request<u32>> {
    let claim = (0..6u32, any::<bool>(), 1..4u32).prop_map(|(name, shared, count)| match (name, shared) {
        (4.., _) => Request::permits(name, count).expect("positive"),
        (_, true) => Request::shared(name),
        (_, false) => Request::exclusive(name),
    });
    claim.prop_recursive(3, 16, 4, |inner| {
        (prop::collection::vec(inner, 1..4), any::<prop::sample::Index>()).prop_map(|(members, need)| {
            let need = need.index(members.len()) as u32 + 1;
            Request::at_least(need, members).expect("small")
        })
    })
}

/// The definition to compare with: the first available term of the AND-OR form, with each name merged.
fn first_term(request: &Request<u32>, free: &BTreeMap<u32, u32>) -> Option<Vec<Claim<u32>>> {
    let terms = request.to_and_or(u64::MAX).expect("small");
    terms.into_iter().find(|term| term.iter().all(|claim| is_free(free, claim.resource, claim.demand)))
}

/// A lock with value 2 is free, with 1 it is shared by others, with 0 it is taken. A semaphore has that many
/// permits.
fn is_free(free: &BTreeMap<u32, u32>, name: u32, demand: Demand) -> bool {
    let have = free[&name];
    match demand {
        Demand::Shared => have >= 1,
        Demand::Exclusive => have >= 2,
        Demand::Permits(count) => have >= count,
    }
}

fn any_state() -> impl Strategy<Value = BTreeMap<u32, u32>> {
    prop::collection::vec(0..8u32, 6).prop_map(|have| {
        let level = |name: u32, have: u32| if name < 4 { have % 3 } else { have };
        (0..).zip(have).map(|(name, have)| (name, level(name, have))).collect()
    })
}

proptest! {
    #[test]
    fn the_choice_is_the_first_available_term(request in any_request(), free in any_state()) {
        let chosen = request.satisfy(|&name, demand| is_free(&free, name, demand));
        prop_assert_eq!(&chosen, &first_term(&request, &free));
        let normal = request.normalized();
        prop_assert_eq!(normal.satisfy(|&name, demand| is_free(&free, name, demand)), chosen);
        prop_assert_eq!(normal.normalized(), normal);
    }

    #[test]
    fn and_or_form_and_back_makes_the_same_choices(request in any_request(), free in any_state()) {
        let terms = request.to_and_or(100_000);
        prop_assume!(terms.is_ok());
        if let Ok(back) = Request::from_and_or(&terms.unwrap()) {
            let choose = |request: &Request<u32>| request.satisfy(|&name, demand| is_free(&free, name, demand));
            prop_assert_eq!(choose(&back), choose(&request));
        }
    }

    #[test]
    fn the_envelope_covers_every_term_and_is_reached(request in any_request()) {
        let terms = request.to_and_or(u64::MAX).unwrap();
        for Claim { resource, demand } in request.envelope() {
            let taken = terms.iter().flatten().filter(|claim| claim.resource == resource);
            prop_assert_eq!(taken.map(|claim| claim.demand).max(), Some(demand));
        }
    }
}
