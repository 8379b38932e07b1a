use proptest::prelude::*;

use super::*;

fn print(text: &str) -> String {
    text.parse::<Expr>().unwrap_or_else(|error| panic!("{error}")).to_string()
}

fn refusal(text: &str) -> String {
    text.parse::<Expr>().unwrap_err().to_string()
}

#[test]
fn the_expressions_of_the_manual_are_printed_in_canonical_form() {
    assert_eq!(print("db"), "db");
    assert_eq!(print("src & dst"), "src & dst");
    assert_eq!(print("gpu0|gpu1 |gpu2"), "gpu0 | gpu1 | gpu2");
    assert_eq!(print("2 of (gpu0, gpu1,gpu2 , gpu3)"), "2 of (gpu0, gpu1, gpu2, gpu3)");
    assert_eq!(print("plan & (eu | us):shared & pool*3"), "plan & (eu:shared | us:shared) & pool*3");
    assert_eq!(print("2 of (a & b, c, d)"), "2 of (a & b, c, d)");
}

#[test]
fn an_expression_made_shared_is_the_one_that_the_text_with_the_suffix_means() {
    for text in ["a", "\"a b\" & (c | d:shared)", "2 of (a & b, c, 1 of (d, e))"] {
        let shared = text.parse::<Expr>().unwrap().into_shared().unwrap();
        assert_eq!(shared, format!("({text}):shared").parse().unwrap());
    }
}

#[test]
fn permits_and_an_expression_that_grows_too_long_cannot_be_made_shared() {
    let error = "a & pool*3".parse::<Expr>().unwrap().into_shared().unwrap_err();
    assert_eq!(error.message(), "permits cannot be shared: pool has a count");
    let long = vec!["x".repeat(60); MAX_NAMES].join("&");
    let error = long.parse::<Expr>().unwrap().into_shared().unwrap_err();
    assert!(error.message().contains("more than 4096 bytes"), "{error}");
}

#[test]
fn permits_of_a_name_are_printed_with_their_number() {
    let name = LockName::new("pool 1").unwrap();
    let expr = Expr::permits(name, NonZeroU32::new(3).unwrap());
    assert_eq!(expr.to_string(), "\"pool 1\"*3");
    assert_eq!(expr.to_string().parse::<Expr>().unwrap(), expr);
    assert_eq!(expr.text(), expr.to_string());
}

#[test]
fn the_names_of_a_text_are_those_of_its_expression_each_once() {
    let names = |text: &str| {
        let names = names_in(text).map_err(|error| error.code.name())?;
        Ok::<_, &str>(names.iter().map(LockName::as_str).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(names("db"), Ok("db".into()));
    assert_eq!(names("/team/db:shared"), Ok("team/db".into()));
    assert_eq!(names("b & (a | b)*1 "), Err("invalid-expression"));
    assert_eq!(names("b & (a | b) & pool*3"), Ok("b a pool".into()));
    assert_eq!(names("2 of (a, \"my lock\", c)"), Ok("a my lock c".into()));
    assert_eq!(names("my lock"), Ok("my lock".into()), "a name that must be quoted in an expression");
    assert_eq!(names("a &"), Err("invalid-expression"));
    assert_eq!(names("a\nb"), Err("invalid-name"));
    assert_eq!(names(""), Err("invalid-name"));
}

#[test]
fn and_binds_tighter_than_or() {
    let expr: Expr = "a & b | c".parse().unwrap();
    assert!(matches!(expr.node(), Node::Any(members) if members.len() == 2));
    assert_eq!(print("a & b | c"), "a & b | c");
    assert_eq!(print("a & (b | c)"), "a & (b | c)");
    assert_eq!(print("(a & b) | (c)"), "a & b | c");
    assert_eq!(print("(a | b) | c & (d & e)"), "a | b | c & d & e");
}

#[test]
fn an_integer_is_a_threshold_only_before_of() {
    assert_eq!(print("5"), "5");
    assert_eq!(print("5 & of"), "5 & of");
    assert_eq!(print("1 of(5, of)"), "1 of (5, of)");
    assert_eq!(print("1of"), "1of");
    assert_eq!(refusal("2 of a"), "expected '(' after '2 of', found 'a'\n  2 of a\n       ^");
}

#[test]
fn a_leading_slash_is_dropped_and_quotes_only_where_needed() {
    assert_eq!(print("/a/b & \"c\" & \"d e\""), "a/b & c & \"d e\"");
    assert_eq!(print(r#""a\"b" | "x\\y""#), r#""a\"b" | "x\\y""#);
}

#[test]
fn shared_on_a_group_distributes_and_a_count_on_a_group_is_an_error() {
    assert_eq!(print("(2 of (a, b:shared) & c):shared"), "2 of (a:shared, b:shared) & c:shared");
    assert_eq!(
        refusal("(a | b)*2"),
        "'*' counts permits of one name, not of a group\n  (a | b)*2\n         ^^"
    );
    assert_eq!(
        refusal("(a | pool*2):shared"),
        "permits cannot be shared: pool is counted inside this group\n\
         \x20 (a | pool*2):shared\n              ^^^^^^^"
    );
}

#[test]
fn errors_point_at_the_character() {
    assert_eq!(refusal(""), "expected a name or a group, found the end\n  \n  ^");
    assert_eq!(refusal("a & | b"), "expected a name or a group, found '|'\n  a & | b\n      ^");
    assert_eq!(refusal("a b"), "expected '&', '|' or the end, found 'b'\n  a b\n    ^");
    assert_eq!(refusal("(a, b)"), "a list with a comma needs a threshold: '2 of (a, b, c)'\n  (a, b)\n    ^");
    assert_eq!(refusal("a & (b | c"), "this group is never closed: expected ')'\n  a & (b | c\n      ^");
    assert_eq!(refusal("a & \"b"), "this quote is never closed\n  a & \"b\n      ^");
    assert_eq!(refusal("é & b"), "expected a name or a group, found 'é'\n  é & b\n  ^");
    assert_eq!(refusal("\"é\" & !"), "expected a name or a group, found '!'\n  \"é\" & !\n        ^");
    assert_eq!(refusal("a:exclusive"), "the only mode is ':shared'\n  a:exclusive\n   ^^^^^^^^^^");
    assert_eq!(
        refusal("pool*0 & a"),
        "'*' takes a number of permits, 1 to 4294967295\n  pool*0 & a\n       ^"
    );
    assert_eq!(
        refusal("a//b"),
        "a name must not contain empty segments ('//' or a '/' at the end)\n  a//b\n  ^^^^"
    );
}

#[test]
fn a_threshold_that_can_never_hold_is_an_error() {
    assert!(refusal("0 of (a, b)").starts_with("0 of 2 can never hold"));
    assert!(refusal("3 of (a, b)").starts_with("3 of 2 can never hold"));
    assert!(refusal("99999999999 of (a)").starts_with("this threshold is too large"));
}

#[test]
fn size_is_bounded_in_names_depth_and_bytes() {
    let names = |n: usize| (0..n).map(|i| format!("n{i}")).collect::<Vec<_>>().join("&");
    assert!(names(64).parse::<Expr>().is_ok());
    assert!(refusal(&names(65)).starts_with("an expression has at most 64 names"));
    let nested = |n: usize| format!("{}a{}", "(".repeat(n), ")".repeat(n));
    assert_eq!(print(&nested(8)), "a");
    assert!(refusal(&nested(9)).starts_with("groups are nested at most 8 deep"));
    assert!(refusal(&"(".repeat(4000)).starts_with("groups are nested at most 8 deep"));
    assert!(refusal(&"a".repeat(5000)).starts_with("an expression has at most 4096 bytes"));
    assert!(refusal(&"é".repeat(4000)).starts_with("an expression has at most 4096 bytes"));
}

#[test]
fn a_canonical_form_beyond_the_bound_is_refused_when_it_is_read() {
    let name = "x".repeat(505);
    let text = format!("({}):shared", vec![name; 8].join("|"));
    assert!(text.len() <= MAX_BYTES);
    assert!(refusal(&text).starts_with("its canonical form has more than 4096 bytes"));
    // Printing adds a space to each threshold, and two spaces and a mode to each name. So a text below the
    // bound grows beyond it.
    let member = format!("{}abcdefgh{}", "1 of(".repeat(7), ")".repeat(7));
    let text = format!("({}):shared", vec![member; MAX_NAMES].join("&"));
    assert!(text.len() < MAX_BYTES - 10 * MAX_NAMES);
    assert!(refusal(&text).starts_with("its canonical form has more than 4096 bytes"));
}

#[test]
fn the_longest_that_half_of_the_bound_becomes_is_within_it() {
    for name in ["a", "ab", "/a", "of", "2", "\"a\"", "\"é\""] {
        for depth in 0..MAX_DEPTH - 1 {
            let member = format!("{}{name}{}", "1 of(".repeat(depth), ")".repeat(depth));
            for (group, separator) in [("(", "&"), ("(", "|"), ("1 of(", ",")] {
                let typed = |members| format!("{group}{}):shared", vec![&*member; members].join(separator));
                let longest = (1..=MAX_NAMES).rev().map(typed).find(|typed| typed.len() <= MAX_BYTES / 2);
                let expr: Expr = longest.unwrap().parse().unwrap();
                assert_eq!(expr.to_string().parse::<Expr>().as_ref(), Ok(&expr));
            }
        }
    }
}

#[test]
fn a_long_text_is_shown_around_the_place_only() {
    let text = format!("{} ! {}", vec!["name"; 30].join(" & "), vec!["name"; 20].join(" & "));
    let shown = refusal(&text);
    let lines: Vec<&str> = shown.lines().collect();
    assert!(lines[1].len() < 140);
    assert_eq!(lines[1].as_bytes()[lines[2].len() - 1], b'!');
}

#[test]
fn spans_are_no_part_of_equality() {
    let (a, b): (Expr, Expr) = ("a  &  b".parse().unwrap(), "a & b".parse().unwrap());
    assert_eq!(a, b);
    assert_eq!(a.leaves()[1].span, 6..7);
    assert_eq!(b.leaves()[1].span, 4..5);
}

#[test]
fn it_travels_as_its_text_and_is_checked_on_arrival() {
    for text in ["a", "a & b:shared", "\"odd name\" | pool*3"] {
        let expr: Expr = text.parse().unwrap();
        let bytes = postcard::to_allocvec(&expr).unwrap();
        assert_eq!(postcard::from_bytes::<Expr>(&bytes).unwrap(), expr);
    }
    let bytes = postcard::to_allocvec("a &").unwrap();
    assert!(postcard::from_bytes::<Expr>(&bytes).is_err());
}

/// Generates the text of an arbitrary tree, with redundant groups and irregular spaces.
fn any_text() -> impl Strategy<Value = String> {
    let name = prop_oneof![
        "[a-c0-9_.-]{1,4}",
        "/?[a-z]{1,3}/[a-z]{1,3}",
        Just("of".to_owned()),
        Just("\"x y\"".to_owned()),
        Just("\"q\\\"\\\\\"".to_owned()),
    ];
    let leaf = (name, prop_oneof![Just(""), Just(":shared"), Just("*2"), Just(" * 7")])
        .prop_map(|(name, suffix)| format!("{name}{suffix}"));
    leaf.prop_recursive(5, 40, 4, |inner| {
        let members = prop::collection::vec(inner, 1..4);
        (members, 0..4usize, 1..4usize).prop_map(|(members, kind, count)| match kind {
            0 => members.join("&"),
            1 => format!("({})", members.join(" | ")),
            2 => format!("({})", members.join(" & ")),
            _ => format!(" {} of ({})", count.min(members.len()), members.join(" ,")),
        })
    })
}

proptest! {
    #[test]
    fn a_printed_expression_parses_to_the_same_expression(text in any_text()) {
        if let Ok(expr) = text.parse::<Expr>() {
            let printed = expr.to_string();
            let again: Expr = printed.parse().unwrap();
            prop_assert_eq!(&again, &expr);
            prop_assert_eq!(again.to_string(), printed);
        }
    }

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        if let Err(error) = String::from_utf8_lossy(&bytes).parse::<Expr>() {
            prop_assert_eq!(error.to_string().lines().count(), 3);
        }
    }

    #[test]
    fn random_tokens_never_panic_and_carets_stand_below_the_text(
        text in prop::collection::vec(
            prop::sample::select(vec![
                "a", "2", "of", "(", ")", ",", "&", "|", ":", "shared", "*", "\"", "\\", "/", " ", "é",
                "\u{0}",
            ]),
            0..40,
        )
    ) {
        if let Err(error) = text.concat().parse::<Expr>() {
            let shown = error.to_string();
            let lines: Vec<&str> = shown.split('\n').collect();
            prop_assert!(lines[2].chars().count() <= lines[1].chars().count() + 1, "{}", shown);
        }
    }
}
