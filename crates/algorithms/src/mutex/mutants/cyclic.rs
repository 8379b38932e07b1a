//! Suzuki and Kasami's rules without growing numbers. So an endless run is a cycle in the graph of states,
//! and the checker can decide whether a site starves on it.
//!
//! Request numbers count modulo [`ROUND`]. Suppose that links are FIFO, and that a site requests again only
//! after all others have received its last request. Then two stored numbers of one site never differ by more
//! than one, and the maximum of the paper is not needed. One version serves the sites in the order of the
//! queue. The other serves the last requester first.

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec;

use conclave_kernel::{Card, Cx, Needs, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use crate::mutants::flawed::{Fallible, Step};
use crate::mutex::door::Place;
use crate::mutex::{Bill, Command, Door, Event, Fence, Group, Mutex, SuzukiKasami};

/// The modulus of request numbers.
pub const ROUND: u8 = 3;

/// A site of Suzuki and Kasami's algorithm with cyclic numbers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CyclicSuzukiKasami {
    door: Door,
    /// Whether the last requester is served first.
    lifo: bool,
    /// RN: the last request number received from each site.
    heard: Box<[u8]>,
    token: Option<Privilege>,
}

/// The token.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Privilege {
    /// LN: the number of the last request served for each site.
    served: Box<[u8]>,
    queue: VecDeque<NodeId>,
}

/// A message between sites.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    /// A request for the token, with its number.
    Request(u8),
    /// The token.
    Privilege(Privilege),
}

impl Fallible for CyclicSuzukiKasami {
    const FLAWS: &'static [(&'static str, Step<Self>)] = &[
        ("sk-lifo", |site, _, input, cx| {
            site.lifo = true;
            site.step(input, cx);
        }),
        ("sk-fifo", |site, _, input, cx| site.step(input, cx)),
    ];
}

impl Protocol for CyclicSuzukiKasami {
    type Message = Message;
    type Timer = Never;
    type Command = Command;
    type Event = Event;

    fn on_message(&mut self, from: NodeId, message: Message, cx: &mut Cx<'_, Self>) {
        match message {
            Message::Request(number) => {
                self.heard[from.index()] = number;
                if self.door.place() == Place::Outside {
                    self.enqueue(from);
                    self.pass(cx);
                }
            }
            Message::Privilege(token) => self.token = Some(token),
        }
    }

    fn on_command(&mut self, command: Command, cx: &mut Cx<'_, Self>) {
        match command {
            Command::Acquire => self.door.knock(cx),
            Command::Release if self.door.leave(cx) => {
                if let Some(token) = &mut self.token {
                    token.served[cx.me().index()] = self.heard[cx.me().index()];
                }
                cx.peers().iter().for_each(|peer| self.enqueue(peer));
                self.pass(cx);
            }
            Command::Release | Command::Witness(_) => {}
        }
    }

    fn guards(&mut self, cx: &mut Cx<'_, Self>) {
        if self.door.must_ask() && self.token.is_none() {
            let mine = &mut self.heard[cx.me().index()];
            *mine = (*mine + 1) % ROUND;
            cx.broadcast(Message::Request(*mine));
        }
        if self.door.is_asking() && self.token.is_some() {
            self.door.enter(Fence(0), cx);
        }
    }
}

impl CyclicSuzukiKasami {
    fn enqueue(&mut self, site: NodeId) {
        let Some(token) = &mut self.token else { return };
        let waits = self.heard[site.index()] == (token.served[site.index()] + 1) % ROUND;
        if waits && !token.queue.contains(&site) {
            if self.lifo { token.queue.push_front(site) } else { token.queue.push_back(site) }
        }
    }

    fn pass(&mut self, cx: &mut Cx<'_, Self>) {
        if let Some(mut token) = self.token.take_if(|token| !token.queue.is_empty())
            && let Some(next) = token.queue.pop_front()
        {
            cx.send(next, Message::Privilege(token));
        }
    }
}

impl Mutex for CyclicSuzukiKasami {
    const CARD: Card = Card { needs: Needs::RELIABLE_FIFO, promises: &["ME1", "ME2"], ..SuzukiKasami::CARD };

    fn new(me: NodeId, group: &Group) -> Self {
        let table = || vec![0; group.nodes as usize].into_boxed_slice();
        let token = || Privilege { served: table(), queue: VecDeque::new() };
        Self { door: Door::default(), lifo: false, heard: table(), token: (me == NodeId(0)).then(token) }
    }

    fn bill(message: &Message, _from: NodeId, _to: NodeId) -> Bill {
        match message {
            Message::Request(_) => Bill::shared("REQUEST"),
            Message::Privilege(_) => Bill::shared("PRIVILEGE"),
        }
    }
}
