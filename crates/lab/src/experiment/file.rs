//! Experiments in files: configurations, and the headers of traces.
//!
//! ```text
//! {"algorithm":"maekawa","work":{"load":"high","entries":100,"cs":"1ms","quorum":null},"world":{"nodes":3,...}}
//! ```
//!
//! Format 1, of version 0.1.0, had the fields of the work beside `algorithm` and the world under `setup`. The
//! headers of the checker's traces had a form of their own. [`upgraded`] turns both into the present form.

use std::fmt;
use std::time::Duration;

use conclave_kernel::trace::WorldKind;
use conclave_sim::exact;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::Experiment;
use super::flags::json;

/// A field of a file that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadField {
    /// The names from the outermost table to the field; empty if the file has no fields.
    pub path: Vec<String>,
    /// The mistake.
    pub mistake: String,
}

impl fmt::Display for BadField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, mistake } = self;
        if path.is_empty() { f.write_str(mistake) } else { write!(f, "{}: {mistake}", path.join(".")) }
    }
}

/// Reads an experiment. Fields that the file does not have are those of `default`. The form of format 1 is
/// accepted too.
pub fn read<W, S>(file: Value, default: &Experiment<W, S>) -> Result<Experiment<W, S>, BadField>
where
    W: Serialize + DeserializeOwned,
    S: Serialize + DeserializeOwned,
{
    let (_, given) = upgraded(file);
    let default = json(default);
    let read = |given: Value| {
        let mut value = default.clone();
        overlay(&mut value, given);
        serde_json::from_value::<Experiment<W, S>>(value).map_err(|error| error.to_string())
    };
    read(given.clone()).map_err(|mistake| {
        // One field at a time shows which of them is the mistake.
        let mut alone = leaves(&given).into_iter().filter_map(|path| {
            let mistake = read(only(&given, &path)).err()?;
            Some(BadField { path, mistake })
        });
        alone.next().unwrap_or(BadField { path: Vec::new(), mistake })
    })
}

/// Replaces the fields of `value` that `given` has.
fn overlay(value: &mut Value, given: Value) {
    match (value, given) {
        (Value::Object(value), Value::Object(given)) => {
            for (name, field) in given {
                overlay(value.entry(name).or_insert(Value::Null), field);
            }
        }
        (value, given) => *value = given,
    }
}

/// The paths of all fields that are no tables.
fn leaves(value: &Value) -> Vec<Vec<String>> {
    let Value::Object(fields) = value else { return vec![Vec::new()] };
    let below = |(name, field): (&String, &Value)| {
        let join = |rest: Vec<String>| [vec![name.clone()], rest].concat();
        leaves(field).into_iter().map(join).collect::<Vec<_>>()
    };
    fields.iter().flat_map(below).collect()
}

/// Returns the value with only the field of this path.
fn only(value: &Value, path: &[String]) -> Value {
    match path {
        [] => value.clone(),
        [name, rest @ ..] => Value::Object(Map::from_iter([(name.clone(), only(&value[name], rest))])),
    }
}

/// Fields of works with another name in format 1.
const RENAMED: [(&str, &str); 2] = [("who", "caller"), ("snapshots", "snapshot")];

/// Returns the present form of an experiment, and the world in which it ran, if the old form shows it.
pub fn upgraded(old: Value) -> (Option<WorldKind>, Value) {
    let Value::Object(mut fields) = old else { return (None, old) };
    if fields.contains_key("work") || fields.contains_key("world") {
        return (None, Value::Object(fields));
    }
    let kind = if fields.contains_key("timing") { WorldKind::Check } else { WorldKind::Sim };
    let mut experiment = Map::new();
    let mut keep = |old: &str, new: &str, fields: &mut Map<String, Value>| {
        if let Some(value) = fields.shift_remove(old).filter(|value| !value.is_null()) {
            experiment.insert(new.into(), value);
        }
    };
    keep("algorithm", "algorithm", &mut fields);
    keep("mutant", "flaw", &mut fields);
    keep("setup", "world", &mut fields);
    if kind == WorldKind::Check {
        let space = space(&mut fields);
        experiment.insert("world".into(), space);
    }
    for (old, new) in RENAMED {
        if let Some(value) = fields.shift_remove(old) {
            fields.insert(new.into(), value);
        }
    }
    for (_, value) in &mut fields {
        if let Some(duration) = as_duration(value) {
            *value = Value::String(exact(duration));
        }
    }
    if !fields.is_empty() {
        experiment.insert("work".into(), Value::Object(fields));
    }
    (Some(kind), Value::Object(experiment))
}

/// Takes the fields of an exploration's world out of a header of format 1.
fn space(fields: &mut Map<String, Value>) -> Value {
    let mut space = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value.filter(|value| !value.is_null()) {
            space.insert(name.into(), value);
        }
    };
    put("nodes", fields.shift_remove("nodes"));
    put("order", fields.shift_remove("order"));
    let timing = fields.shift_remove("timing").unwrap_or_default();
    put("sync", timing.pointer("/sync/delay").cloned());
    let faults = fields.shift_remove("faults").unwrap_or_default();
    for (old, new) in
        [("loss", "loss"), ("duplication", "duplicate"), ("crash", "crash"), ("recovery", "recovery")]
    {
        put(new, faults.get(old).cloned());
    }
    Value::Object(space)
}

/// Reads a duration of format 1: seconds and nanoseconds.
fn as_duration(value: &Value) -> Option<Duration> {
    let (secs, nanos) = (value.get("secs")?.as_u64()?, value.get("nanos")?.as_u64()?);
    Some(Duration::new(secs, u32::try_from(nanos).ok()?))
}
