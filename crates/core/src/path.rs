//! Paths of files: absolute, canonical and bounded.
//!
//! `/` is the root. A segment is not empty, is not `.` or `..`, and contains no control characters. Each file
//! has exactly one path. A path that is not canonical is rejected and never repaired, so two spellings cannot
//! mean the same file.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{Code, Error};

/// The path of a file. It is always valid, and cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FilePath(Arc<str>);

impl FilePath {
    /// The largest length of a path, in bytes. A longer path is rejected.
    pub const MAX_BYTES: usize = 1024;
    /// The largest number of segments. A deeper path is rejected.
    pub const MAX_DEPTH: usize = 32;

    /// Checks a path.
    ///
    /// # Errors
    /// [`Code::InvalidName`], with the reason.
    pub fn new(text: &str) -> Result<Self, Error> {
        let refuse = |why: &str| Err(Error::new(Code::InvalidName, format!("{text:?} is not a path: {why}")));
        if text.len() > Self::MAX_BYTES {
            return Err(Error::new(
                Code::InvalidName,
                format!("a path has at most {} bytes", Self::MAX_BYTES),
            ));
        }
        let Some(rest) = text.strip_prefix('/') else { return refuse("it must begin with '/'") };
        if rest.is_empty() {
            return Ok(Self::root());
        }
        if rest.chars().any(char::is_control) {
            return refuse("it contains control characters");
        }
        if rest.split('/').count() > Self::MAX_DEPTH {
            return refuse("it has more than 32 segments");
        }
        match rest.split('/').find(|segment| matches!(*segment, "" | "." | "..")) {
            Some("") => refuse("it has an empty segment ('//' or a '/' at the end)"),
            Some(_) => refuse("the segments '.' and '..' are not allowed"),
            None => Ok(Self(text.into())),
        }
    }

    /// Returns the path `/`.
    pub fn root() -> Self {
        Self("/".into())
    }

    /// Returns the path as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns the directory and the last segment; `None` for the root.
    pub fn split(&self) -> Option<(Self, &str)> {
        let (parent, name) = self.0.rsplit_once('/')?;
        let parent = if parent.is_empty() { Self::root() } else { Self(parent.into()) };
        (!name.is_empty()).then_some((parent, name))
    }

    /// Returns whether `self` is the directory that contains `child`.
    pub fn is_parent_of(&self, child: &Self) -> bool {
        let parent = child.0.rsplit_once('/').filter(|(_, name)| !name.is_empty()).map(|(parent, _)| parent);
        parent.is_some_and(|parent| parent == self.0.trim_end_matches('/'))
    }
}

impl fmt::Display for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for FilePath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for FilePath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl<'de> Deserialize<'de> for FilePath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::new(&text).map_err(|error| de::Error::custom(error.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_canonical_paths_are_paths() {
        for good in ["/", "/a", "/a/b.c-d_e", "/ä b"] {
            assert_eq!(FilePath::new(good).unwrap().as_str(), good);
        }
        let deep = "/a".repeat(33);
        for bad in ["", "a", "//", "/a/", "/a//b", "/./a", "/a/..", "/a\nb", &deep, &"/x".repeat(600)] {
            assert_eq!(FilePath::new(bad).unwrap_err().code, Code::InvalidName, "{bad}");
        }
    }

    #[test]
    fn a_path_knows_its_directory() {
        let path = |text| FilePath::new(text).unwrap();
        assert_eq!(path("/a/b").split(), Some((path("/a"), "b")));
        assert_eq!(path("/a").split(), Some((path("/"), "a")));
        assert_eq!(path("/").split(), None);
        assert!(path("/").is_parent_of(&path("/a")));
        assert!(path("/a").is_parent_of(&path("/a/b")));
        assert!(!path("/").is_parent_of(&path("/a/b")));
        assert!(!path("/").is_parent_of(&path("/")));
        assert!(!path("/a").is_parent_of(&path("/ab")));
    }
}
