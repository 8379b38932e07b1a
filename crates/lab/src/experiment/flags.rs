//! The flags of a work. A flag is defined once: as a field of the problem's work, with `#[arg]` and
//! `#[serde]`.
//!
//! clap derives the flags from the struct, and serde its JSON. [`added`] takes the defaults in the help from
//! the JSON of the default value. [`written`] turns the difference of two values into flags again.

use std::ops::Range;
use std::time::Duration;

use clap::Command;
use conclave_check::{Order, Recovery};
use conclave_kernel::{Ratio, time};
use serde::Serialize;
use serde_json::Value;

/// Adds the flags of a work to a command. No flag has a value of its own if it is not given: a caller reads
/// the flags into a work that has values already, with [`clap::FromArgMatches::update_from_arg_matches`].
pub fn added<W: clap::Args + Default + Serialize>(command: Command) -> Command {
    let known: Vec<_> = command.get_arguments().map(|arg| arg.get_id().clone()).collect();
    let defaults = json(&W::default());
    // The heading would otherwise apply to the arguments that the command adds later.
    let command = W::augment_args_for_update(command).next_help_heading(None);
    command.mut_args(|arg| {
        let name = arg.get_long().unwrap_or_default().replace('-', "_");
        let default = defaults.get(&name).and_then(as_text).filter(|_| !known.contains(arg.get_id()));
        match (default, arg.get_help().map(ToString::to_string)) {
            (Some(default), Some(help)) => arg.help(format!("{help} [default: {default}]")),
            _ => arg,
        }
    })
}

/// The flags that turn the value `default` into `value`, such as `--load high`.
pub fn written<T: Serialize>(value: &T, default: &T) -> Vec<String> {
    let (value, default) = (json(value), json(default));
    let fields = value.as_object().into_iter().flatten();
    let different = fields.filter(|(name, field)| default.get(name) != Some(field));
    different.flat_map(|(name, field)| flag(&name.replace('_', "-"), field)).collect()
}

fn flag(name: &str, value: &Value) -> Vec<String> {
    match value {
        Value::Null => Vec::new(),
        Value::Bool(true) => vec![format!("--{name}")],
        Value::Bool(false) => vec![format!("--{name}=false")],
        Value::Array(items) => items.iter().flat_map(|item| flag(name, item)).collect(),
        value => vec![format!("--{name} {}", quoted(&as_text(value).unwrap_or_default()))],
    }
}

/// Returns a word as a shell reads it: in quotes if it contains other characters than those of plain words.
fn quoted(word: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "_.,:+@%=/-".contains(letter);
    if !word.is_empty() && word.chars().all(is_plain) { word.into() } else { format!("'{word}'") }
}

/// Returns the text of a field, as its flag has it; `None` if the field has no value.
fn as_text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Returns a value as JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Value {
    serde_json::to_value(value).expect("a work holds only text, numbers and lists")
}

/// Reads a duration of an experiment.
pub fn duration(text: &str) -> Result<Duration, String> {
    if text.starts_with('-') {
        return Err("a duration is at least 0".into());
    }
    time::parse(text)?;
    conclave_sim::text::bounded(text)
}

/// Reads a group size.
pub fn nodes(text: &str) -> Result<u32, String> {
    let most = conclave_kernel::node::MOST_NODES;
    let nodes = text.parse().ok().filter(|nodes| (1..=most).contains(nodes));
    nodes.ok_or_else(|| format!("expected a number of nodes from 1 to {most}"))
}

/// Reads a number of threads.
pub fn threads(text: &str) -> Result<usize, String> {
    const MOST: usize = 1_024;
    let threads = text.parse().ok().filter(|threads| (1..=MOST).contains(threads));
    threads.ok_or_else(|| format!("expected a number of threads from 1 to {MOST}"))
}

/// Reads a half-open range of seeds.
pub fn seeds(text: &str) -> Result<Range<u64>, String> {
    const EXPECTED: &str = "expected a half-open range of seeds, such as 0..1000";
    let (from, to) = text.split_once("..").ok_or(EXPECTED)?;
    let range: Range<u64> = from.parse().map_err(|_| EXPECTED)?..to.parse().map_err(|_| EXPECTED)?;
    if range.is_empty() {
        return Err("the first seed must be smaller than the second, such as 0..1000".into());
    }
    Ok(range)
}

/// Reads a probability.
pub fn probability(text: &str) -> Result<Ratio, String> {
    let ratio = text.parse().ok().and_then(Ratio::from_f64);
    ratio.ok_or_else(|| "expected a probability from 0 to 1".into())
}

/// Reads the order of messages in an exploration.
pub fn order(text: &str) -> Result<Order, String> {
    match text {
        "fifo" => Ok(Order::Fifo),
        "any" => Ok(Order::Any),
        _ => Err("expected fifo or any".into()),
    }
}

/// Reads the return of crashed sites in an exploration.
pub fn recovery(text: &str) -> Result<Recovery, String> {
    match text {
        "stable" => Ok(Recovery::Stable),
        "amnesia" => Ok(Recovery::Amnesia),
        _ => Err("expected stable or amnesia".into()),
    }
}
