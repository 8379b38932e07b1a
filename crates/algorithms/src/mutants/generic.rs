//! Flaws that need no code of an algorithm: they forget, repeat or ignore messages of one kind.
//!
//! Such a flaw is named by its rule and a kind of message, for example `never-sends:REPLY`. It exists for every
//! algorithm of every problem. Some of them are harmless, for example a message handled twice by an algorithm
//! that tolerates duplicates.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use conclave_kernel::{Cx, Effect, Input, NodeSet, Protocol};
use serde::{Deserialize, Serialize};

use super::flawed::{View, env, forward};
use crate::link::tap::tap_with;

/// A generic flaw.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Generic {
    /// The rule that the site breaks.
    pub rule: Rule,
    /// The kind of message, as the paper spells it.
    pub kind: String,
}

/// The way in which a site goes wrong with messages of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// The site never sends such a message.
    NeverSends,
    /// The site ignores such a message while it has what it asked for, for example inside the critical section.
    IgnoresInside,
    /// The site ignores such a message while it waits for what it asked for.
    IgnoresAsking,
    /// The site handles each such message twice.
    HandlesTwice,
    /// The site leaves out the last receiver if it sends such a message to several sites in one step.
    OmitsLast,
}

/// The stage of a site's work, as the layer above sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// The site asks for nothing.
    #[default]
    Idle,
    /// The site waits for what it asked for.
    Asking,
    /// The site has what it asked for.
    Inside,
}

impl Rule {
    /// The rules of problems whose sites ask and enter.
    pub const ALL: &'static [Self] =
        &[Self::NeverSends, Self::IgnoresInside, Self::IgnoresAsking, Self::HandlesTwice, Self::OmitsLast];
    /// The rules of problems whose sites ask, but do not keep what they get.
    pub const WITHOUT_INSIDE: &'static [Self] =
        &[Self::NeverSends, Self::IgnoresAsking, Self::HandlesTwice, Self::OmitsLast];
    /// The rules of problems whose sites ask for nothing.
    pub const OF_MESSAGES: &'static [Self] = &[Self::NeverSends, Self::HandlesTwice, Self::OmitsLast];

    /// The rule in the name of a flaw.
    pub const fn name(self) -> &'static str {
        match self {
            Self::NeverSends => "never-sends",
            Self::IgnoresInside => "ignores-inside",
            Self::IgnoresAsking => "ignores-asking",
            Self::HandlesTwice => "handles-twice",
            Self::OmitsLast => "omits-last",
        }
    }
}

impl Generic {
    /// Returns the flaw in one sentence.
    pub fn sentence(&self) -> String {
        let kind = &self.kind;
        match self.rule {
            Rule::NeverSends => alloc::format!("a site never sends {kind}"),
            Rule::IgnoresInside => alloc::format!("a site that has what it asked for ignores {kind}"),
            Rule::IgnoresAsking => alloc::format!("a site that waits for what it asked for ignores {kind}"),
            Rule::HandlesTwice => alloc::format!("a site handles each {kind} twice"),
            Rule::OmitsLast => alloc::format!("a site that sends {kind} to several sites omits the last one"),
        }
    }

    /// Runs a step of the real code with this flaw.
    pub(super) fn step<P: Protocol, V: View<P>>(
        &self,
        site: &mut P,
        stage: Stage,
        input: Input<P>,
        cx: &mut Cx<'_, P>,
    ) {
        let concerned = matches!(&input, Input::Message { message, .. } if V::kind(message) == self.kind);
        match (self.rule, stage) {
            (Rule::IgnoresInside, Stage::Inside) | (Rule::IgnoresAsking, Stage::Asking) if concerned => {}
            (Rule::HandlesTwice, _) if concerned => {
                site.step(input.clone(), cx);
                site.step(input, cx);
            }
            (Rule::NeverSends | Rule::OmitsLast, _) => {
                let effects = tap_with(cx, |cx| site.step(input, cx));
                let omitted = match self.rule {
                    Rule::NeverSends => NodeSet::full(env(cx).nodes),
                    _ => self.last_receiver::<P, V>(&effects, cx),
                };
                effects.into_iter().for_each(|effect| self.send::<P, V>(effect, &omitted, cx));
            }
            _ => site.step(input, cx),
        }
    }

    /// Returns the last receiver of messages of the kind; empty if they go to one site only.
    fn last_receiver<P: Protocol, V: View<P>>(&self, effects: &[Effect<P>], cx: &Cx<'_, P>) -> NodeSet {
        let receivers: Vec<_> = effects
            .iter()
            .flat_map(|effect| self.receivers::<P, V>(effect, cx).iter().collect::<Vec<_>>())
            .collect();
        match receivers[..] {
            [first, .., last] if first != last => [last].into_iter().collect(),
            _ => NodeSet::new(),
        }
    }

    /// Returns the receivers of an effect that sends a message of the kind.
    fn receivers<P: Protocol, V: View<P>>(&self, effect: &Effect<P>, cx: &Cx<'_, P>) -> NodeSet {
        let all = match effect {
            Effect::Send { to, message } if V::kind(message) == self.kind => [*to].into_iter().collect(),
            Effect::SendTo { to, message } if V::kind(message) == self.kind => to.clone(),
            Effect::Broadcast { message } if V::kind(message) == self.kind => NodeSet::full(env(cx).nodes),
            _ => return NodeSet::new(),
        };
        let is_single = matches!(effect, Effect::Send { .. });
        all.iter().filter(|to| is_single || *to != cx.me()).collect()
    }

    /// Requests an effect, without the omitted receivers if it sends a message of the kind.
    fn send<P: Protocol, V: View<P>>(&self, effect: Effect<P>, omitted: &NodeSet, cx: &mut Cx<'_, P>) {
        let receivers = self.receivers::<P, V>(&effect, cx);
        if receivers.iter().all(|to| !omitted.contains(to)) {
            return forward(effect, cx);
        }
        let left: NodeSet = receivers.iter().filter(|to| !omitted.contains(*to)).collect();
        if let Effect::SendTo { message, .. } | Effect::Broadcast { message } = effect
            && !left.is_empty()
        {
            cx.send_to(left, message);
        }
    }
}

impl fmt::Display for Generic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.rule.name(), self.kind)
    }
}

impl FromStr for Generic {
    type Err = &'static str;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = "expected a rule and a kind of message, for example never-sends:REPLY";
        let (rule, kind) = text.split_once(':').ok_or(error)?;
        let rule = Rule::ALL.iter().copied().find(|known| known.name() == rule).ok_or(error)?;
        if kind.is_empty() { Err(error) } else { Ok(Self { rule, kind: kind.into() }) }
    }
}
