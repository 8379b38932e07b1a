//! Semaphores: a name with permits.

use std::num::NonZeroU32;

use conclave_core::{Code, Error, Expr, LockName};

use crate::{Client, LockRequest, Result};

/// A semaphore. Its permits are not re-entrant: two requests for three permits are six permits.
/// [`Client::semaphore`] creates it.
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    name: LockName,
}

impl Semaphore {
    pub(crate) fn new(client: &Client, name: LockName) -> Self {
        Self { client: client.clone(), name }
    }

    /// Creates a request for `permits`, which are granted together.
    ///
    /// The request fails with [`Code::Impossible`] if the limit of the semaphore is smaller.
    pub fn acquire(&self, permits: u32) -> LockRequest {
        let count = NonZeroU32::new(permits)
            .ok_or_else(|| Error::new(Code::InvalidArgument, "a request has at least one permit"));
        LockRequest::new(&self.client, count.map(|count| Expr::permits(self.name.clone(), count)))
    }

    /// Changes the limit. Clients keep the permits that they hold.
    ///
    /// # Errors
    /// No server accepts the request.
    pub async fn set_limit(&self, permits: u32) -> Result<()> {
        self.client.admin().limit(self.name.as_str(), permits).await.map(drop)
    }
}
