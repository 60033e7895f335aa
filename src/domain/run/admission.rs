//! An agent's limits for accepting messages, in addition to the server's limits.

use serde::{Deserialize, Serialize};

/// Admission limits of an agent. 0 means no limit. The stricter one of these limits and the server's limits applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Admission {
    /// Characters of all texts of a message together.
    pub max_message_chars: u64,
    /// Limit of unfinished runs of one owner, of any agent. At the limit, a message to this agent is refused.
    pub max_active_runs: u32,
    /// Limit of conversations of one owner that are not archived, of any agent. At the limit, no message to this agent creates
    /// another.
    pub max_conversations: u32,
}

impl Admission {
    /// Returns the stricter of each limit.
    pub fn and(self, other: Self) -> Self {
        Self {
            max_message_chars: stricter(self.max_message_chars, other.max_message_chars),
            max_active_runs: stricter(self.max_active_runs, other.max_active_runs),
            max_conversations: stricter(self.max_conversations, other.max_conversations),
        }
    }
}

/// Returns the stricter of two limits. 0 means no limit.
pub fn stricter<T: Ord + Default>(one: T, other: T) -> T {
    let none = T::default();
    if one == none || other == none { one.max(other) } else { one.min(other) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_limits_the_stricter_one_counts_and_0_is_none() {
        let agents = Admission { max_message_chars: 10_000, max_active_runs: 3, max_conversations: 0 };
        let servers = Admission { max_message_chars: 100_000, max_active_runs: 0, max_conversations: 50 };
        let both = Admission { max_message_chars: 10_000, max_active_runs: 3, max_conversations: 50 };
        assert_eq!(agents.and(servers), both);
        assert_eq!(servers.and(agents), both);
        assert_eq!(Admission::default().and(Admission::default()), Admission::default());
    }
}
