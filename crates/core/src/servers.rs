//! Addresses of servers as users write them: with or without a port, also as an HTTP address.

use std::net::{Ipv6Addr, SocketAddr};

/// The default port of the service.
pub const DEFAULT_PORT: u16 = 7411;

/// The longest address, in bytes. A longer one is rejected.
pub const ADDRESS_BYTES_MAX: usize = 255;

/// The prefix of an address that a client reaches only by TCP, never by a Unix socket.
const TCP_ONLY: &str = "tcp:";

/// Reads a list of servers with commas between. Returns each as `HOST:PORT`, with the prefix `tcp:` if it was
/// given.
///
/// A server is `HOST`, `HOST:PORT` or `http://HOST[:PORT][/]`; an IPv6 address stands in brackets. The port
/// is [`DEFAULT_PORT`] if it is absent. Empty items of the list are skipped.
///
/// # Errors
/// A message for the user, if the list is empty or one of its items is not an address.
pub fn parse_servers(text: &str) -> Result<Vec<String>, String> {
    let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
    let servers = items.map(parse_server).collect::<Result<Vec<_>, _>>()?;
    if servers.is_empty() {
        return Err("expected HOST[:PORT], several with commas between".to_owned());
    }
    Ok(servers)
}

fn parse_server(item: &str) -> Result<String, String> {
    let (prefix, address) = match item.strip_prefix(TCP_ONLY) {
        Some(address) => (TCP_ONLY, address.strip_prefix("//").unwrap_or(address)),
        None => ("", item),
    };
    if address.starts_with("unix:") {
        return Err(wrong(
            item,
            "the client finds the Unix socket of a local server by its port; write HOST:PORT",
        ));
    }
    let address = without_scheme(address)?;
    let (host, port) = split_port(address).map_err(|problem| wrong(item, problem))?;
    check_host(host).map_err(|problem| wrong(item, problem))?;
    let server = format!("{host}:{port}");
    if server.len() > ADDRESS_BYTES_MAX {
        return Err(format!(
            "an address has {} bytes: at most {ADDRESS_BYTES_MAX} are allowed",
            server.len()
        ));
    }
    Ok(format!("{prefix}{server}"))
}

/// The message for an item that is not an address.
fn wrong(item: &str, problem: &str) -> String {
    format!("`{}` is not an address: {problem}", item.escape_debug())
}

/// Removes `http://` and a `/` at the end.
fn without_scheme(address: &str) -> Result<&str, String> {
    let Some((scheme, rest)) = address.split_once("://") else { return Ok(address) };
    if !scheme.eq_ignore_ascii_case("http") {
        let problem = match scheme.eq_ignore_ascii_case("https") {
            true => "the service has no encryption of its own; write HOST:PORT or http://HOST:PORT",
            false => "the scheme must be http; write HOST:PORT or http://HOST:PORT",
        };
        return Err(wrong(address, problem));
    }
    Ok(rest.strip_suffix('/').unwrap_or(rest))
}

fn split_port(address: &str) -> Result<(&str, u16), &'static str> {
    let host_bytes = match address.starts_with('[') {
        true => address.find(']').ok_or("the bracket is not closed; write [IPV6]:PORT")? + 1,
        false => address.find(':').unwrap_or(address.len()),
    };
    let (host, rest) = address.split_at(host_bytes);
    if !address.starts_with('[') && rest.matches(':').count() > 1 {
        return Err("write an IPv6 address in brackets: [IPV6]:PORT");
    }
    let port = match rest.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port != 0),
        None if rest.is_empty() => Some(DEFAULT_PORT),
        None => None,
    };
    Ok((host, port.ok_or("the port must be a number from 1 to 65535; write HOST:PORT")?))
}

fn check_host(host: &str) -> Result<(), &'static str> {
    let is_plain = |c: char| c.is_ascii_graphic() && !matches!(c, '/' | '@' | '?' | '#' | '[' | ']');
    match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        Some(ip) if ip.parse::<Ipv6Addr>().is_ok() => Ok(()),
        // An address with a scope, as in fe80::1%2.
        Some(_) if format!("{host}:1").parse::<SocketAddr>().is_ok() => Ok(()),
        Some(_) => Err("there is no IPv6 address in the brackets"),
        None if host.is_empty() => Err("the host is missing; write HOST:PORT"),
        None if host.bytes().all(|byte| byte.is_ascii_digit()) => {
            Err("a number alone is not a host; write HOST:PORT")
        }
        None if !host.chars().all(is_plain) => Err("a host has only letters, digits and - . _"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_read_in_every_form_that_users_write() {
        for (text, servers) in [
            ("db-1", &["db-1:7411"][..]),
            ("db-1:80", &["db-1:80"]),
            ("127.0.0.1", &["127.0.0.1:7411"]),
            (" a:1 , b ,", &["a:1", "b:7411"]),
            ("http://db-1", &["db-1:7411"]),
            ("http://db-1/", &["db-1:7411"]),
            ("HTTP://db-1:80/,http://b:81", &["db-1:80", "b:81"]),
            ("[::1]", &["[::1]:7411"]),
            ("[::1]:80", &["[::1]:80"]),
            ("[fe80::1%2]:80", &["[fe80::1%2]:80"]),
            ("http://[::1]:80/", &["[::1]:80"]),
            ("tcp:127.0.0.1", &["tcp:127.0.0.1:7411"]),
            ("tcp:a:1,b:2", &["tcp:a:1", "b:2"]),
            ("tcp://a:1", &["tcp:a:1"]),
            ("tcp:http://[::1]/", &["tcp:[::1]:7411"]),
        ] {
            assert_eq!(parse_servers(text), Ok(servers.iter().map(ToString::to_string).collect()), "{text}");
        }
    }

    #[test]
    fn a_text_that_is_not_an_address_is_rejected_with_the_reason() {
        let long = "a".repeat(ADDRESS_BYTES_MAX);
        for (text, reason) in [
            ("", "expected HOST"),
            (" , ", "expected HOST"),
            (":7411", "host is missing"),
            ("http://", "host is missing"),
            ("7411", "number alone"),
            ("a:", "from 1 to 65535"),
            ("a:0", "from 1 to 65535"),
            ("a:99999", "from 1 to 65535"),
            ("a:b", "from 1 to 65535"),
            ("a,b:x", "`b:x`"),
            ("::1", "in brackets"),
            ("[::1", "not closed"),
            ("[::1]80", "from 1 to 65535"),
            ("[db-1]:80", "no IPv6 address"),
            ("a b", "only letters"),
            ("ü:1", "only letters"),
            ("a\n:1", "a\\n:1"),
            ("http://a:1/v1", "from 1 to 65535"),
            ("http://a/v1", "only letters"),
            ("https://a:1", "no encryption"),
            (long.as_str(), "at most 255"),
        ] {
            let message = parse_servers(text).expect_err(text);
            assert!(message.contains(reason), "{text}: {message}");
        }
    }
}
