//! The data folder of the local node.
//!
//! **Rules.** The user and the machine alone determine the folder, so that all commands of a user find the
//! same node. The home folder comes from the password database, because `HOME`, `TMPDIR` and the `XDG`
//! variables differ between a shell, a cron job and `sudo`. The path contains the machine, because several
//! machines may share one home folder over a network.
//!
//! `CONCLAVE_LOCAL_DIR` replaces the folder, for tests and for containers without a home folder.

use std::ffi::{CStr, OsStr};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::unusable;
use crate::output::Failure;

/// The variable that replaces the data folder.
pub const VARIABLE: &str = "CONCLAVE_LOCAL_DIR";
/// The default folder, relative to the home folder.
const IN_HOME: &str = ".local/state/conclave-local";
/// The files with the number of the machine. The first file with a valid number is used.
const MACHINE_FILES: [&str; 2] = ["/etc/machine-id", "/var/lib/dbus/machine-id"];
/// The number of digits of the machine's number.
const MACHINE_DIGITS: usize = 32;
/// The largest entry of the password database in bytes. A larger one is an error.
const PASSWD_BYTES_MAX: usize = 1 << 20;

/// Returns the data folder.
pub fn folder() -> Result<PathBuf, Failure> {
    if let Some(folder) = std::env::var_os(VARIABLE).filter(|folder| !folder.is_empty()) {
        let folder = PathBuf::from(folder);
        return match folder.is_absolute() {
            true => Ok(folder),
            false => Err(Failure::usage(format!("{VARIABLE} is not an absolute path: {}", folder.display()))),
        };
    }
    let user = rustix::process::getuid().as_raw();
    let home = home(user).map_err(|error| unusable(format!("the password database: {error}")))?;
    match home.filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(IN_HOME).join(machine())),
        None => Err(unusable(format!(
            "the user {user} has no home folder in the password database; set {VARIABLE} to a folder for the \
             local node"
        ))),
    }
}

/// Returns the number of the machine, or the name of the host if the system has no number.
fn machine() -> String {
    let numbers = MACHINE_FILES.iter().filter_map(|file| std::fs::read_to_string(file).ok());
    numbers.map(|number| number.trim().to_owned()).find(|number| is_number(number)).unwrap_or_else(|| {
        let system = rustix::system::uname();
        by_host(&system.nodename().to_string_lossy())
    })
}

/// Returns whether the text is a machine number. The file may be empty in a container image, or contain a
/// word at the first boot.
fn is_number(text: &str) -> bool {
    text.len() == MACHINE_DIGITS && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn by_host(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || c == '-' || c == '_' { c } else { '_' };
    format!("host-{}", name.chars().map(plain).collect::<String>())
}

/// Returns the home folder of a user from the password database.
#[allow(unsafe_code, reason = "no safe crate of ours reads the password database")]
fn home(user: u32) -> io::Result<Option<PathBuf>> {
    let mut buffer: Vec<libc::c_char> = vec![0; 1024];
    loop {
        let mut found = std::ptr::null_mut();
        // SAFETY: all zeros are a valid `passwd`. The system writes to it, to the buffer of the given
        // length, and to `found`. The strings of the entry are in the buffer, which outlives them.
        let (error, home) = unsafe {
            let mut entry: libc::passwd = std::mem::zeroed();
            let error =
                libc::getpwuid_r(user, &raw mut entry, buffer.as_mut_ptr(), buffer.len(), &raw mut found);
            let is_found = error == 0 && !found.is_null() && !entry.pw_dir.is_null();
            let home = is_found.then(|| CStr::from_ptr(entry.pw_dir).to_bytes().to_owned());
            (error, home)
        };
        match error {
            0 => return Ok(home.map(|home| Path::new(OsStr::from_bytes(&home)).to_owned())),
            libc::EINTR => {}
            libc::ERANGE if buffer.len() < PASSWD_BYTES_MAX => buffer.resize(buffer.len() * 4, 0),
            // Some systems report a user without an entry as an error.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            error => return Err(io::Error::from_raw_os_error(error)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_home_folder_is_that_of_the_password_database() {
        let user = rustix::process::getuid().as_raw();
        let database = std::process::Command::new("getent").args(["passwd", &user.to_string()]).output();
        let line = String::from_utf8(database.expect("getent is there").stdout).expect("a line");
        let listed = line.trim().split(':').nth(5).map(PathBuf::from);
        assert_eq!(home(user).expect("readable"), listed);
        assert_eq!(home(u32::MAX - 7).expect("readable"), None, "no user has this number");
    }

    #[test]
    fn a_machine_without_a_number_goes_by_its_host_name() {
        assert!(is_number("0123456789abcdef0123456789abcdef"));
        for none in ["", "uninitialized", "../../../etc/passwd/0123456789abc"] {
            assert!(!is_number(none), "{none:?}");
        }
        assert_eq!(by_host("db-1.example/../x"), "host-db-1_example____x");
        assert!(!machine().contains('/'));
    }
}
