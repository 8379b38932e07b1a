//! The bank: every site has an account, transfers are messages, and money is neither made nor lost.
//!
//! The lectures' example. What somebody who asks every branch for its balance, one after the other, adds up
//! to is anything: money on its way is counted twice or not at all. In a picture, balances and channels add
//! up.

use conclave_kernel::{Cx, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Picture};

/// An account.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bank {
    /// What is in it.
    pub balance: u64,
}

/// Send an amount to another account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfer {
    /// To whom.
    pub to: NodeId,
    /// How much.
    pub amount: u64,
}

/// Money on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(pub u64);

/// What the bank tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// There is not as much in the account.
    Overdrawn,
    /// There is no such account.
    NoSuchAccount,
}

impl Protocol for Bank {
    type Message = Money;
    type Timer = Never;
    type Command = Transfer;
    type Event = Notice;

    fn on_message(&mut self, _from: NodeId, Money(amount): Money, _cx: &mut Cx<'_, Self>) {
        self.balance = self.balance.saturating_add(amount);
    }

    fn on_command(&mut self, Transfer { to, amount }: Transfer, cx: &mut Cx<'_, Self>) {
        match self.balance.checked_sub(amount) {
            _ if !cx.members().contains(to) => cx.emit(Notice::NoSuchAccount),
            None => cx.emit(Notice::Overdrawn),
            Some(left) => {
                self.balance = left;
                cx.send(to, Money(amount));
            }
        }
    }
}

impl Application for Bank {
    fn conserved(picture: &Picture<Self>) -> Option<u64> {
        let balances = picture.states().map(|account| account.balance);
        let under_way = picture.in_transit().map(|(_, _, Money(amount))| *amount);
        Some(balances.chain(under_way).fold(0, u64::saturating_add))
    }
}
