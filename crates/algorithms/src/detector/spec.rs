//! The properties by which every detector is judged.

use conclave_kernel::{Kind, Property};

/// Completeness: crashed sites are suspected.
pub const COMPLETENESS: Property = Property {
    name: "completeness",
    kind: Kind::Eventually,
    statement: "every site that crashes and stays down is finally suspected, for ever, by every site that is up",
    source: "[CT96 §2.3]",
};
/// Accuracy: sites that are up are not suspected.
pub const ACCURACY: Property = Property {
    name: "accuracy",
    kind: Kind::Always,
    statement: "no site is suspected if it has been up since its last received heartbeat",
    source: "[CT96 §2.3]",
};

/// All properties of the problem.
pub const PROPERTIES: [Property; 2] = [COMPLETENESS, ACCURACY];
