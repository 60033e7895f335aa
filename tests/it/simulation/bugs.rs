//! Bugs that are planted to see whether the simulation finds them.

/// A planted bug. All but one sit in what the simulation puts around the server, where such a bug has the same effect as in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Bug {
    /// The store takes writes under any fence.
    FenceIgnored,
    /// A fence that is raised stays what it was.
    FenceNotRaised,
    /// The store takes the result of a tool call from an attempt that has lost its run.
    OrphanKept,
    /// A lease is renewed however long ago it expired.
    LeaseRevived,
    /// A run that is over becomes cancelled.
    TerminalOverwritten,
    /// A run may complete without having heard a message that joined it.
    UnheardEnd,
    /// Events are shown before they are stored.
    ShownBeforeStored,
    /// A model's answer that was cut within the arguments of a call is taken for whole.
    CutCallRun,
    /// A run is loaded with what was taken out of its conversation.
    TakenOutRead,
    /// A reader that lagged goes on at the tail of the log. In the server itself: see `service::stream`.
    #[cfg(feature = "failpoints")]
    LagSkipped,
}
