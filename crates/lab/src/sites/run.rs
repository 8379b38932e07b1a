//! The runs of a program, and its sites.
//!
//! In a simulated run, the state of a site stays in the child. In the checker, a site is its saved state.

use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex};

use conclave_kernel::{Cx, Digest, Env, NodeId, Protocol};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::lines::{self, Action, Name, Reply, Text};
use super::process::Host;
use super::program::{Program, last, lock};
use super::shortened;

/// The random choices of one step. A program that makes more fails.
const MOST_CHOICES: usize = 1_000;

/// The sites of one run, in one child.
#[derive(Clone, Debug)]
pub(super) struct Run(Arc<Mutex<Exchange>>);

impl Run {
    /// Begins a run of a program. Its sites are called by one thread at a time.
    pub(super) fn begin(program: &Arc<Program>, seed: u64, saves: bool) -> Result<Self, String> {
        let mut exchange = Exchange::new(Arc::clone(program), Some(seed));
        match exchange.request(lines::RESET, 1)? {
            Reply::Done { actions, .. } if actions.is_empty() => {}
            _ => return Err(format!("{}: the reply to a reset has effects or a choice", program.path())),
        }
        exchange.saves = saves && program.saves();
        Ok(Self(Arc::new(Mutex::new(exchange))))
    }

    /// Returns the result of the run: the first failure of its program.
    pub(super) fn finish(&self) -> Result<(), String> {
        let mut exchange = lock(&self.0);
        exchange.give_back();
        exchange.failure.take().map_or(Ok(()), Err)
    }

    /// Returns the number of a grant, counted over all sites of the run.
    pub(super) fn next_grant(&self) -> u64 {
        let mut exchange = lock(&self.0);
        exchange.grants += 1;
        exchange.grants
    }
}

/// The connection to one child, and the position in its run.
struct Exchange {
    program: Arc<Program>,
    host: Option<Box<dyn Host>>,
    /// The seed of the run; `None` for a step of the checker.
    seed: Option<u64>,
    saves: bool,
    steps: u64,
    grants: u64,
    failure: Option<String>,
}

impl Exchange {
    fn new(program: Arc<Program>, seed: Option<u64>) -> Self {
        Self { program, host: None, seed, saves: false, steps: 0, grants: 0, failure: None }
    }

    /// Sends a line to the child, which is taken from the idle ones before the first line.
    fn request(&mut self, line: &str, nodes: u32) -> Result<Reply, String> {
        let host = match &mut self.host {
            Some(host) => host,
            None => self.host.insert(self.program.take_host()?),
        };
        let mut printed = Vec::new();
        let answer = host.request(line, self.program.step_deadline(), &mut printed);
        self.program.print(&self.place(line), &printed);
        let wrong = match answer {
            Ok(reply) => match lines::read_reply(&reply, nodes) {
                Ok(reply) => return Ok(reply),
                Err(why) => format!("the reply is wrong: {why}: {}", shortened(&reply)),
            },
            Err(trouble) => format!("{trouble}{}", last(&printed)),
        };
        // The child may still write, so it cannot be used again.
        self.host = None;
        Err(format!("{}: {wrong}; the line was {}", self.place(line), shortened(line.trim_end())))
    }

    /// Executes a step of a site.
    fn step(&mut self, step: &Step<'_>, choose: &mut dyn FnMut(u32) -> u32) -> Result<Done, String> {
        self.steps += 1;
        let nodes = step.env.nodes;
        let line = lines::step(step.env, step.input, step.group, step.load, step.saves || self.saves);
        let mut reply = self.request(&line, nodes)?;
        for _ in 0..MOST_CHOICES {
            match reply {
                Reply::Choose(below) => reply = self.request(&lines::chosen(choose(below)), nodes)?,
                Reply::Done { saved: None, .. } if step.saves || self.saves => {
                    return Err(format!("{}: the reply has no \"saved\"", self.place(&line)));
                }
                Reply::Done { actions, saved, clock } => return Ok(Done { actions, saved, clock }),
            }
        }
        self.host = None;
        Err(format!("{}: the step makes more than {MOST_CHOICES} random choices", self.place(&line)))
    }

    /// Names the program, the run, the site and the step of a line.
    fn place(&self, line: &str) -> String {
        let mut place = self.program.path().to_owned();
        if let Some(seed) = self.seed {
            place += &format!(", seed {seed}");
        }
        if self.steps > 0 {
            let site = line.strip_prefix("{\"site\":").and_then(|rest| rest.split(',').next());
            let site = site.map_or(String::new(), |site| format!(", n{site}"));
            place += &match self.seed {
                Some(_) => format!("{site}, step {}", self.steps),
                None => site,
            };
        }
        place
    }

    fn give_back(&mut self) {
        if let Some(host) = self.host.take() {
            self.program.give_back(host);
        }
    }
}

impl std::fmt::Debug for Exchange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} after {} steps", self.program.path(), self.steps)
    }
}

impl Drop for Exchange {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// A step to execute.
struct Step<'a> {
    env: Env,
    input: &'a str,
    group: Option<&'a Text>,
    load: Option<&'a Text>,
    saves: bool,
}

/// The result of a step.
#[derive(PartialEq, Eq)]
struct Done {
    actions: Vec<Action>,
    saved: Option<Text>,
    clock: u64,
}

/// The state of one site of a program.
#[derive(Clone, Debug)]
pub(super) struct Remote {
    place: Place,
    clock: u64,
    /// The state of the site as JSON, if it was saved after the last step.
    state: Option<Text>,
}

#[derive(Clone, Debug)]
enum Place {
    /// The state is in the child of a run. It is a function of the steps of the site, which the digest stands
    /// for.
    Child(Run, u64),
    /// The state is `Remote::state`. Any child can execute the next step.
    Here(Arc<Program>),
    /// There is no program, and the site does nothing.
    Nowhere,
}

impl Remote {
    /// A site of a run, whose state stays in the child.
    pub(super) fn in_run(run: &Run) -> Self {
        Self { place: Place::Child(run.clone(), 0), clock: 0, state: None }
    }

    /// A site whose state is loaded before and saved after each step.
    pub(super) fn saved(program: &Arc<Program>) -> Self {
        Self { place: Place::Here(Arc::clone(program)), clock: 0, state: None }
    }

    /// A site without a program, which does nothing.
    pub(super) const fn nowhere() -> Self {
        Self { place: Place::Nowhere, clock: 0, state: None }
    }

    /// Returns the logical clock of the site.
    pub(super) fn clock(&self) -> u64 {
        self.clock
    }

    /// Returns the number of the next grant of the run; 0 if the site does not belong to a run.
    pub(super) fn next_grant(&self) -> u64 {
        match &self.place {
            Place::Child(run, _) => run.next_grant(),
            Place::Here(_) | Place::Nowhere => 0,
        }
    }

    /// Passes an input, as JSON, to the program, and requests the effects of its reply. `emit` handles an
    /// event; its error is a failure of the run. `group` is the knowledge of a site that starts.
    pub(super) fn pass<P: Protocol<Message = Text, Timer = Name>>(
        &mut self,
        input: &str,
        group: Option<&Text>,
        cx: &mut Cx<'_, P>,
        mut emit: impl FnMut(&Self, &Text, &mut Cx<'_, P>) -> Result<(), String>,
    ) {
        let nodes = cx.members().len() as u32;
        let env = Env { me: cx.me(), nodes, now: cx.now(), incarnation: cx.incarnation() };
        for action in self.step(env, input, group, &mut |below| cx.choose(below)) {
            match action {
                Action::Send(to, message) => cx.send(to, message),
                Action::SendTo(to, message) => cx.send_to(to, message),
                Action::Broadcast(message) => cx.broadcast(message),
                Action::Arm(timer, min, max) => cx.arm(timer, min..=max),
                Action::Disarm(timer) => cx.disarm(timer),
                Action::Emit(event) => {
                    if let Err(why) = emit(self, &event, cx) {
                        let name = self.name(cx.me());
                        return self.fail(format!("{name}: {why}; the input was {}", shortened(input)));
                    }
                }
            }
        }
    }

    /// Executes a step. After a failure, every step of the run has no effects.
    fn step(
        &mut self,
        env: Env,
        input: &str,
        group: Option<&Text>,
        choose: &mut dyn FnMut(u32) -> u32,
    ) -> Vec<Action> {
        let done = match &mut self.place {
            Place::Nowhere => return Vec::new(),
            Place::Child(run, digest) => {
                let mut exchange = lock(&run.0);
                if exchange.failure.is_some() {
                    return Vec::new();
                }
                let done = exchange.step(&Step { env, input, group, load: None, saves: false }, choose);
                let mut next = Digest::new();
                next.absorb(&(*digest, input, done.as_ref().map(|done| &done.actions).ok()));
                *digest = next.value();
                done
            }
            Place::Here(program) if program.has_failed() => return Vec::new(),
            Place::Here(program) => {
                let step = Step { env, input, group, load: self.state.as_ref(), saves: true };
                twice(program, &step, choose)
            }
        };
        match done {
            Ok(Done { actions, saved, clock }) => {
                self.clock = clock;
                self.state = saved;
                actions
            }
            Err(why) => {
                self.fail(why);
                Vec::new()
            }
        }
    }

    /// Records a failure of this site. The first failure counts.
    fn fail(&self, why: String) {
        match &self.place {
            Place::Child(run, _) => _ = lock(&run.0).failure.get_or_insert(why),
            Place::Here(program) => program.fail(why),
            Place::Nowhere => {}
        }
    }

    /// Names the site for a message of [`Remote::fail`].
    fn name(&self, me: NodeId) -> String {
        match &self.place {
            Place::Child(run, _) => {
                let exchange = lock(&run.0);
                exchange.place(&format!("{{\"site\":{},", me.0))
            }
            Place::Here(program) => format!("{}, {me}", program.path()),
            Place::Nowhere => me.to_string(),
        }
    }
}

/// Executes a step with a saved state two times, and compares the results. A step that depends on anything
/// besides its state and its input cannot be explored.
fn twice(
    program: &Arc<Program>,
    step: &Step<'_>,
    choose: &mut dyn FnMut(u32) -> u32,
) -> Result<Done, String> {
    let mut exchange = Exchange::new(Arc::clone(program), None);
    let mut chosen = Vec::new();
    let first = exchange.step(step, &mut |below| {
        chosen.push(choose(below));
        chosen[chosen.len() - 1]
    })?;
    let mut again = chosen.into_iter();
    let second = exchange.step(step, &mut |_| again.next().unwrap_or_default())?;
    if first == second {
        return Ok(first);
    }
    let shown = |done: &Done| shortened(&format!("{:?} {:?}", done.actions, done.saved));
    Err(format!(
        "{}, {}: the program is not deterministic: the same step from the same state had two results; {} first: \
         {} then: {}",
        program.path(),
        step.env.me,
        super::HIDDEN_STATE,
        shown(&first),
        shown(&second)
    ))
}

impl Serialize for Remote {
    /// Writes the state that the program saved; nothing if it saved none.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.state.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Remote {
    /// Fails: a site belongs to a program that runs.
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        Err(serde::de::Error::custom("a site of a program cannot be read from a file"))
    }
}

impl PartialEq for Remote {
    fn eq(&self, other: &Self) -> bool {
        let digest = |remote: &Self| match remote.place {
            Place::Child(_, digest) => digest,
            Place::Here(_) | Place::Nowhere => 0,
        };
        (digest(self), self.clock, &self.state) == (digest(other), other.clock, &other.state)
    }
}

impl Eq for Remote {}

impl Hash for Remote {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        if let Place::Child(_, digest) = self.place {
            digest.hash(hasher);
        }
        (self.clock, &self.state).hash(hasher);
    }
}
