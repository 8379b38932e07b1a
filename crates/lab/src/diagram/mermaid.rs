//! A Mermaid `sequenceDiagram`: for documents whose renderer draws it.
//!
//! A Mermaid message is one horizontal line: it has no duration. It stands here where it was *received*, so
//! that above every receipt and note stands everything that its site then knew. Lost messages end in a cross, where
//! the loss was known; what was still on its way is left out.
//!
//! **Bound**: Mermaid refuses large texts; only the first lines are written, and the last one says so.

use std::fmt::Write as _;

use conclave_kernel::trace::What;
use conclave_kernel::{NodeId, Time};

use crate::log::{Cause, Fate, Log};

/// At most so many messages are written.
pub const MOST_MESSAGES: usize = 300;

/// Writes a log as a sequence diagram.
pub fn draw(log: &Log) -> String {
    let mut out = String::from("sequenceDiagram\n");
    for site in (0..log.sites().min(MOST_SITES)).map(NodeId) {
        line(&mut out, &format!("participant p{} as {}", site.0, escape(&log.name(site))));
    }
    let lost = |at: Time, index: usize| (at, What::Lose(index as u64));
    let losses = log.messages().iter().enumerate().filter_map(|(index, message)| match message.fate {
        Fate::Lost(at) => Some(lost(at, index)),
        _ => None,
    });
    let mut marks: Vec<_> =
        log.marks().iter().map(|mark| (mark.at, mark.what.clone())).chain(losses).collect();
    marks.sort_by_key(|(at, _)| *at);
    let mut marks = marks.into_iter().peekable();
    let mut writer = Writer { log, out, messages: 0 };
    for (index, event) in log.events().iter().enumerate() {
        // A message that was lost the moment it was sent is shown after that step, not before it.
        while let Some((_, what)) = marks.next_if(|(at, _)| *at < event.at) {
            writer.mark(&what);
        }
        if writer.messages >= MOST_MESSAGES {
            writer.cut();
            return writer.out;
        }
        writer.event(index);
    }
    marks.for_each(|(_, what)| writer.mark(&what));
    writer.out
}

/// At most so many participants: more do not fit on any page.
const MOST_SITES: u32 = 40;

struct Writer<'a> {
    log: &'a Log,
    out: String,
    messages: usize,
}

impl Writer<'_> {
    fn event(&mut self, index: usize) {
        let event = &self.log.events()[index];
        for message in self.log.received(index).iter().map(|message| &self.log.messages()[*message as usize])
        {
            let again = if message.fate == Fate::Received(index as u32) { "" } else { " (again)" };
            self.message(message.from, message.to, "-)", &format!("{}{again}", self.log.short(message.text)));
        }
        match event.cause {
            Cause::Command(text) | Cause::Timer(text) => self.note(event.site, &self.log.short(text)),
            Cause::Foreign(text) => self.note(event.site, self.log.raw(text)),
            Cause::Start | Cause::Recover | Cause::Message => {}
        }
        for text in self.log.emitted(index) {
            self.note(event.site, &self.log.words(*text));
        }
    }

    fn mark(&mut self, what: &What) {
        match what {
            What::Crash(site) => self.note(*site, "crashes"),
            What::Recover(site) => self.note(*site, "recovers"),
            What::Pause(site) => self.note(*site, "pauses"),
            What::Resume(site) => self.note(*site, "goes on"),
            What::Cut(group) => self.note_all(&format!("{} cut off", self.names(group))),
            What::Heal(group) => self.note_all(&format!("{} back", self.names(group))),
            What::Lose(index) => {
                let message = &self.log.messages()[*index as usize];
                self.message(
                    message.from,
                    message.to,
                    "-x",
                    &format!("{} (lost)", self.log.short(message.text)),
                );
            }
            What::Duplicate(_) => {}
        }
    }

    fn message(&mut self, from: NodeId, to: NodeId, arrow: &str, text: &str) {
        if from.0.max(to.0) < MOST_SITES {
            self.messages += 1;
            line(&mut self.out, &format!("p{}{arrow}p{}: {}", from.0, to.0, escape(text)));
        }
    }

    fn note(&mut self, site: NodeId, text: &str) {
        if site.0 < MOST_SITES {
            line(&mut self.out, &format!("Note over p{}: {}", site.0, escape(text)));
        }
    }

    fn note_all(&mut self, text: &str) {
        let over = match self.log.sites().min(MOST_SITES) {
            0 | 1 => "p0".to_owned(),
            sites => format!("p0,p{}", sites - 1),
        };
        line(&mut self.out, &format!("Note over {over}: {}", escape(text)));
    }

    fn cut(&mut self) {
        let text = format!("only {} of {} messages are shown", self.messages, self.log.messages().len());
        self.note_all(&text);
    }

    fn names(&self, group: &[NodeId]) -> String {
        group.iter().map(|site| self.log.name(*site)).collect::<Vec<_>>().join(", ")
    }
}

fn line(out: &mut String, text: &str) {
    writeln!(out, "    {text}").expect("writing to a string does not fail");
}

/// Text as Mermaid takes it: `;` ends a statement, `#` begins an entity, `%%` a comment, and markup is
/// interpreted, so everything but plain characters goes as an entity.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            c if c.is_alphanumeric() || " .,()=-_+/".contains(c) => out.push(c),
            c if c.is_control() => out.push(' '),
            c => write!(out, "#{};", c as u32).expect("writing to a string does not fail"),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagram::testing;

    #[test]
    fn a_run_becomes_a_sequence_diagram() {
        assert_eq!(
            draw(&testing::small_log()),
            "sequenceDiagram
    participant p0 as n0
    participant p1 as n1
    participant p2 as n2
    Note over p0: acquire
    p0-xp2: request(1,0) (lost)
    p0-)p1: request(1,0)
    p1-)p0: reply
    Note over p0: granted fence 3
    Note over p2: crashes
    p1-)p0: reply (again)
    Note over p0,p2: n0, n1 cut off
    Note over p0: release
    Note over p0: released
    Note over p2: recovers
    Note over p0,p2: n0, n1 back
"
        );
    }

    #[test]
    fn text_that_would_end_a_statement_is_escaped() {
        assert_eq!(escape("a;b#c%%\n<end>"), "a#59;b#35;c#37;#37; #60;end#62;");
    }

    #[test]
    fn a_long_run_is_cut_and_says_so() {
        let log = testing::ricart_agrawala(5, 100);
        let text = draw(&log);
        let arrows = text.lines().filter(|line| line.contains("-)")).count();
        assert!((MOST_MESSAGES..MOST_MESSAGES + 2).contains(&arrows), "{arrows}");
        assert!(text.ends_with(&format!(
            "Note over p0,p4: only {arrows} of {} messages are shown\n",
            log.messages().len()
        )));
    }
}
