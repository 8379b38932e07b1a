//! Tests of the help, the manual pages, the completions and the colours of the binary.

use std::io::Read;
use std::process::{Command, Stdio};

use crate::cli::{conclave, folder, line, listed, prints, read, refused, shown, text};

#[test]
fn help_lists_the_commands_in_groups() {
    let help = prints("--help", 0);
    let groups: Vec<_> = help.lines().filter(|line| line.ends_with(':') && !line.starts_with(' ')).collect();
    assert_eq!(groups, ["Locks:", "Files:", "Cluster:", "Laboratory:", "Tools:", "Options:", "Examples:"]);
    for same in ["-h", "help", "help --help"] {
        assert_eq!(prints(same, 0), help, "{same}");
    }
    let missing = conclave(&[]);
    assert_eq!((text(&missing.stderr), text(&missing.stdout)), (help, String::new()));
    let other = prints("help sim", 0);
    assert!(other.contains("PROBLEM/ALGORITHM") && !other.contains("Locks:"), "{other}");
}

#[test]
fn every_command_has_a_manual_page() {
    let folder = folder("man").join("man1");
    prints(&format!("man --out {}", shown(&folder)), 0);
    let mut unread = vec![String::new()];
    let mut seen = 0;
    while let Some(command) = unread.pop() {
        let file = folder.join(format!("conclave {command}").trim().replace(' ', "-") + ".1");
        let page = read(&file);
        assert_eq!(prints(&format!("man {command}"), 0), page, "{command}");
        let title = format!(".SH NAME\nconclave{}", format!(" {command}").trim_end().replace(' ', "\\-"));
        assert!(page.contains(&title) && page.contains("conclave "), "{title}: {page}");
        for (name, _) in listed(&prints(&format!("{command} --help"), 0)) {
            unread.push(format!("{command} {name}").trim().to_owned());
        }
        seen += 1;
    }
    let written = std::fs::read_dir(&folder).expect("it was made").count();
    assert_eq!(written, seen, "one page per command, and none for `help`");
    let run = read(&folder.join("conclave-run.1"));
    assert!(
        run.contains("\\-\\-on\\-lost") && run.contains(".SH EXAMPLES\n.PP\n.nf\n  conclave run"),
        "{run}"
    );
    assert!(
        run.contains(" [OPTIONS] <EXPR> \\-\\- <CMD>...") && run.contains("[aliases: \\-\\-timeout]"),
        "{run}"
    );
    assert!(
        run.contains(".SH NOTES\n") && run.matches("\n.PP\n").count() > 5,
        "each paragraph is one: {run}"
    );
    refused("man simm", &["did you mean sim?"]);
    refused("man run lock", &["conclave run has no command 'lock'"]);
}

/// Returns the words that bash offers for the last word of a command line.
fn offered(line: &str) -> Vec<String> {
    let words: Vec<_> = line.split(' ').collect();
    let (last, before) = (words[words.len() - 1], words[words.len() - 2]);
    let script = format!(
        "source <(\"$C\" completions bash); COMP_WORDS=({line}); COMP_CWORD={}; COMP_LINE='{line}'; COMP_POINT={}\n\
         _conclave conclave '{last}' '{before}'; printf '%s\\n' \"${{COMPREPLY[@]}}\"",
        words.len() - 1,
        line.len(),
    );
    let output = Command::new("bash")
        .args(["-c", &script])
        .env("C", env!("CARGO_BIN_EXE_conclave"))
        .output()
        .expect("bash runs");
    text(&output.stdout).lines().filter(|line| !line.is_empty()).map(str::to_owned).collect()
}

#[test]
fn the_shell_completes_names_of_the_catalogue_and_nested_commands() {
    assert_eq!(offered("conclave sim mutex/mae"), ["mutex/maekawa"]);
    assert_eq!(offered("conclave check election/b"), ["election/bully"]);
    assert_eq!(offered("conclave replay mutex/mae"), ["mutex/maekawa"]);
    assert_eq!(offered("conclave sim mutex/maekawa --quorum p"), ["plane"]);
    assert_eq!(offered("conclave man compl"), ["completions"]);
    assert_eq!(offered("conclave check mutex/maekawa --mutant maekawa-b"), ["maekawa-basic"]);
    let of_raymond = offered("conclave check mutex/raymond --mutant ");
    assert!(
        !of_raymond.is_empty() && of_raymond.iter().all(|name| name.starts_with("raymond-")),
        "{of_raymond:?}"
    );
    assert!(offered("conclave check --mutant ").len() > 40, "no algorithm is given yet");
    assert_eq!(offered("conclave compare time"), ["timesync"]);
    assert_eq!(offered("conclave compare mutex --only roucairol"), ["roucairol-carvalho"]);
    assert_eq!(offered("conclave list ele")[0], "election");
    assert_eq!(offered("conclave matrix snap"), ["snapshot"]);
    assert_eq!(offered("conclave help sessions e"), ["end"]);
    assert_eq!(offered("conclave cluster st"), ["status"]);
    let fish = prints("completions fish", 0);
    let algorithms =
        "complete -c conclave -n \"__fish_conclave_using_subcommand sim\" -f -a \"mutex/central ";
    assert!(
        fish.contains(algorithms) && !fish.contains("using_subcommand mutants\" -f -a \"central"),
        "{fish}"
    );
    assert!(prints("completions zsh", 0).contains("mutex/maekawa"));
    // Only the shell uses the names; the command itself still suggests the nearest one.
    refused("sim mutex/maekwa", &["did you mean maekawa?"]);
}

/// Returns the output of a command that runs on a terminal, with this variable.
fn on_a_terminal(command: &str, (variable, value): (&str, &str)) -> String {
    use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
    let screen = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a terminal");
    grantpt(&screen).expect("the terminal is ours");
    unlockpt(&screen).expect("the terminal is ours");
    let name = ptsname(&screen, Vec::new()).expect("it has a name");
    let mut options = std::fs::File::options();
    let terminal = std::os::unix::fs::OpenOptionsExt::custom_flags(
        &mut options,
        OpenptFlags::NOCTTY.bits().cast_signed(),
    )
    .read(true)
    .write(true)
    .open(name.to_str().expect("a plain name"))
    .expect("the terminal opens");
    let mut process = Command::new(env!("CARGO_BIN_EXE_conclave"));
    process.args(command.split_whitespace()).stdin(Stdio::null()).stdout(terminal).stderr(Stdio::null());
    process.env_remove("NO_COLOR").env_remove("TERM").env(variable, value);
    let mut child = process.spawn().expect("the binary runs");
    // Drop the last copy of the terminal in this process; only the command has it now.
    drop(process);
    let (mut screen, mut seen, mut bytes) = (std::fs::File::from(screen), Vec::new(), [0; 4096]);
    // An error means that the command has closed the terminal.
    while let Ok(count @ 1..) = screen.read(&mut bytes) {
        seen.extend_from_slice(&bytes[..count]);
    }
    child.wait().expect("it ends");
    String::from_utf8(seen).expect("output is UTF-8")
}

#[test]
fn verdicts_are_coloured_on_a_terminal_only() {
    let folder = folder("colours");
    let (log, waits) = (folder.join("cut.log"), folder.join("waits.txt"));
    std::fs::write(&log, "a {\"a\":1}\nA\n").expect("the file is ours");
    std::fs::write(&waits, "t1 -> t2\nt2 -> t1\n").expect("the file is ours");
    let (cut, waits) = (format!("trace {} --cut 1", shown(&log)), format!("deadlock {}", shown(&waits)));
    const GOOD: &str = "\x1b[32m";
    const BAD: &str = "\x1b[1;31m";
    for (command, colour, verdict) in [
        ("sim mutex/central --entries 5", GOOD, "holds"),
        ("check mutex/central", GOOD, "holds"),
        ("check mutex/lamport --order any", BAD, "violated"),
        ("matrix snapshot --nodes 2", GOOD, "conserved in"),
        ("mutants snapshot --only ly-", GOOD, "yes"),
        ("compare snapshot --nodes 3 --acts 10", GOOD, "holds"),
        ("compare election --nodes 3", GOOD, "holds"),
        (&cut, GOOD, "consistent"),
        (&waits, BAD, "deadlock"),
    ] {
        let seen = on_a_terminal(command, ("TERM", "xterm"));
        assert!(seen.contains(&format!("{colour}{verdict}")), "{command}: {seen:?}");
        for without in [("NO_COLOR", "1"), ("TERM", "dumb")] {
            assert!(!on_a_terminal(command, without).contains('\x1b'), "{command} with {without:?}");
        }
        assert!(!line(command).stdout.contains(&0x1b), "{command} into a pipe");
    }
}
