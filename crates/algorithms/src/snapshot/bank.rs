//! The bank: every site has an account, transfers are messages, and the sum of all money never changes.
//!
//! This is the example of the lectures. A reader that queries the balances one after the other can get any
//! sum: it counts money in transit twice or not at all. In a picture, balances and channels add up to the
//! true sum.

use conclave_kernel::{Cx, Never, NodeId, Protocol};
use serde::{Deserialize, Serialize};

use super::{Application, Picture};

/// The account of one site.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Bank {
    /// The money in the account.
    pub balance: u64,
}

/// A command: transfer an amount to another account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Transfer {
    /// The receiver.
    pub to: NodeId,
    /// The amount.
    pub amount: u64,
}

/// A message: money in transit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Money(pub u64);

/// The reason why a transfer was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Notice {
    /// The account holds less than the amount.
    Overdrawn,
    /// The receiver has no account.
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
