//! Semaphores: a name with permits.

use conclave_core::LockName;

use crate::guard::Guard;
use crate::{Client, Result, Wait};

/// A semaphore. Its permits are not re-entrant: `pool*3` twice is six permits.
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    name: String,
}

impl Semaphore {
    pub(crate) fn new(client: &Client, name: &str) -> Self {
        Self { client: client.clone(), name: name.to_owned() }
    }

    /// Waits until all of `permits` are granted at once.
    ///
    /// # Errors
    /// [`crate::Code::Impossible`] if the limit of the semaphore is smaller.
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.request(permits).start()?.granted().await
    }

    /// Acquires `permits` if they are free now. Returns `None` if they are not.
    ///
    /// # Errors
    /// The same as [`Semaphore::acquire`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.request(permits).wait(Wait::Try).start()?.granted_in_time().await
    }

    /// Changes the limit. Clients keep the permits that they hold.
    ///
    /// # Errors
    /// No server accepts the request.
    pub async fn set_limit(&self, permits: u32) -> Result<()> {
        self.client.limit(&self.name, permits).await.map(drop)
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(crate) fn expr(&self, permits: u32) -> String {
        format!("{}*{permits}", quoted(&self.name))
    }
}

/// The name as an expression contains it, in quotes if it needs them.
pub(crate) fn quoted(name: &str) -> String {
    match LockName::new(name) {
        Ok(name) => name.to_string(),
        // The server rejects it, with the reason.
        Err(_) => name.to_owned(),
    }
}
