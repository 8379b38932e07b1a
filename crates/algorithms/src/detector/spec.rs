//! What every algorithm of the problem is judged by, one property an item.

use conclave_kernel::{Kind, Property};

/// Crashes are noticed.
pub const COMPLETENESS: Property = Property {
    name: "completeness",
    kind: Kind::Eventually,
    statement: "every site that crashed and stays down is in the end suspected by every site that is up, for good",
    source: "[CT96 §2.3]",
};
/// Nobody is suspected wrongly.
pub const ACCURACY: Property = Property {
    name: "accuracy",
    kind: Kind::Always,
    statement: "no site is suspected that has been up since its latest heartbeat that was heard",
    source: "[CT96 §2.3]",
};

/// All of them.
pub const PROPERTIES: [Property; 2] = [COMPLETENESS, ACCURACY];
