//! Names of locks, semaphores and elections, in one namespace and with the form of paths.
//!
//! **Rules.** A name has segments joined by `/`. One leading `/` is dropped, so `/a/b` and `a/b` are the same
//! lock. Letters, digits, `_`, `.` and `-` need no quotes. Any other name is written in double quotes, with
//! `\"` and `\\` for those two characters. Control characters are always rejected, because names are printed
//! on terminals.
//!
//! **Trap.** Quotes do not make a second namespace: `"a/b"` and `a/b` are the same lock. If quotes allowed
//! empty segments, `"/a"` would be a name that starts with `/`. Printed and read back, it would become `a`.
//! So empty segments are rejected in quotes too.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// The name of a lock, semaphore or election. It is always valid, and cheap to clone.
///
/// ```
/// use conclave_core::LockName;
///
/// let name: LockName = "/orders/eu".parse().unwrap();
/// assert_eq!(name.as_str(), "orders/eu");
/// assert_eq!(LockName::new("night shift").unwrap().to_string(), "\"night shift\"");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockName(Arc<str>);

impl LockName {
    /// The longest name, in bytes. A longer one is rejected.
    pub const MAX_BYTES: usize = 512;

    /// Checks a name without quotes. A leading `/` is dropped.
    ///
    /// # Errors
    /// [`NameError`] with the reason.
    pub fn new(text: &str) -> Result<Self, NameError> {
        let name = text.strip_prefix('/').unwrap_or(text);
        if name.is_empty() {
            return Err(NameError::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(NameError::TooLong);
        }
        if name.chars().any(char::is_control) {
            return Err(NameError::Control);
        }
        if name.starts_with('/') || name.ends_with('/') || name.contains("//") {
            return Err(NameError::EmptySegment);
        }
        Ok(Self(name.into()))
    }

    /// The name without quotes.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether the name can be written without quotes.
    pub fn is_bare(&self) -> bool {
        self.0.bytes().all(|byte| is_bare(byte) || byte == b'/')
    }
}

/// The reason why a text is not a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// The text is empty.
    Empty,
    /// The text is longer than [`LockName::MAX_BYTES`].
    TooLong,
    /// The text contains a control character.
    Control,
    /// The text contains `//`, or ends with `/`.
    EmptySegment,
}

/// Returns whether `byte` may be part of a name without quotes.
pub(crate) fn is_bare(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-')
}

impl fmt::Display for NameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Empty => f.write_str("a name must not be empty"),
            Self::TooLong => write!(f, "a name has at most {} bytes", LockName::MAX_BYTES),
            Self::Control => f.write_str("a name must not contain control characters"),
            Self::EmptySegment => {
                f.write_str("a name must not contain empty segments ('//' or a '/' at the end)")
            }
        }
    }
}

impl std::error::Error for NameError {}

/// A name compares and hashes like its text.
impl Borrow<str> for LockName {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

/// Prints the name as an expression contains it, in quotes if it needs them.
impl fmt::Display for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_bare() {
            return f.write_str(&self.0);
        }
        f.write_str("\"")?;
        for part in self.0.split_inclusive(['"', '\\']) {
            let plain = part.strip_suffix(['"', '\\']).unwrap_or(part);
            f.write_str(plain)?;
            if plain.len() < part.len() {
                write!(f, "\\{}", &part[plain.len()..])?;
            }
        }
        f.write_str("\"")
    }
}

impl fmt::Debug for LockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for LockName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        Self::new(text)
    }
}

impl Serialize for LockName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for LockName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = LockName;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a lock")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<LockName, E> {
                LockName::new(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_str(Visitor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_leading_slash_is_dropped_once() {
        assert_eq!(LockName::new("/a/b").unwrap(), LockName::new("a/b").unwrap());
        assert_eq!(LockName::new("//a"), Err(NameError::EmptySegment));
    }

    #[test]
    fn an_invalid_name_is_rejected() {
        assert_eq!(LockName::new(""), Err(NameError::Empty));
        assert_eq!(LockName::new("/"), Err(NameError::Empty));
        assert_eq!(LockName::new("a//b"), Err(NameError::EmptySegment));
        assert_eq!(LockName::new("a/"), Err(NameError::EmptySegment));
        assert_eq!(LockName::new("a\nb"), Err(NameError::Control));
        assert_eq!(LockName::new("a\u{85}b"), Err(NameError::Control));
        assert_eq!(LockName::new(&"x".repeat(513)), Err(NameError::TooLong));
        assert!(LockName::new(&"x".repeat(512)).is_ok());
    }

    #[test]
    fn quotes_are_printed_if_needed_with_escapes() {
        assert_eq!(LockName::new("a.b-c_d/9").unwrap().to_string(), "a.b-c_d/9");
        assert_eq!(LockName::new("a b").unwrap().to_string(), "\"a b\"");
        assert_eq!(LockName::new(r#"a"b\c"#).unwrap().to_string(), r#""a\"b\\c""#);
    }

    #[test]
    fn a_name_that_is_none_is_not_deserialised() {
        let bytes = postcard::to_allocvec("a//b").unwrap();
        assert!(postcard::from_bytes::<LockName>(&bytes).is_err());
        let name = LockName::new("a/b").unwrap();
        let bytes = postcard::to_allocvec(&name).unwrap();
        assert_eq!(postcard::from_bytes::<LockName>(&bytes).unwrap(), name);
    }
}
