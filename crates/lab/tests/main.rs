//! The integration tests of this crate, in one binary: each further binary would link everything once more.

mod deepening;
mod detector;
mod election;
mod evidence;
mod exhaustive;
mod experiment;
mod flaws;
mod layered;
mod links;
mod matrix;
mod mutants;
mod mutex_costs;
mod mutex_determinism;
mod mutex_fairness;
mod mutex_faults;
mod mutex_seeds;
mod own_algorithm;
mod sites;
mod snapshot_problem;
mod starvation;
mod support;
mod timesync;
mod twin;
