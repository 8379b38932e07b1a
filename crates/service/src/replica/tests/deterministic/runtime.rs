//! Openraft's runtime for tests: tokio, with random numbers of the run and watch channels with a fixed order.
//!
//! Outside of a seeded run, it draws random numbers from the system.

use std::convert::Infallible;
use std::future::Future;
use std::time::Duration;

use openraft::async_runtime::{AsyncRuntime, watch};
use openraft::{OptionalSend, OptionalSync, TokioRuntime};
use rand_core::{Rng, TryRng};

use super::{ordered_watch, seeded};

#[derive(Debug)]
pub(crate) struct Runtime(TokioRuntime);

impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + OptionalSend> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = Dice;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = OrderedWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: OptionalSend + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + OptionalSend + 'static,
        T::Output: OptionalSend + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + OptionalSend>(
        duration: Duration,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + OptionalSend>(
        deadline: Self::Instant,
        future: F,
    ) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Dice {
        Dice
    }

    fn new(threads: usize) -> Self {
        Self(TokioRuntime::new(threads))
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.0.block_on(future)
    }
}

/// The random numbers of the seeded run on this thread, or of the system.
pub(crate) struct Dice;

impl TryRng for Dice {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        self.try_next_u64().map(|number| (number >> 32) as u32)
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(seeded::draw().unwrap_or_else(|| TokioRuntime::thread_rng().next_u64()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        for chunk in bytes.chunks_mut(8) {
            let number = self.try_next_u64()?.to_le_bytes();
            chunk.copy_from_slice(&number[..chunk.len()]);
        }
        Ok(())
    }
}

/// The watch channels of [`ordered_watch`], as openraft uses them.
pub(crate) struct OrderedWatch;

impl watch::Watch for OrderedWatch {
    type Sender<T: OptionalSend + OptionalSync> = ordered_watch::Sender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = ordered_watch::Receiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = tokio::sync::watch::Ref<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (Self::Sender<T>, Self::Receiver<T>) {
        let sender = ordered_watch::Sender::new(init);
        let receiver = sender.subscribe();
        (sender, receiver)
    }
}

impl<T: OptionalSend + OptionalSync> watch::WatchSender<OrderedWatch, T> for ordered_watch::Sender<T> {
    fn send(&self, value: T) -> Result<(), watch::SendError<T>> {
        self.send(value).map_err(|error| watch::SendError(error.0))
    }

    fn send_if_modified<F: FnOnce(&mut T) -> bool>(&self, modify: F) -> bool {
        self.send_if_modified(modify)
    }

    fn borrow_watched(&self) -> tokio::sync::watch::Ref<'_, T> {
        self.borrow()
    }

    fn subscribe(&self) -> ordered_watch::Receiver<T> {
        self.subscribe()
    }
}

impl<T: OptionalSend + OptionalSync> watch::WatchReceiver<OrderedWatch, T> for ordered_watch::Receiver<T> {
    async fn changed(&mut self) -> Result<(), watch::RecvError> {
        self.changed().await.map_err(|_| watch::RecvError(()))
    }

    fn borrow_watched(&self) -> tokio::sync::watch::Ref<'_, T> {
        self.borrow()
    }

    fn borrow_and_update(&mut self) -> tokio::sync::watch::Ref<'_, T> {
        self.borrow_and_update()
    }
}
