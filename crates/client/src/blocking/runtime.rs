//! The runtime behind all blocking clients of a process, and the wait for a future.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};

use conclave_core::{Code, Error};
use tokio::runtime::{Builder, Handle};

use crate::Result;

/// A handle to the runtime of the process. It has one thread, which does all I/O and runs all tasks.
#[derive(Clone)]
pub(super) struct Runtime(Handle);

impl Runtime {
    /// Returns the runtime, and starts it at the first call. It ends with the process.
    ///
    /// # Errors
    /// [`Code::Internal`] if the system refuses a thread or a descriptor. A later call tries again.
    pub(super) fn of_process() -> Result<Self> {
        static RUNTIME: Mutex<Option<Runtime>> = Mutex::new(None);
        let mut started = RUNTIME.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(runtime) = &*started {
            return Ok(runtime.clone());
        }
        let refused =
            |error| Error::new(Code::Internal, format!("the client's thread cannot start: {error}"));
        let runtime = Builder::new_current_thread().enable_all().build().map_err(refused)?;
        let handle = Self(runtime.handle().clone());
        let thread = thread::Builder::new().name("conclave-client".into());
        thread.spawn(move || runtime.block_on(std::future::pending::<()>())).map_err(refused)?;
        *started = Some(handle.clone());
        Ok(handle)
    }

    /// Blocks this thread until the future is done. The future is polled on this thread; its timers and its
    /// I/O belong to the runtime. Unlike `Handle::block_on`, this does not panic in async code.
    pub(super) fn wait<F: Future>(&self, future: F) -> F::Output {
        let _inside = self.0.enter();
        let mut future = pin!(future);
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut cx = Context::from_waker(&waker);
        loop {
            match future.as_mut().poll(&mut cx) {
                Poll::Ready(output) => return output,
                // A wake before this call makes it return at once.
                Poll::Pending => thread::park(),
            }
        }
    }
}

/// Wakes a thread that waits for a future.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
