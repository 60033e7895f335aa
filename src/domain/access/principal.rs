//! Users, their roles and their groups.

use std::collections::BTreeSet;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::UserId;

named_enum! {
    /// The role of a user.
    pub enum UserRole {
        /// Uses and manages their own resources.
        Member = "member",
        /// Has the rights of a member, and also manages the server.
        Admin = "admin",
    }
}

/// The user on whose behalf an operation is performed. Every row has one as its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub user_id: UserId,
    pub role: UserRole,
}

pub const MAX_GROUP_BYTES: usize = 64;
pub const MAX_GROUPS: usize = 32;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidGroups {
    #[error("{0:?} cannot be the name of a group: a name is 1 to {most} characters of a-z, 0-9, '_' and '-'", most = MAX_GROUP_BYTES)]
    Name(String),
    #[error("there are {0} groups; the maximum is {most}", most = MAX_GROUPS)]
    TooMany(usize),
}

/// Checks the names and the number of groups. Returns the first error.
pub fn check_groups(groups: &BTreeSet<String>) -> Result<(), InvalidGroups> {
    if let Some(name) = groups.iter().find(|name| !is_group_name(name)) {
        return Err(InvalidGroups::Name(name.clone()));
    }
    match groups.len() {
        0..=MAX_GROUPS => Ok(()),
        count => Err(InvalidGroups::TooMany(count)),
    }
}

fn is_group_name(name: &str) -> bool {
    let is_allowed = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'_' | b'-');
    (1..=MAX_GROUP_BYTES).contains(&name.len()) && name.bytes().all(is_allowed)
}

/// The requirement of [`short_name`], as a predicate.
pub const SHORT_NAME: &str = "must have 1 to 100 characters, and no control characters";

/// Returns the name of a user or a key without the spaces around it; `None` if it does not meet [`SHORT_NAME`].
pub fn short_name(text: &str) -> Option<&str> {
    let name = text.trim();
    let is_short = (1..=100).contains(&name.chars().count());
    Some(name).filter(|name| is_short && !name.chars().any(char::is_control))
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    pub id: UserId,
    pub name: String,
    pub role: UserRole,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_names_have_a_length_and_no_control_characters() {
        let longest = "ä".repeat(100);
        assert_eq!((short_name(" ada "), short_name(&longest)), (Some("ada"), Some(longest.as_str())));
        for wrong in ["", "  ", "a\tb", "a\0", &format!("{longest}x")] {
            assert_eq!(short_name(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn groups_are_words_and_few() {
        let groups = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<BTreeSet<_>>();
        let longest = "x".repeat(MAX_GROUP_BYTES);
        assert_eq!(check_groups(&groups(&[])), Ok(()));
        assert_eq!(check_groups(&groups(&["staff", "team_7", "a-b", &longest])), Ok(()));
        for wrong in ["", "Staff", "a b", "ä", "a/b", &format!("{longest}x")] {
            assert_eq!(check_groups(&groups(&["staff", wrong])), Err(InvalidGroups::Name(wrong.to_owned())));
        }
        let many = |count: usize| (0..count).map(|n| format!("g{n}")).collect::<BTreeSet<_>>();
        assert_eq!(check_groups(&many(MAX_GROUPS)), Ok(()));
        assert_eq!(check_groups(&many(MAX_GROUPS + 1)), Err(InvalidGroups::TooMany(MAX_GROUPS + 1)));
    }
}
