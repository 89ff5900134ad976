//! The limit of open descriptors, for commands that keep the states of many programs open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the limit of this process to what it may have at most. Where that cannot be, fewer states
/// are kept.
pub(super) fn allow_as_many_as_may_be() {
    let limit = getrlimit(Resource::Nofile);
    let raised = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit });
    if let Err(error) = raised {
        log::debug!("the limit of descriptors stays at {:?}: {error}", limit.current);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_it_may_be() {
        allow_as_many_as_may_be();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
    }
}
