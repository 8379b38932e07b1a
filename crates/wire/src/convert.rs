//! Conversions between the types of `conclave-core` and the wire messages.
//!
//! A conversion from a message uses the checking constructors of the type, so its result is valid. A
//! conversion to a message cannot fail.

pub(crate) mod report;

use conclave_core::{
    Claim, Code, Deadlock, Error, Fault, LockName, Owner, OwnerLabel, Priority, RequestId, VictimPolicy,
    Wait, WaitsFor,
};

use crate::v1;

/// Reads the secret of a session: 16 bytes, big-endian.
///
/// # Errors
/// [`Code::WrongSecret`] if it has another length.
pub fn secret_from_wire(bytes: &[u8]) -> Result<u128, Error> {
    let bytes: [u8; 16] = bytes
        .try_into()
        .map_err(|_| Error::new(Code::WrongSecret, "the secret of a session has 16 bytes"))?;
    Ok(u128::from_be_bytes(bytes))
}

impl From<&Error> for v1::Error {
    fn from(error: &Error) -> Self {
        Self {
            code: u32::from(error.code.number()),
            name: error.code.name().into(),
            message: error.message.clone(),
            definite: error.code.is_definite(),
            fault: v1::Fault::from(error.code.fault()).into(),
            deadlock: error.deadlock.as_deref().map(Into::into),
            leader: String::new(),
        }
    }
}

/// An unknown code of a later version becomes [`Code::Internal`], which is not definite. That is the safe
/// assumption.
impl From<&v1::Error> for Error {
    fn from(error: &v1::Error) -> Self {
        let code = u16::try_from(error.code).ok().and_then(Code::from_number).unwrap_or(Code::Internal);
        let deadlock = error.deadlock.as_ref().map(|deadlock| Box::new(deadlock.into()));
        Self { code, message: error.message.clone(), deadlock }
    }
}

impl From<Fault> for v1::Fault {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Caller => Self::Caller,
            Fault::Server => Self::Server,
            Fault::Network => Self::Network,
        }
    }
}

impl From<&Deadlock> for v1::Deadlock {
    fn from(deadlock: &Deadlock) -> Self {
        let edge = |edge: &WaitsFor| v1::WaitsFor {
            waiter: edge.waiter.clone(),
            name: edge.name.as_str().into(),
            holder: edge.holder.clone(),
        };
        Self { cycle: deadlock.cycle.iter().map(edge).collect(), victim: deadlock.victim.clone() }
    }
}

/// Edges with invalid names are left out; no server sends them.
impl From<&v1::Deadlock> for Deadlock {
    fn from(deadlock: &v1::Deadlock) -> Self {
        let edge = |edge: &v1::WaitsFor| {
            let name = LockName::new(&edge.name).ok()?;
            Some(WaitsFor { waiter: edge.waiter.clone(), name, holder: edge.holder.clone() })
        };
        Self { cycle: deadlock.cycle.iter().filter_map(edge).collect(), victim: deadlock.victim.clone() }
    }
}

impl From<Claim> for v1::Claim {
    fn from(claim: Claim) -> Self {
        use v1::claim::{Claim as Wire, Exclusive, Shared};
        let claim = match claim {
            Claim::Exclusive => Wire::Exclusive(Exclusive {}),
            Claim::Shared => Wire::Shared(Shared {}),
            Claim::Permits(permits) => Wire::Permits(permits),
        };
        Self { claim: Some(claim) }
    }
}

/// Reads a claim. An absent claim means exclusive.
pub fn claim_from_wire(claim: Option<&v1::Claim>) -> Claim {
    use v1::claim::Claim as Wire;
    match claim.and_then(|claim| claim.claim.as_ref()) {
        None | Some(Wire::Exclusive(_)) => Claim::Exclusive,
        Some(Wire::Shared(_)) => Claim::Shared,
        Some(Wire::Permits(permits)) => Claim::Permits(*permits),
    }
}

impl From<VictimPolicy> for v1::VictimPolicy {
    fn from(policy: VictimPolicy) -> Self {
        match policy {
            VictimPolicy::Requester => Self::Requester,
            VictimPolicy::Youngest => Self::Youngest,
            VictimPolicy::LowestPriority => Self::LowestPriority,
            VictimPolicy::FewestLocks => Self::FewestLocks,
            VictimPolicy::None => Self::None,
        }
    }
}

impl From<v1::VictimPolicy> for VictimPolicy {
    fn from(policy: v1::VictimPolicy) -> Self {
        match policy {
            v1::VictimPolicy::Requester => Self::Requester,
            v1::VictimPolicy::Youngest => Self::Youngest,
            v1::VictimPolicy::LowestPriority => Self::LowestPriority,
            v1::VictimPolicy::FewestLocks => Self::FewestLocks,
            v1::VictimPolicy::None => Self::None,
        }
    }
}

impl v1::Acquire {
    /// Creates an acquire of an expression, with the defaults for everything else.
    pub fn of(expr: impl Into<String>) -> Self {
        Self { expr: expr.into(), ..Self::default() }
    }

    /// The wait limit of the acquire.
    pub fn wait(&self) -> Wait {
        match self.wait_ms {
            None => Wait::Forever,
            Some(0) => Wait::Try,
            Some(ms) => Wait::AtMost(ms),
        }
    }

    /// Sets the wait limit.
    pub fn set_wait(&mut self, wait: Wait) {
        self.wait_ms = match wait {
            Wait::Forever => None,
            Wait::Try => Some(0),
            Wait::AtMost(ms) => Some(ms),
        };
    }

    /// Returns the owner of the lock.
    ///
    /// # Errors
    /// [`Code::InvalidArgument`] if the label is invalid.
    pub fn checked_owner(&self) -> Result<Owner, Error> {
        use v1::acquire::Owner as Wire;
        Ok(match &self.owner {
            None => Owner::Request,
            Some(Wire::OfGrant(grant)) => Owner::OfGrant(RequestId(*grant)),
            Some(Wire::Label(label)) => {
                let invalid = |error: conclave_core::request::LabelError| {
                    Error::new(Code::InvalidArgument, error.to_string())
                };
                Owner::Label(OwnerLabel::new(label.clone()).map_err(invalid)?)
            }
        })
    }

    /// Sets the owner of the lock.
    pub fn set_owner(&mut self, owner: Owner) {
        use v1::acquire::Owner as Wire;
        self.owner = match owner {
            Owner::Request => None,
            Owner::OfGrant(grant) => Some(Wire::OfGrant(grant.0)),
            Owner::Label(label) => Some(Wire::Label(label.into())),
        };
    }

    /// Returns the priority.
    pub fn checked_priority(&self) -> Priority {
        Priority(self.priority)
    }

    /// Returns the policy that chooses which request to reject if this one completes a deadlock.
    ///
    /// # Errors
    /// [`Code::Unsupported`] if the number belongs to a later version.
    pub fn checked_policy(&self) -> Result<VictimPolicy, Error> {
        let policy = v1::VictimPolicy::try_from(self.policy).map_err(|_| {
            Error::new(Code::Unsupported, format!("victim policy {} is unknown", self.policy))
        })?;
        Ok(policy.into())
    }
}

macro_rules! messages {
    ($outer:ident, $oneof:ident: $($variant:ident),*) => {$(
        impl From<v1::$variant> for v1::$outer {
            fn from(message: v1::$variant) -> Self {
                Self { message: Some(v1::$oneof::Message::$variant(message)) }
            }
        }
    )*};
}

messages!(ClientMessage, client_message: Request, KeepAlive, Open, Resume, Query, Watch, Unwatch);
messages!(ServerMessage, server_message: Answer, KeptAlive, Opened, Resumed, Event, Resync, Broken, SessionEnded, Goodbye);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_survives_the_wire() {
        let edge = WaitsFor { waiter: "p".into(), name: LockName::new("b").unwrap(), holder: "q".into() };
        let error = Error::deadlock(Deadlock { cycle: vec![edge], victim: Some("p".into()) });
        let wire = v1::Error::from(&error);
        assert!(wire.definite);
        assert_eq!(wire.name, "deadlock");
        assert_eq!(Error::from(&wire), error);
    }

    #[test]
    fn an_unknown_code_is_not_definite() {
        let wire = v1::Error { code: 70_000, definite: true, ..Default::default() };
        assert!(!Error::from(&wire).code.is_definite());
    }

    #[test]
    fn waits_owners_policies_and_claims_survive_the_wire() {
        for wait in [Wait::Forever, Wait::Try, Wait::AtMost(7)] {
            let mut acquire = v1::Acquire::of("a");
            acquire.set_wait(wait);
            assert_eq!(acquire.wait(), wait);
        }
        let label = OwnerLabel::new("job").unwrap();
        for owner in [Owner::Request, Owner::OfGrant(RequestId(3)), Owner::Label(label)] {
            let mut acquire = v1::Acquire::of("a");
            acquire.set_owner(owner.clone());
            assert_eq!(acquire.checked_owner().unwrap(), owner);
        }
        let policies = [
            VictimPolicy::Requester,
            VictimPolicy::Youngest,
            VictimPolicy::LowestPriority,
            VictimPolicy::FewestLocks,
            VictimPolicy::None,
        ];
        for policy in policies {
            let acquire =
                v1::Acquire { policy: v1::VictimPolicy::from(policy).into(), ..v1::Acquire::of("a") };
            assert_eq!(acquire.checked_policy().unwrap(), policy);
        }
        for claim in [Claim::Exclusive, Claim::Shared, Claim::Permits(3)] {
            assert_eq!(claim_from_wire(Some(&v1::Claim::from(claim))), claim);
        }
    }

    #[test]
    fn an_invalid_label_policy_or_secret_is_rejected() {
        let mut acquire = v1::Acquire::of("a");
        acquire.owner = Some(v1::acquire::Owner::Label("a\nb".into()));
        assert_eq!(acquire.checked_owner().unwrap_err().code, Code::InvalidArgument);
        acquire.policy = 99;
        assert_eq!(acquire.checked_policy().unwrap_err().code, Code::Unsupported);
        assert_eq!(secret_from_wire(&[1, 2]).unwrap_err().code, Code::WrongSecret);
        assert_eq!(secret_from_wire(&7_u128.to_be_bytes()).unwrap(), 7);
    }
}
