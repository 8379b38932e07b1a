//! A site's own side of the problem: outside, asking, or inside; and how many of its own requests wait.
//!
//! Every algorithm has a door. It refuses commands that make no sense, queues the site's requests and lets them
//! be served one at a time: the algorithms then deal with one request of a site at a time, as in the papers.

use conclave_kernel::{Cx, Protocol};
use serde::{Deserialize, Serialize};

use super::{Event, Fence, Refusal};

/// At most so many requests of one site wait behind the current one; more are refused.
pub const MOST_WAITING: u32 = 1 << 16;

/// Where a site stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// Neither asking nor inside.
    #[default]
    Outside,
    /// Asking.
    Asking,
    /// In the critical section.
    Inside,
}

/// The door of one site.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Door {
    place: Place,
    waiting: u32,
}

impl Door {
    /// Where the site stands.
    #[inline]
    pub fn place(&self) -> Place {
        self.place
    }

    /// Whether the site is asking.
    #[inline]
    pub fn is_asking(&self) -> bool {
        self.place == Place::Asking
    }

    /// Whether the site is inside.
    #[inline]
    pub fn is_inside(&self) -> bool {
        self.place == Place::Inside
    }

    /// The layer above wants in.
    pub fn knock<P: Protocol<Event = Event>>(&mut self, cx: &mut Cx<'_, P>) {
        if self.waiting < MOST_WAITING {
            self.waiting += 1;
        } else {
            cx.emit(Event::Refused(Refusal::TooManyWaiting));
        }
    }

    /// Whether a request should be made now: the site is outside and somebody knocked. If so, it is asking
    /// from now on.
    pub fn must_ask(&mut self) -> bool {
        let must = self.place == Place::Outside && self.waiting > 0;
        if must {
            self.waiting -= 1;
            self.place = Place::Asking;
        }
        must
    }

    /// The site may go in.
    pub fn enter<P: Protocol<Event = Event>>(&mut self, fence: Fence, cx: &mut Cx<'_, P>) {
        debug_assert!(self.is_asking(), "only who asks may enter");
        self.place = Place::Inside;
        cx.emit(Event::Granted { fence });
    }

    /// The layer above is done; whether it was inside.
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
