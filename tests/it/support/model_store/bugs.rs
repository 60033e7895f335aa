//! Planted bugs that the simulation must find.

/// A planted bug. All but one are in the simulation's parts around the server, with the same effect as in the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The store accepts writes under any fence.
    FenceIgnored,
    /// A raised fence keeps its old epoch.
    FenceNotRaised,
    /// The store accepts a tool result from an attempt that has lost its run.
    OrphanKept,
    /// A lease is renewed even long after it expired.
    LeaseRevived,
    /// An ended run becomes cancelled.
    TerminalOverwritten,
    /// A run may complete without a message that joined it.
    UnheardEnd,
    /// Events are published before they are stored.
    ShownBeforeStored,
    /// An answer that was truncated within a call's arguments counts as complete.
    CutCallRun,
    /// A loaded run contains superseded messages.
    TakenOutRead,
    /// A lagging reader continues at the tail of the log. This bug is in the server: see `service::stream`.
    LagSkipped,
}
