//! The properties by which every detector is judged.

use conclave_kernel::{Kind, Property};

/// Completeness: crashed sites are suspected.
pub const COMPLETENESS: Property = Property {
    name: "completeness",
    kind: Kind::Eventually,
    statement: "every site that crashed and stays down is in the end suspected by every site that is up, for good",
    source: "[CT96 §2.3]",
};
/// Accuracy: sites that are up are not suspected.
pub const ACCURACY: Property = Property {
    name: "accuracy",
    kind: Kind::Always,
    statement: "no site is suspected that has been up since its latest heartbeat that was heard",
    source: "[CT96 §2.3]",
};

/// All properties of the problem.
pub const PROPERTIES: [Property; 2] = [COMPLETENESS, ACCURACY];
