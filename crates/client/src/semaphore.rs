//! Semaphores: a name with permits.

use conclave_api::LockName;

use crate::guard::Guard;
use crate::{Client, Result, Wait};

/// A semaphore. Its permits are not re-entrant: three and three are six.
#[derive(Clone)]
pub struct Semaphore {
    client: Client,
    name: String,
}

impl Semaphore {
    pub(crate) fn new(client: &Client, name: &str) -> Self {
        Self { client: client.clone(), name: name.to_owned() }
    }

    /// Waits for `permits`, all at once.
    ///
    /// # Errors
    /// [`crate::Code::Impossible`] if there are fewer in all.
    pub async fn acquire(&self, permits: u32) -> Result<Guard> {
        self.request(permits).start()?.granted().await
    }

    /// Takes `permits` if they are free now.
    ///
    /// # Errors
    /// As [`Semaphore::acquire`].
    pub async fn try_acquire(&self, permits: u32) -> Result<Option<Guard>> {
        self.request(permits).wait(Wait::Try).start()?.granted_in_time().await
    }

    /// Changes how many permits there are; who holds some keeps them.
    ///
    /// # Errors
    /// No server takes the request.
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

/// A name as it stands in an expression: quoted where it must be.
pub(crate) fn quoted(name: &str) -> String {
    match LockName::new(name) {
        Ok(name) => name.to_string(),
        // The server says what is wrong with it.
        Err(_) => name.to_owned(),
    }
}
