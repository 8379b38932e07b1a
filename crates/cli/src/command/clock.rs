//! `conclave clock`: measures the error of this machine's clock with NTP packets. It never sets the clock.

mod client;
mod packet;
mod server;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::time::Duration;

use conclave_algorithms::timesync::Interval;
use conclave_kernel::time;
use serde::Serialize;

use super::duration;
use crate::output::{self, Done, Failure, Paint, Table, VIOLATED};
use client::{Asked, Manners, Measured};

/// Measure this machine's clock against NTP servers, or serve its time; the clock is never set
#[derive(clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// NTP servers, as HOST or HOST:PORT (123 if no port is given)
    #[arg(value_name = "SERVER", required_unless_present = "serve", conflicts_with = "serve",
          value_parser = server_name)]
    servers: Vec<String>,
    /// The number of requests to each server; the one with the shortest round trip counts
    #[arg(long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..=64))]
    samples: u32,
    /// The time from one request to the next
    #[arg(long, value_name = "D", default_value = "1s", value_parser = duration)]
    interval: Duration,
    /// The longest time to wait for a reply
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration)]
    timeout: Duration,
    /// Stop sending requests to a server when its offset is known within D. The command fails if --samples
    /// requests are not enough
    #[arg(long, value_name = "D", value_parser = duration)]
    wanted: Option<Duration>,
    /// The largest number of servers that may be wrong [default: less than half]
    #[arg(long, value_name = "N")]
    faulty: Option<usize>,
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
    /// Reply to NTP clients at this address with the time of the system clock, until a signal ends the
    /// command
    #[arg(long, value_name = "ADDR", help_heading = "Serving",
          conflicts_with_all = ["samples", "interval", "timeout", "wanted", "faulty", "json"])]
    serve: Option<SocketAddr>,
    /// The stratum in the replies [default: 10]
    #[arg(long, value_name = "N", help_heading = "Serving",
          value_parser = clap::value_parser!(u8).range(1..=15))]
    stratum: Option<u8>,
    /// The largest error of the system clock, as you promise it to clients [default: the value of the kernel.
    /// If the kernel has none, the replies say that the clock is not synchronised]
    #[arg(long, value_name = "D", help_heading = "Serving", value_parser = duration)]
    dispersion: Option<Duration>,
}

const EXAMPLES: &str = "\
Examples:
  conclave clock ntp.example.org
  conclave clock a.example.org b.example.org c.example.org --json
  conclave clock ntp.example.org --wanted 5ms --samples 20 --interval 200ms
  conclave clock --serve 0.0.0.0:11123
  conclave clock --serve 127.0.0.1:11123 --stratum 3 --dispersion 5ms

offset: the server's clock minus this machine's clock. bound: the largest error of the offset, if the server \
keeps its promises (the root distance of NTP: half the delays, and all dispersions). The intersection contains \
the true offset if at most --faulty of the servers that replied are wrong.
Exit codes: 0 every server replied (within --wanted, if given) and enough servers agree, 1 a server did not, or \
the servers disagree, 2 bad usage.";

/// Rejects a text that cannot be a server, so that no name is looked up for it.
fn server_name(text: &str) -> Result<String, String> {
    const EXPECTED: &str = "expected HOST, HOST:PORT or [ADDRESS]:PORT";
    let (host, port) = match text.rsplit_once(':') {
        // An IPv6 address contains colons, so its port follows a bracket.
        Some((host, port)) if !host.contains(':') || host.ends_with(']') => (host, Some(port)),
        _ => (text, None),
    };
    let is_port = |port: &str| port.parse::<u16>().is_ok_and(|port| port > 0);
    let fits = !host.is_empty() && !host.contains(char::is_whitespace) && port.is_none_or(is_port);
    if fits { Ok(text.to_owned()) } else { Err(EXPECTED.into()) }
}

/// Measures or serves.
pub fn run(args: &Args) -> Done {
    match args.serve {
        Some(address) => serve(args, address),
        // clap cannot check this: an argument that conflicts with a positional argument makes that optional.
        None if args.stratum.is_some() || args.dispersion.is_some() => Err(Failure::usage(
            "--stratum and --dispersion describe the clock that --serve serves: add --serve, or leave them out",
        )),
        None => measure(args),
    }
}

fn serve(args: &Args, address: SocketAddr) -> Done {
    let quality = || server::quality(args.stratum, args.dispersion);
    let ready = |address: SocketAddr| {
        let said = match quality() {
            Some(quality) => {
                format!("stratum {}, error at most {}", quality.stratum, time::show(quality.dispersion))
            }
            None => "not synchronised, and the replies say so (use --dispersion to promise a bound)".into(),
        };
        output::print(&format!("serving the system clock at {address}: {said}\n"));
    };
    let served = server::serve(address, quality, ready);
    served.map(|()| ExitCode::SUCCESS).map_err(|error| Failure::usage(format!("{address}: {error}")))
}

/// The result over all servers.
#[derive(Serialize)]
struct Verdict {
    servers: Vec<Asked>,
    /// The assumed largest number of wrong servers.
    faulty: usize,
    /// The middle of the interval that the servers agree on.
    offset_ns: Option<i64>,
    /// Half the width of that interval.
    bound_ns: Option<u64>,
    #[serde(skip)]
    agreed: Option<Interval>,
}

impl Verdict {
    fn passed(&self) -> bool {
        self.agreed.is_some() && self.servers.iter().all(|asked| asked.is_good_enough)
    }
}

fn measure(args: &Args) -> Done {
    if args.timeout.is_zero() {
        return Err(Failure::usage("--timeout is 0: give a longer time"));
    }
    if let Some(faulty) = args.faulty.filter(|faulty| *faulty >= args.servers.len()) {
        let (servers, most) = (args.servers.len(), args.servers.len() - 1);
        return Err(Failure::usage(format!(
            "--faulty {faulty} is too large: of {servers} servers, at most {most} may be wrong"
        )));
    }
    let Args { samples, interval, timeout, wanted, .. } = *args;
    let manners = Manners { samples, interval, timeout, wanted };
    let servers = client::ask_all(&args.servers, manners);
    let answered = servers.iter().filter(|asked| asked.measured.is_some()).count();
    let faulty = args.faulty.unwrap_or(answered.saturating_sub(1) / 2);
    let agreed = client::agreement(&servers, faulty);
    let (offset_ns, bound_ns) = (agreed.map(Interval::guess), agreed.map(Interval::bound));
    let verdict = Verdict { servers, faulty, offset_ns, bound_ns, agreed };
    if args.json {
        output::print_json(&verdict)?;
    } else {
        output::print(&describe(&verdict, Paint::stdout()));
    }
    Ok(if verdict.passed() { ExitCode::SUCCESS } else { ExitCode::from(VIOLATED) })
}

fn describe(verdict: &Verdict, paint: Paint) -> String {
    let mut table =
        Table::new(&["server", "stratum", "reference", "offset", "bound", "delay", "jitter", "answers", ""]);
    for asked in &verdict.servers {
        let mut cells = vec![asked.server.clone()];
        match &asked.measured {
            Some(measured) => cells.extend(row(measured)),
            None => cells.extend(std::iter::repeat_n("-".into(), 6)),
        }
        cells.push(format!("{}/{}", asked.received, asked.sent));
        cells.push(remark(asked, verdict.agreed));
        table.row(cells);
    }
    let mut text = table.render(paint);
    let answered = verdict.servers.iter().filter(|asked| asked.measured.is_some()).count();
    _ = match verdict.agreed {
        Some(agreed) => writeln!(
            text,
            "\nintersection of {answered}, at most {} of them wrong: {} +- {}; this clock is {}",
            verdict.faulty,
            signed(agreed.guess()),
            time::show(Duration::from_nanos(agreed.bound())),
            place(agreed)
        ),
        None if answered == 0 => writeln!(text, "\n{}", paint.bad("no server answered")),
        None => writeln!(
            text,
            "\n{}",
            paint.bad(&format!(
                "the servers disagree: more than {} of {answered} are wrong; add servers, or raise --faulty",
                verdict.faulty
            ))
        ),
    };
    text
}

fn row(measured: &Measured) -> Vec<String> {
    let span = |ns: u64| time::show(Duration::from_nanos(ns));
    vec![
        measured.stratum.to_string(),
        measured.reference.clone(),
        signed(measured.offset_ns),
        span(measured.bound_ns),
        span(measured.delay_ns),
        span(measured.jitter_ns),
    ]
}

fn remark(asked: &Asked, agreed: Option<Interval>) -> String {
    let apart = asked
        .measured
        .as_ref()
        .zip(agreed)
        .is_some_and(|(measured, agreed)| measured.interval().intersect(agreed).is_none());
    match &asked.error {
        Some(error) => error.clone(),
        None if apart => "wrong: it does not agree with the others".into(),
        None => String::new(),
    }
}

/// Describes this clock according to the servers.
fn place(offset: Interval) -> &'static str {
    match offset {
        _ if offset.contains(0) => "right within the bound",
        _ if offset.lo > 0 => "behind",
        _ => "ahead",
    }
}

fn signed(ns: i64) -> String {
    let sign = if ns < 0 { "-" } else { "+" };
    format!("{sign}{}", time::show(Duration::from_nanos(ns.unsigned_abs())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(offset_ns: i64, bound_ns: u64) -> Asked {
        let measured = Measured {
            offset_ns,
            delay_ns: 10,
            dispersion_ns: 1,
            jitter_ns: 1,
            bound_ns,
            stratum: 2,
            reference: "GPS".into(),
            root_delay_ns: 0,
            root_dispersion_ns: 0,
            leap: 0,
        };
        Asked {
            server: "x".into(),
            address: None,
            sent: 4,
            received: 4,
            measured: Some(measured),
            is_good_enough: true,
            error: None,
        }
    }

    #[test]
    fn a_server_apart_from_the_others_is_named() {
        let servers = vec![asked(100, 20), asked(110, 20), asked(900, 20)];
        let agreed = client::agreement(&servers, 1);
        assert_eq!(agreed, Interval::new(90, 120));
        assert_eq!(client::agreement(&servers, 0), None);
        assert_eq!(remark(&servers[0], agreed), "");
        assert_eq!(remark(&servers[2], agreed), "wrong: it does not agree with the others");
    }

    #[test]
    fn what_can_be_no_server_is_refused() {
        for good in ["a", "a.example.org:123", "127.0.0.1:9", "::1", "fe80::1:9", "[::1]", "[::1]:9"] {
            assert_eq!(server_name(good), Ok(good.to_owned()));
        }
        for bad in ["", " ", "a b", ":123", "a:", "a:0", "a:99999", "a:ntp", "[::1]:x"] {
            assert!(server_name(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_clock_is_behind_if_the_servers_are_ahead() {
        assert_eq!(place(Interval { lo: 5, hi: 9 }), "behind");
        assert_eq!(place(Interval { lo: -9, hi: -5 }), "ahead");
        assert_eq!(place(Interval { lo: -9, hi: 5 }), "right within the bound");
        assert_eq!((signed(-1_500_000), signed(0)), ("-1.5ms".into(), "+0".into()));
    }
}
