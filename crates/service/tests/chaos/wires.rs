//! The connections between nodes. Each goes through a relay that can be cut, silenced and slowed.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conclave_kernel::Prng;
use conclave_service::peers::Dial;
use futures_util::future::BoxFuture;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The place of a node in the cluster; 0 is the founder.
pub type Slot = usize;

/// A fault of a connection, in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Connections break, and new ones fail.
    Severed,
    /// No data arrives and no error is reported. The data arrives after the repair.
    Silent,
}

/// The relay of all connections between the nodes of a cluster.
pub struct Wires {
    addresses: Mutex<BTreeMap<String, Slot>>,
    cuts: watch::Sender<BTreeMap<(Slot, Slot), Cut>>,
    dice: Mutex<Prng>,
}

impl Wires {
    pub fn new(seed: u64) -> Arc<Self> {
        let dice = Mutex::new(Prng::stream(seed, 0x31e5, 0));
        Arc::new(Self { addresses: Mutex::default(), cuts: watch::Sender::new(BTreeMap::new()), dice })
    }

    /// Records the address of a node.
    pub fn place(&self, slot: Slot, address: String) {
        self.addresses.lock().unwrap().insert(address, slot);
    }

    /// Cuts the direction from one node to another.
    pub fn cut(&self, from: Slot, to: Slot, cut: Cut) {
        self.cuts.send_modify(|cuts| {
            cuts.insert((from, to), cut);
        });
    }

    /// Repairs all faults.
    pub fn mend(&self) {
        self.cuts.send_modify(BTreeMap::clear);
    }

    /// Delays about one of 16 transfers.
    async fn dawdle(&self) {
        let wait = {
            let mut dice = self.dice.lock().unwrap();
            (dice.below(16) == 0).then(|| dice.between(1, 20))
        };
        if let Some(ms) = wait {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
    }
}

/// The dialer of one node, which connects through the relay.
pub struct Wire {
    pub from: Slot,
    pub wires: Arc<Wires>,
}

impl Dial for Wire {
    fn dial(&self, address: &str) -> BoxFuture<'static, io::Result<TcpStream>> {
        let (from, wires, address) = (self.from, self.wires.clone(), address.to_owned());
        Box::pin(async move {
            let to = wires.addresses.lock().unwrap().get(&address).copied();
            let to = to.ok_or(io::ErrorKind::ConnectionRefused)?;
            if wires.cuts.borrow().get(&(from, to)) == Some(&Cut::Severed) {
                return Err(io::ErrorKind::ConnectionRefused.into());
            }
            let there = TcpStream::connect(&address).await?;
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            let (here, accepted) =
                tokio::join!(TcpStream::connect(listener.local_addr()?), listener.accept());
            let (relay, _) = accepted?;
            let ((read_here, write_here), (read_there, write_there)) =
                (relay.into_split(), there.into_split());
            tokio::spawn(carry(wires.clone(), (from, to), read_here, write_there));
            tokio::spawn(carry(wires, (to, from), read_there, write_here));
            here
        })
    }
}

/// Copies one direction until either end closes or the direction is severed.
async fn carry(wires: Arc<Wires>, way: (Slot, Slot), mut from: OwnedReadHalf, mut to: OwnedWriteHalf) {
    let mut cuts = wires.cuts.subscribe();
    let mut buffer = vec![0; 16 * 1024];
    loop {
        let severed = async {
            // The sender exists as long as the cluster.
            drop(cuts.wait_for(|cuts| cuts.get(&way) == Some(&Cut::Severed)).await);
        };
        let count = tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(0) | Err(_) => return,
                Ok(count) => count,
            },
            () = severed => return,
        };
        wires.dawdle().await;
        if cuts.wait_for(|cuts| cuts.get(&way) != Some(&Cut::Silent)).await.is_err() {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
