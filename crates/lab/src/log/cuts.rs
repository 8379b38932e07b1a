//! Cuts of a log: its events as the judge of cuts wants them, the cut of a recorded snapshot, and the
//! equivalent execution that passes through it.

use conclave_algorithms::snapshot::cut::{Cut, Message, Run};

use super::{Fate, Log};

impl Log {
    /// The run as the judge of cuts wants it. Of a message that was received twice, the first receipt counts;
    /// one that was lost was sent, and is in no channel.
    pub fn run(&self) -> Run {
        let mut events = vec![0_u32; self.sites() as usize];
        let mut number = Vec::with_capacity(self.events().len());
        for event in self.events() {
            events[event.site.index()] += 1;
            number.push(events[event.site.index()]);
        }
        let messages = self.messages().iter().filter(|message| !matches!(message.fate, Fate::Lost(_)));
        let messages = messages.map(|message| Message {
            from: message.from,
            sent: number[message.sent_by as usize],
            to: message.to,
            received: match message.fate {
                Fate::Received(event) => Some(number[event as usize]),
                Fate::InFlight | Fate::Lost(_) => None,
            },
        });
        Run { events, messages: messages.collect() }
    }

    /// The indices in [`Log::messages`] of the messages of [`Log::run`].
    pub fn run_messages(&self) -> Vec<usize> {
        let arrived = |(_, message): &(usize, &super::Message)| !matches!(message.fate, Fate::Lost(_));
        self.messages().iter().enumerate().filter(arrived).map(|(index, _)| index).collect()
    }

    /// The cut of a snapshot that the run recorded: everything before each site's recording. `None` if some
    /// site recorded none of that number.
    ///
    /// Needs no types: it looks for what the sites told the layer above.
    pub fn snapshot(&self, id: u32) -> Option<Cut> {
        let told = format!(r#"{{"recorded":{id}}}"#);
        let mut before = vec![0_u32; self.sites() as usize];
        let mut recorded: Vec<Option<u32>> = vec![None; self.sites() as usize];
        for (index, event) in self.events().iter().enumerate() {
            let site = event.site.index();
            if recorded[site].is_none() && self.emitted(index).iter().any(|text| self.raw(*text) == told) {
                // The recording comes before whatever else the step does.
                recorded[site] = Some(before[site]);
            }
            before[site] += 1;
        }
        recorded.into_iter().collect::<Option<Vec<_>>>().map(Cut)
    }

    /// The same events in another order: first those in the cut, then the others, each in the order of the
    /// log. If the cut is consistent, that is an execution which the sites cannot tell from the real one, and
    /// after its first part it is in the state of the cut. \[CL85 §3.3\] The answer says how long that part
    /// is.
    pub fn through(&self, cut: &Cut) -> (Vec<usize>, usize) {
        let mut seen = vec![0_u32; self.sites() as usize];
        let (mut inside, mut outside) = (Vec::new(), Vec::new());
        for (index, event) in self.events().iter().enumerate() {
            seen[event.site.index()] += 1;
            let part =
                if cut.contains(event.site, seen[event.site.index()]) { &mut inside } else { &mut outside };
            part.push(index);
        }
        let length = inside.len();
        inside.append(&mut outside);
        (inside, length)
    }
}
