//! The integration tests of the command line, in one binary, because each further binary takes another link.
//!
//! Most of their time is a wait for child processes. So more tests run at once than there are processors.

mod clock;
#[cfg(feature = "service")]
mod service;
#[cfg(feature = "service")]
mod tour;

#[cfg(feature = "lab")]
mod cli;
#[cfg(feature = "lab")]
mod deadlock;
#[cfg(feature = "lab")]
mod experiment;
#[cfg(feature = "lab")]
mod explore;
#[cfg(feature = "lab")]
mod help;
#[cfg(all(feature = "lab", feature = "service"))]
mod readme;
#[cfg(feature = "lab")]
mod sites;
#[cfg(feature = "lab")]
mod trace;

/// Sets the number of tests that run at once, on a machine with few processors. The harness has no setting for one
/// binary except this variable, which it reads before the first test. A value of the user stays.
#[cfg(target_os = "linux")]
#[allow(unsafe_code, reason = "the environment is changed before a second thread exists")]
mod threads {
    const TESTS_AT_ONCE: i64 = 6;

    #[used]
    #[unsafe(link_section = ".init_array")]
    static BEFORE_MAIN: extern "C" fn() = set;

    extern "C" fn set() {
        // SAFETY: this runs before `main`, so no other thread uses the environment. Both texts are constants.
        unsafe {
            if libc::sysconf(libc::_SC_NPROCESSORS_ONLN) < TESTS_AT_ONCE {
                libc::setenv(c"RUST_TEST_THREADS".as_ptr(), c"6".as_ptr(), 0);
            }
        }
    }
}
