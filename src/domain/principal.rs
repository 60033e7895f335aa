//! Who asks.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::ids::UserId;

/// What a user may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum UserRole {
    /// Uses what is their own.
    Member,
    /// Also manages the server.
    Admin,
}

impl UserRole {
    /// The word in the database and on the command line.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Member => "member",
            Self::Admin => "admin",
        }
    }

    /// Reads the word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        [Self::Member, Self::Admin].into_iter().find(|role| role.as_str() == word)
    }
}

/// The user on whose behalf something is done. Every row belongs to one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    /// The owner of what the principal makes.
    pub user_id: UserId,
    /// The role.
    pub role: UserRole,
}

/// A user as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct User {
    /// The id.
    pub id: UserId,
    /// A unique name.
    pub name: String,
    /// The role.
    pub role: UserRole,
}
