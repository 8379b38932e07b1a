//! JSON as people read it.
//!
//! What an algorithm says is an enum: its JSON is `"reply"` or `{"request":{"time":3,"site":0}}`. The variant
//! is the *kind*; what it carries is shown after it, without the punctuation.

use serde_json::Value;

/// The kind of something that is no enum.
const PLAIN: &str = "message";

/// Labels longer than this are cut.
const MOST_LABEL: usize = 28;

/// The variant's name; `message` for what is no enum.
pub(super) fn kind(json: &str) -> &str {
    let name = match json.as_bytes() {
        [b'"', ..] => json[1..].split('"').next(),
        [b'{', b'"', ..] if has_one_key(json) => json[2..].split('"').next(),
        _ => None,
    };
    name.filter(|name| !name.is_empty() && !name.contains('\\')).unwrap_or(PLAIN)
}

/// `request(3,0)`.
pub(super) fn short(json: &str) -> String {
    let Ok(value) = serde_json::from_str::<Value>(json) else { return cut(json) };
    let kind = kind(json);
    let carried = match &value {
        Value::String(_) => return cut(&spaced(kind)),
        Value::Object(fields) if fields.len() == 1 && kind != PLAIN => fields.values().next(),
        other => Some(other),
    };
    let mut scalars = Vec::new();
    carried.into_iter().for_each(|value| flatten(value, &mut scalars));
    if scalars.is_empty() {
        return cut(&spaced(kind));
    }
    cut(&format!("{}({})", spaced(kind), scalars.join(",")))
}

/// `request time 3, site 0`.
pub(super) fn long(json: &str) -> String {
    match serde_json::from_str::<Value>(json) {
        Ok(value) => in_words(&value),
        Err(_) => json.to_owned(),
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

fn flatten(value: &Value, scalars: &mut Vec<String>) {
    match value {
        Value::Null => {}
        Value::String(text) => scalars.push(spaced(text)),
        Value::Bool(_) | Value::Number(_) => scalars.push(value.to_string()),
        Value::Array(items) => items.iter().for_each(|item| flatten(item, scalars)),
        Value::Object(fields) => fields.values().for_each(|field| flatten(field, scalars)),
    }
}

fn spaced(name: &str) -> String {
    name.replace('_', " ")
}

fn cut(text: &str) -> String {
    if text.chars().count() <= MOST_LABEL {
        return text.to_owned();
    }
    text.chars().take(MOST_LABEL - 1).chain(['…']).collect()
}

/// Whether a JSON object has exactly one key: no comma outside of strings at the first level.
fn has_one_key(json: &str) -> bool {
    let (mut depth, mut quoted, mut escaped) = (0_u32, false, false);
    for byte in json.bytes() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            _ if quoted => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            b',' if depth == 1 => return false,
            _ => {}
        }
    }
    true
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
    fn a_message_is_put_into_words() {
        let request = r#"{"request":{"time":3,"site":0}}"#;
        assert_eq!(short(request), "request(3,0)");
        assert_eq!(long(request), "request time 3, site 0");
        assert_eq!(short(r#""not_inside""#), "not inside");
        assert_eq!(long(r#"{"granted":{"fence":5}}"#), "granted fence 5");
        assert_eq!(long(r#"{"witness":7}"#), "witness 7");
        assert_eq!(short(r#"{"a":1,"b":[2,null]}"#), "message(1,2)");
        assert_eq!(long(r#"{"a":{"x":1,"y":2},"b":true}"#), "a (x 1, y 2), b true");
    }

    #[test]
    fn a_long_label_is_cut_and_text_that_is_no_json_is_left_alone() {
        assert_eq!(short(&format!("{:?}", "x".repeat(90))).chars().count(), MOST_LABEL);
        assert_eq!((short("no json"), long("no json")), ("no json".to_owned(), "no json".to_owned()));
    }
}
