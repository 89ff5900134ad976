//! All that is known of a capture: TCP connections, and what goes by RDMA.

use super::capture::Extent;
use super::conversation::Conversation;
use super::rdma::Rdma;
use super::streams::Connections;

/// All that is known of a capture.
pub(super) struct Decoded {
    pub(super) extent: Extent,
    pub(super) connections: Connections,
    pub(super) rdma: Rdma,
}

impl Decoded {
    /// Rules that are broken in what is shown.
    pub(super) fn broken_rules(&self, shown: &[Conversation<'_>]) -> usize {
        shown.iter().map(Conversation::broken_rules).sum::<usize>() + self.rdma.broken_rules()
    }
}
