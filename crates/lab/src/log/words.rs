//! JSON in the words of the papers.
//!
//! A message of an algorithm is an enum: its JSON is `"reply"` or `{"request":{"time":3,"site":0}}`. The
//! variant is the *kind*; its fields follow, without the punctuation. Several algorithms wrap the enum in a
//! struct (`{"time":3,"says":"request"}`) or in a layer (`{"mutex":{...}}`): the kind is that of the enum.
//!
//! Our messages carry fields that no paper has: fences, echoes of the request that is answered, numbers of
//! rounds. [`Detail::Paper`] leaves them out, and [`Detail::Full`] shows every field.

use serde_json::{Map, Value};

/// The fields that are shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    /// The fields that the paper has.
    Paper,
    /// All fields.
    Full,
}

/// The kind of a value that is no enum.
pub(super) const PLAIN: &str = "message";

/// The length of a label in characters. A longer one is cut.
const MOST_LABEL: usize = 28;

/// The names of the fields that hold the enum of a message. The second of a pair tells whether the paper's
/// version of the variant has fields.
const BODIES: [(&str, bool); 4] = [("body", true), ("says", false), ("what", false), ("message", true)];

/// The layers that wrap the messages of an inner algorithm.
const LAYERS: [&str; 6] = ["mutex", "election", "detector", "rounds", "process", "resolution"];

/// The fields that only our messages and states have. Timeouts are constants, and a picture shows them as
/// brackets.
const OURS: [&str; 20] = [
    "account",
    "fence",
    "seen",
    "round",
    "number",
    "term",
    "view",
    "epoch",
    "queued",
    "told",
    "generation",
    "way",
    "door",
    "latest",
    "unheard",
    "answer_timeout",
    "coordinator_timeout",
    "own_under_way",
    "own_awaited",
    "reminders",
];

/// Our names of fields and timers, with the names of the papers.
const PAPER_NAMES: [(&str, &str); 9] = [
    ("heard", "RN"),
    ("served", "LN"),
    ("wanted", "request"),
    ("later", "later from"),
    ("replies", "replies from"),
    ("held", "permissions of"),
    ("arbiter.waiting", "queue"),
    ("arbiter.holder.request", "locked for"),
    ("arbiter.holder.inquired", "inquired"),
];

/// Returns the name of the variant; [`PLAIN`] for a value that is no enum.
pub(super) fn kind(json: &str) -> &str {
    for (body, _) in BODIES {
        if let Some(inner) = field(json, body) {
            return kind(inner);
        }
    }
    let name = variant(json);
    if LAYERS.contains(&name)
        && let Some(inner) = field(json, name)
    {
        let kind = kind(inner);
        return if kind == PLAIN { name } else { kind };
    }
    if field(json, "token").is_some() { "token" } else { name }
}

/// Returns the kind of a message of an algorithm. Messages that are no enum have a name there.
pub(super) fn kind_in<'a>(algorithm: &str, json: &'a str) -> &'a str {
    let problem = algorithm.split('/').next().unwrap_or_default();
    match (kind(json), problem) {
        (PLAIN, _) if algorithm == "mutex/token-ring" => "token",
        (PLAIN, "detector") => "heartbeat",
        ("detector", "deadlock") if algorithm.contains("edge-chasing") => "probe",
        ("detector", "deadlock") => "detector",
        ("detector", _) => "heartbeat",
        (kind, _) => kind,
    }
}

fn variant(json: &str) -> &str {
    let name = match json.as_bytes() {
        [b'"', ..] => json[1..].split('"').next(),
        [b'{', b'"', ..] if has_one_key(json) => json[2..].split('"').next(),
        _ => None,
    };
    // The heartbeat of a detector is a struct with a number.
    let is_name = |name: &&str| !name.is_empty() && *name != "number" && !name.contains('\\');
    name.filter(is_name).unwrap_or(PLAIN)
}

/// Returns the name of a timer: that of the paper if it has one.
pub(super) fn timer(json: &str) -> String {
    const PAPER_NAMES: [(&str, &str); 3] = [("Answer", "T"), ("Coordinator", "T'"), ("Beat", "T")];
    let name = kind(json);
    let known = PAPER_NAMES.iter().find(|(ours, _)| *ours == name);
    match (known, field(json, "Silent")) {
        (Some((_, theirs)), _) => (*theirs).to_owned(),
        (None, Some(site)) => format!("T + D of n{site}"),
        (None, None) => short(json),
    }
}

/// Returns a message as a label: `request(3,0)`.
pub(super) fn short(json: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(json) else { return cut(json) };
    let name = spaced(kind(json));
    let mut shown = Vec::new();
    payload(&value, &mut shown);
    match shown.as_slice() {
        [] => cut(&name),
        shown => cut(&format!("{name}({})", shown.join(","))),
    }
}

/// Collects the values that a label shows in parentheses.
fn payload(value: &Value, shown: &mut Vec<String>) {
    let Value::Object(fields) = value else {
        if !matches!(value, Value::String(_)) {
            scalars(value, shown);
        }
        return;
    };
    let body = BODIES.iter().find_map(|(name, has_fields)| Some((fields.get(*name)?, *name, *has_fields)));
    if let Some((body, name, has_fields)) = body {
        if has_fields {
            payload(body, shown);
        }
        let others = fields.iter().filter(|(key, _)| *key != name && key.as_str() != "rank");
        others.filter(|(key, _)| !is_ours(key)).for_each(|(_, value)| scalars(value, shown));
        return;
    }
    match fields.iter().next() {
        Some((key, inner)) if fields.len() == 1 && LAYERS.contains(&key.as_str()) => payload(inner, shown),
        // The part of a snapshot has too much content for a label.
        Some((_, Value::Object(inner))) if fields.len() == 1 && inner.contains_key("state") => {
            inner.get("site").into_iter().for_each(|site| scalars(site, shown));
        }
        Some((_, Value::Object(inner))) if fields.len() == 1 => {
            carried(inner).for_each(|(_, value)| scalars(value, shown));
        }
        Some((_, inner)) if fields.len() == 1 => scalars(inner, shown),
        _ => carried(fields).for_each(|(_, value)| scalars(value, shown)),
    }
}

/// The fields of a variant that the paper has. A named stamp beside other fields is the echo of the request
/// that the message serves.
fn carried(fields: &Map<String, Value>) -> impl Iterator<Item = (&String, &Value)> {
    fields.iter().filter(|(key, value)| !is_ours(key) && !is_stamp(value) && !is_usual_rank(key, value))
}

fn is_ours(field: &str) -> bool {
    OURS.contains(&field)
}

/// Whether the field is the rank that every candidate has by default.
fn is_usual_rank(field: &str, value: &Value) -> bool {
    field == "rank" && *value == 1
}

fn is_stamp(value: &Value) -> bool {
    let Value::Object(fields) = value else { return false };
    fields.len() == 2 && fields.contains_key("time") && fields.contains_key("site")
}

/// Returns a message, command or event in words: `request time 3, site 0`.
pub(super) fn long(json: &str, detail: Detail) -> String {
    match (serde_json::from_str::<Value>(json), detail) {
        (Ok(value), Detail::Full) => in_words(&value),
        (Ok(value), Detail::Paper) => in_words(&paper(value)),
        (Err(_), _) => json.to_owned(),
    }
}

/// Removes our wrappers and our fields.
fn paper(value: Value) -> Value {
    let Value::Object(mut fields) = value else { return value };
    for (name, has_fields) in BODIES {
        let Some(body) = fields.remove(name) else { continue };
        let body = if has_fields { paper(body) } else { Value::String(kind(&body.to_string()).to_owned()) };
        fields.retain(|key, _| !is_ours(key) && key != "rank");
        if fields.is_empty() {
            return body;
        }
        let name = match &body {
            Value::String(kind) => kind.clone(),
            other => kind(&other.to_string()).to_owned(),
        };
        return Value::Object(Map::from_iter([(name, Value::Object(fields))]));
    }
    let Some((key, inner)) = fields.iter().next().filter(|_| fields.len() == 1) else {
        return Value::Object(fields);
    };
    match inner {
        _ if LAYERS.contains(&key.as_str()) && kind(&inner.to_string()) != PLAIN => paper(inner.clone()),
        Value::Object(inner) if !is_stamp(&fields[key]) => {
            let kept: Map<_, _> = carried(inner).map(|(key, value)| (key.clone(), value.clone())).collect();
            let kept = if kept.is_empty() { Value::Null } else { Value::Object(kept) };
            Value::Object(Map::from_iter([(key.clone(), kept)]))
        }
        _ => Value::Object(fields),
    }
}

/// Returns the state of a site as fields with values, in the order of the state.
pub(super) fn state(json: &str, detail: Detail) -> Vec<(String, String)> {
    let mut shown = Vec::new();
    match serde_json::from_str::<Value>(json) {
        Ok(value) => fields_of("", inside(&value), detail, &mut shown),
        Err(_) => shown.push((String::new(), json.to_owned())),
    }
    shown
}

/// The algorithm inside a wrapper that plants flaws.
fn inside(state: &Value) -> &Value {
    match state.get("flaw") {
        Some(_) => state.get("site").unwrap_or(state),
        None => state,
    }
}

fn fields_of(path: &str, value: &Value, detail: Detail, shown: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) if !is_value(value) => {
            for (key, value) in fields {
                if detail == Detail::Paper && (is_ours(key) || is_usual_rank(key, value)) {
                    continue;
                }
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                fields_of(&path, value, detail, shown);
            }
        }
        _ => shown.push((paper_name(path), compact(value, detail))),
    }
}

/// Whether an object is one value for the reader: a stamp, a map of sites, or a variant.
fn is_value(value: &Value) -> bool {
    let Value::Object(fields) = value else { return true };
    let is_map = fields.len() == 2 && fields.contains_key("present") && fields.contains_key("rows");
    is_stamp(value) || is_map || fields.len() == 1 && !fields.values().all(Value::is_object)
}

fn paper_name(path: &str) -> String {
    for (ours, theirs) in PAPER_NAMES {
        if path == ours {
            return theirs.to_owned();
        }
        if let Some(above) = path.strip_suffix(ours)
            && above.ends_with('.')
        {
            return format!("{above}{theirs}");
        }
    }
    spaced(path)
}

/// Returns a value of a state: `(3,0)` for a stamp, `{1, 2}` for the sites of a map, `-` for nothing.
fn compact(value: &Value, detail: Detail) -> String {
    let list = |values: &mut dyn Iterator<Item = String>| values.collect::<Vec<_>>().join(", ");
    match value {
        Value::Null => "-".to_owned(),
        Value::String(text) => spaced(text),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Number(number) => number.to_string(),
        Value::Array(items) => format!("[{}]", list(&mut items.iter().map(|item| compact(item, detail)))),
        Value::Object(fields) if is_stamp(value) => format!("({},{})", fields["time"], fields["site"]),
        Value::Object(fields) => match (fields.get("present"), fields.get("rows")) {
            (Some(Value::Array(sites)), Some(rows)) => {
                let site = |site: &Value| match (detail, rows.get(site.as_u64().unwrap_or(0) as usize)) {
                    (Detail::Full, Some(row)) => format!("{site}: {}", compact(row, detail)),
                    _ => site.to_string(),
                };
                format!("{{{}}}", list(&mut sites.iter().map(site)))
            }
            _ => {
                let is_shown = |key: &str, value: &Value| {
                    detail == Detail::Full || !is_ours(key) && !is_usual_rank(key, value) && !value.is_null()
                };
                let shown = fields.iter().filter(|(key, value)| is_shown(key, value));
                let shown = shown.map(|(key, value)| format!("{} {}", spaced(key), compact(value, detail)));
                let shown: Vec<String> = shown.collect();
                match &shown[..] {
                    [one] => one.clone(),
                    all => format!("({})", all.join(", ")),
                }
            }
        },
    }
}

fn in_words(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => spaced(text),
        Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::Array(items) => {
            format!("[{}]", items.iter().map(in_words).collect::<Vec<_>>().join(", "))
        }
        Value::Object(fields) => fields
            .iter()
            .map(|(key, value)| match value {
                Value::Object(inner) if fields.len() > 1 && inner.len() > 1 => {
                    format!("{} ({})", spaced(key), in_words(value))
                }
                Value::Null if fields.len() == 1 => spaced(key),
                _ => format!("{} {}", spaced(key), in_words(value)),
            })
            .collect::<Vec<_>>()
            .join(", "),
    }
}

fn scalars(value: &Value, shown: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::String(text) => shown.push(spaced(text)),
        Value::Bool(_) | Value::Number(_) => shown.push(value.to_string()),
        Value::Array(items) if items.iter().all(|item| !item.is_object() && !item.is_array()) => {
            shown.push(compact(value, Detail::Paper).replace(", ", ","));
        }
        Value::Array(items) => items.iter().for_each(|item| scalars(item, shown)),
        Value::Object(fields) => {
            let kept = fields.iter().filter(|(key, value)| !is_ours(key) && !is_usual_rank(key, value));
            kept.for_each(|(_, value)| scalars(value, shown));
        }
    }
}

pub(super) fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

fn cut(text: &str) -> String {
    if text.chars().count() <= MOST_LABEL {
        return text.to_owned();
    }
    text.chars().take(MOST_LABEL - 1).chain(['…']).collect()
}

/// Returns the value of a field of a JSON object.
fn field<'a>(json: &'a str, name: &str) -> Option<&'a str> {
    Members { rest: json.strip_prefix('{')? }.find(|(key, _)| *key == name).map(|(_, value)| value)
}

/// Whether a JSON object has exactly one key.
fn has_one_key(json: &str) -> bool {
    let mut members = Members { rest: json.strip_prefix('{').unwrap_or_default() };
    members.next().is_some() && members.next().is_none()
}

/// The members of a JSON object, found without parsing their values. It ends at the first malformed member.
struct Members<'a> {
    rest: &'a str,
}

impl<'a> Iterator for Members<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        let after_quote = self.rest.trim_start().strip_prefix('"')?;
        let key = &after_quote[..end_of_string(after_quote)?];
        let value = after_quote[key.len() + 1..].trim_start().strip_prefix(':')?;
        let end = end_of_value(value)?;
        self.rest = &value[end + 1..];
        Some((key, value[..end].trim()))
    }
}

/// Returns the place of the quote that ends a JSON string.
fn end_of_string(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

/// Returns the place of the comma or brace that ends a value of an object.
fn end_of_value(text: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0_u32, false, false);
    for (place, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b',' | b'}' if depth == 0 => return Some(place),
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_is_the_variant() {
        assert_eq!(kind(r#""reply""#), "reply");
        assert_eq!(kind(r#"{"request":{"time":3,"site":0}}"#), "request");
        assert_eq!(kind(r#"{"a,b\"}":1}"#), PLAIN);
        for plain in
            ["7", "[1,2]", r#"{"time":3,"site":0}"#, r#""""#, "{}", "", "{", "\"", r#"{"a":"x","b":1}"#]
        {
            assert_eq!(kind(plain), PLAIN, "{plain}");
        }
    }

    #[test]
    fn the_kind_of_a_wrapped_message_is_that_of_the_enum() {
        for (json, expected) in [
            (r#"{"time":3,"says":"request"}"#, "request"),
            (r#"{"time":3,"says":{"reply":2}}"#, "reply"),
            (r#"{"rank":0,"body":"coordinator"}"#, "coordinator"),
            (r#"{"view":{"a":[1,{"body":2}]},"body":{"election":{"rank":0,"site":3}}}"#, "election"),
            (r#"{"mutex":{"term":0,"body":{"grant":{"number":1,"fence":2}}}}"#, "grant"),
            (r#"{"election":{"rank":0,"body":"ok"}}"#, "ok"),
            (r#"{"detector":{"number":7}}"#, "detector"),
            (r#"{"token":7,"oldest":null,"time":3}"#, "token"),
        ] {
            assert_eq!(kind(json), expected, "{json}");
        }
    }

    #[test]
    fn a_message_is_put_into_words() {
        let request = r#"{"request":{"time":3,"site":0}}"#;
        let full = |json| long(json, Detail::Full);
        assert_eq!(short(request), "request(3,0)");
        assert_eq!(full(request), "request time 3, site 0");
        assert_eq!(short(r#""not_inside""#), "not inside");
        assert_eq!(full(r#"{"granted":{"fence":5}}"#), "granted fence 5");
        assert_eq!(full(r#"{"witness":7}"#), "witness 7");
        assert_eq!(short(r#"{"a":1,"b":[2,null]}"#), "message(1,[2,-])");
        assert_eq!(full(r#"{"a":{"x":1,"y":2},"b":true}"#), "a (x 1, y 2), b true");
    }

    #[test]
    fn fields_that_no_paper_has_are_shown_only_in_full() {
        for (json, label, words) in [
            (r#"{"reply":{"to":{"time":3,"site":0},"seen":4}}"#, "reply", "reply"),
            (r#"{"time":3,"says":{"reply":2}}"#, "reply(3)", "reply time 3"),
            (r#"{"rank":0,"body":"ok"}"#, "ok", "ok"),
            (r#"{"view":[],"body":{"election":{"rank":1,"site":3}}}"#, "election(3)", "election site 3"),
            (r#"{"mutex":{"term":0,"body":{"grant":{"number":1,"fence":2}}}}"#, "grant", "grant"),
            (
                r#"{"privilege":{"served":[1,0],"queue":[2],"queued":[2],"fence":3}}"#,
                "privilege([1,0],[2])",
                "privilege served [1, 0], queue [2]",
            ),
            (r#"{"granted":{"fence":5}}"#, "granted", "granted"),
            (r#"{"app":{"to":1,"amount":50}}"#, "app(1,50)", "app to 1, amount 50"),
        ] {
            assert_eq!((short(json).as_str(), long(json, Detail::Paper).as_str()), (label, words), "{json}");
        }
    }

    #[test]
    fn a_state_is_shown_in_the_names_of_the_papers() {
        let ricart_agrawala = r#"{"door":{"place":"waiting","queued":0},"clock":4,"wanted":{"time":4,"site":1},
            "replies":[0],"deferred":{"present":[2],"rows":[0,0,5]}}"#;
        let shown = |json, detail| {
            let fields = state(json, detail).into_iter();
            fields.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>()
        };
        let expected = ["clock 4", "request (4,1)", "replies from [0]", "deferred {2}"];
        assert_eq!(shown(ricart_agrawala, Detail::Paper), expected);
        assert!(shown(ricart_agrawala, Detail::Full).contains(&"deferred {2: 5}".to_owned()));
        let suzuki_kasami = r#"{"heard":[1,0],"token":{"served":[0,0],"queue":[],"fence":1}}"#;
        assert_eq!(shown(suzuki_kasami, Detail::Paper), ["RN [1, 0]", "token.LN [0, 0]", "token.queue []"]);
    }

    #[test]
    fn a_long_label_is_cut_and_text_that_is_no_json_is_left_alone() {
        assert_eq!(short(&format!("{:?}", "x".repeat(90))).chars().count(), MOST_LABEL);
        let text = "no json";
        assert_eq!((short(text), long(text, Detail::Full)), (text.to_owned(), text.to_owned()));
    }
}
