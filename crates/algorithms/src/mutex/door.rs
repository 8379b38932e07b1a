//! The local side of a site: its state (outside, waiting, or in the critical section) and the number of its
//! queued requests.
//!
//! Every algorithm has a [`Door`]. It rejects invalid commands, queues the site's requests and serves them
//! one at a time. The algorithm therefore handles only one request of a site at a time, as in the papers.

use conclave_kernel::{Cx, Protocol};
use serde::{Deserialize, Serialize};

use super::{Event, Fence, Refusal};

/// The limit of requests of one site that are queued behind the current one. Further requests are rejected.
pub const MOST_WAITING: u32 = 1 << 16;

/// The state of a site.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// The site has no current request.
    #[default]
    Outside,
    /// The site has made a request and waits for its grant.
    Asking,
    /// The site is in the critical section.
    Inside,
}

/// The door of one site: its state and the number of its queued requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Door {
    place: Place,
    waiting: u32,
}

impl Door {
    /// Returns the state of the site.
    #[inline]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Whether the site waits for its grant.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.place == Place::Asking
    }

    /// Whether the site is in the critical section.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.place == Place::Inside
    }

    /// Queues a request of the layer above, or rejects it at the limit.
    pub fn knock<P: Protocol<Event = Event>>(&mut self, cx: &mut Cx<'_, P>) {
        if self.waiting < MOST_WAITING {
            self.waiting += 1;
        } else {
            cx.emit(Event::Refused(Refusal::TooManyWaiting));
        }
    }

    /// Starts the next queued request if the site is outside, and returns whether it did. The caller must
    /// then send the request.
    pub fn must_ask(&mut self) -> bool {
        let must = self.place == Place::Outside && self.waiting > 0;
        if must {
            self.waiting -= 1;
            self.place = Place::Asking;
        }
        must
    }

    /// Moves a waiting site into the critical section and reports the grant.
    pub fn enter<P: Protocol<Event = Event>>(&mut self, fence: Fence, cx: &mut Cx<'_, P>) {
        debug_assert!(self.is_asking(), "only who asks may enter");
        self.place = Place::Inside;
        cx.emit(Event::Granted { fence });
    }

    /// Moves the site out of the critical section and reports it. Returns `false` and rejects the command if
    /// the site was not inside.
    #[must_use]
    pub fn leave<P: Protocol<Event = Event>>(&mut self, cx: &mut Cx<'_, P>) -> bool {
        if self.place != Place::Inside {
            cx.emit(Event::Refused(Refusal::NotInside));
            return false;
        }
        self.place = Place::Outside;
        cx.emit(Event::Released);
        true
    }
}
