//! A recorded run without its types.
