//! The steps of the tour, as data. `conclave tour` runs them, `conclave tour --list` prints them, and a test compares
//! the list with the block in `README.md`.

/// The address of the server in the list. A tour uses a free port in its place.
pub const ADDRESS: &str = "127.0.0.1:7419";

/// The picture that the last step draws, in the folder of the tour.
pub const PICTURE: &str = "run.svg";

/// One subject, shown by a few commands.
pub struct Step {
    /// The heading.
    pub title: &'static str,
    /// One sentence that explains the output.
    pub explains: &'static str,
    /// The commands, in order.
    pub commands: &'static [Command],
    /// Whether the step needs the laboratory.
    pub needs_lab: bool,
}

/// One command of a step, and the outcome that it must have.
pub struct Command {
    /// The line to type into a POSIX shell.
    pub line: &'static str,
    /// Texts that must appear in the output, in this order.
    pub shows: &'static [&'static str],
    /// The moment at which the texts must have appeared.
    pub by: By,
}

/// The moment at which the texts of a command must have appeared.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// The end of the command.
    End,
    /// Any time: a command in the background prints them, and the next command waits for them.
    AnyTime,
    /// The end of a repetition: no output announces the state that the command shows, so it is typed until the state is there.
    Repetition,
}

/// All steps.
pub const STEPS: &[Step] = &[
    Step {
        title: "A server",
        explains: "One node of the lock service needs no configuration; its log is in the folder `node`.",
        commands: &[
            awaits(
                "conclave serve --data node --listen 127.0.0.1:7419 & server=$!",
                &["serving on ", "conclave get "],
            ),
            types("export CONCLAVE_SERVER=127.0.0.1:7419"),
        ],
        needs_lab: false,
    },
    Step {
        title: "A queue",
        explains: "The first command holds the lock until it can read a line; `why` shows who waits behind whom.",
        commands: &[
            types("mkfifo next"),
            awaits(
                "conclave run build -- sh -c 'echo \"first: I hold build\"; read line < next' &",
                &["first: I hold build"],
            ),
            types("conclave run build -- echo 'second: now I hold build' &"),
            repeats("conclave why build", &["held by ", "1. ", "behind "]),
            types("conclave run 'build & disk' -- echo 'third: I hold build and disk' &"),
            repeats("conclave why build", &["held by ", "1. ", "behind ", "2. ", "behind "]),
            awaits("echo go > next", &["second: now I hold build", "third: I hold build and disk"]),
        ],
        needs_lab: false,
    },
    Step {
        title: "A lock expression",
        explains: "An expression takes all its names at once or none; here any two of three that are free.",
        commands: &[shows(
            "conclave run gpu1 -- conclave run '2 of (gpu0, gpu1, gpu2)' -- sh -c 'echo \"I took $CONCLAVE_LOCKS\"'",
            &["I took gpu0 gpu2"],
        )],
        needs_lab: false,
    },
    Step {
        title: "A deadlock",
        explains: "Each philosopher holds one fork and asks for another; the request that completes the cycle is rejected.",
        commands: &[
            shows(
                "conclave tour philosophers",
                &[
                    "p3 is rejected",
                    "fork1, held by p1",
                    "fork2, held by p2",
                    "p2 eats",
                    "p1 eats",
                    "p3 eats",
                ],
            ),
            shows("conclave why fork1", &["fork1", "deadlock", "p3", "fork1, held by p1"]),
        ],
        needs_lab: false,
    },
    Step {
        title: "A killed holder",
        explains: "The command dies with `conclave run`; the next grant follows after the lease (2 s) and the lock-delay.",
        commands: &[
            awaits(
                "conclave run --ttl 2s backup -- sh -c 'echo began; while echo $CONCLAVE_FENCE >> log; do sleep 0.1; done' &",
                &["began"],
            ),
            types("kill -9 $!"),
            shows(
                "conclave run backup -- sh -c 'echo $CONCLAVE_FENCE >> log; echo \"granted again, fence $CONCLAVE_FENCE\"'",
                &["granted again, fence "],
            ),
            shows(
                "sort -nc log && echo 'the killed holder wrote nothing after the next grant'",
                &["the killed holder wrote nothing after the next grant"],
            ),
        ],
        needs_lab: false,
    },
    Step {
        title: "A stale write",
        explains: "A frozen holder cannot notice that its lease is over; a store that remembers the largest fence rejects it.",
        commands: &[
            types(
                "mkfifo wake; echo 0 > seen; echo '[ $1 -ge $(cat seen) ] && echo $1 > seen && echo \"wrote $2\" || \
                 echo \"rejected $2: old fence $1\"' > store",
            ),
            awaits(
                "conclave run --ttl 1s report -- sh -c 'echo began; read line < wake; sh store $CONCLAVE_FENCE slow; read line < wake' &",
                &["began"],
            ),
            types("kill -STOP $!"),
            shows("conclave run report -- sh -c 'sh store $CONCLAVE_FENCE quick'", &["wrote quick"]),
            awaits("echo go > wake", &["rejected slow: old fence "]),
            shows(
                "kill -CONT $!; wait $! || echo \"exit code $?: the lock was lost\"",
                &["exit code 76: the lock was lost"],
            ),
        ],
        needs_lab: false,
    },
    Step {
        title: "The end of the server",
        explains: "TERM ends the node cleanly.",
        commands: &[types("kill $server; wait $server; unset CONCLAVE_SERVER")],
        needs_lab: false,
    },
    Step {
        title: "An algorithm in the laboratory",
        explains: "A run of Ricart and Agrawala's algorithm is drawn, and its cost compared with the formula.",
        commands: &[shows(
            "conclave sim mutex/ricart-agrawala --nodes 4 --entries 4 --load high --svg run.svg",
            &["messages per entry    6 ", "2(N-1) = 6", "ME1 ", "holds"],
        )],
        needs_lab: true,
    },
];

const fn types(line: &'static str) -> Command {
    Command { line, shows: &[], by: By::End }
}

const fn shows(line: &'static str, shows: &'static [&'static str]) -> Command {
    Command { line, shows, by: By::End }
}

const fn awaits(line: &'static str, shows: &'static [&'static str]) -> Command {
    Command { line, shows, by: By::AnyTime }
}

const fn repeats(line: &'static str, shows: &'static [&'static str]) -> Command {
    Command { line, shows, by: By::Repetition }
}

/// Returns the lines of a shell session: a comment for each step, and its commands behind a prompt.
pub fn list(with_lab: bool) -> String {
    let mut text = String::new();
    for step in STEPS.iter().filter(|step| with_lab || !step.needs_lab) {
        text += &format!("# {}. {}\n", step.title, step.explains);
        for command in step.commands {
            text += &format!("$ {}\n", command.line);
        }
    }
    text
}

/// Returns whether the texts appear in the lines, in order. Several may be in one line.
pub fn appear(texts: &[&str], lines: &[String]) -> bool {
    let mut texts = texts.iter().peekable();
    for line in lines {
        let mut rest = line.as_str();
        while let Some(at) = texts.peek().and_then(|text| Some(rest.find(**text)? + text.len())) {
            rest = &rest[at..];
            texts.next();
        }
    }
    texts.peek().is_none()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_appear_in_order_and_several_in_one_line() {
        let lines = ["held by a".to_owned(), "1. b, behind a".to_owned()];
        assert!(appear(&[], &[]));
        assert!(appear(&["held by ", "1. ", "behind "], &lines));
        assert!(!appear(&["behind ", "1. "], &lines));
        assert!(!appear(&["held by ", "held by "], &lines));
    }

    #[test]
    fn only_the_last_step_needs_the_laboratory() {
        let needs: Vec<bool> = STEPS.iter().map(|step| step.needs_lab).collect();
        assert_eq!(needs.iter().filter(|needs| **needs).count(), 1);
        assert_eq!(needs.last(), Some(&true));
        assert!(list(true).len() > list(false).len());
    }

    #[test]
    fn the_list_names_the_address_that_a_tour_replaces() {
        let lines = STEPS.iter().flat_map(|step| step.commands).map(|command| command.line);
        assert_eq!(lines.filter(|line| line.contains(ADDRESS)).count(), 2);
        assert!(list(true).contains(PICTURE));
    }
}
