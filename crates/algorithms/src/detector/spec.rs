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

/// Accuracy on a constant network: without faults and without jitter there are no mistakes.
///
/// It covers three windows of heartbeats. The first fills the window, and the second replaces its first
/// content. In the third, each estimate depends on a full window.
pub const CONSTANT_ACCURACY: Property = Property {
    name: "constant-accuracy",
    kind: Kind::Always,
    statement: "no site is suspected in a run without faults whose delay is constant, over at least three windows of heartbeats",
    source: "[CTA02 §2]",
};

/// The number of windows in [`CONSTANT_ACCURACY`].
pub const WINDOWS: u32 = 3;

/// All properties of the problem.
pub const PROPERTIES: [Property; 3] = [COMPLETENESS, ACCURACY, CONSTANT_ACCURACY];
