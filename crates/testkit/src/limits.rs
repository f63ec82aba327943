//! The limit on descriptors.

use rustix::process::{Resource, getrlimit, setrlimit};

/// Raises the soft RLIMIT_NOFILE to the hard limit and returns the hard limit.
pub fn raise_descriptor_limit() -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let raised = rustix::process::Rlimit { current: limit.maximum, maximum: limit.maximum };
    setrlimit(Resource::Nofile, raised).expect("raise the soft RLIMIT_NOFILE to the hard one");
    limit.maximum.unwrap_or(u64::MAX)
}

/// Checks that the hard limit allows `wanted` descriptors, and 100 more for the test process itself.
///
/// # Errors
/// The reason why a test must be skipped.
pub fn with_descriptors(wanted: u64) -> Result<(), String> {
    let limit = raise_descriptor_limit();
    if wanted + 100 <= limit {
        Ok(())
    } else {
        Err(format!("{wanted} descriptors needed, the hard RLIMIT_NOFILE is {limit} (ulimit -Hn)"))
    }
}
