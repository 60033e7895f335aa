//! Typed ids: a prefix and a UUID in its 32-digit form.

use crate::support::ids::IdSource;

/// A text that is not an id of the wanted kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a valid id: expected {prefix} and a UUID")]
pub struct InvalidId {
    /// The prefix that the id should have had, such as `run_`.
    pub prefix: &'static str,
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// What every id of this kind starts with.
            pub const PREFIX: &'static str = $prefix;

            /// A new id.
            #[must_use]
            pub fn generate(ids: &dyn IdSource) -> Self {
                Self(format!("{}{}", $prefix, ids.next()))
            }

            /// Reads an id. A UUID with hyphens or upper-case digits is accepted and brought into the one stored form.
            ///
            /// # Errors
            /// [`InvalidId`] if the prefix or the UUID is wrong.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                let invalid = InvalidId { prefix: $prefix };
                let uuid = text.strip_prefix($prefix).ok_or(invalid.clone())?;
                let uuid = uuid::Uuid::try_parse(uuid).map_err(|_| invalid)?;
                Ok(Self(format!("{}{}", $prefix, uuid.simple())))
            }

            /// An id read from our own database, which was checked when it was written.
            #[must_use]
            pub fn from_stored(text: String) -> Self {
                Self(text)
            }

            /// The id as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl std::str::FromStr for $name {
            type Err = InvalidId;

            fn from_str(text: &str) -> Result<Self, InvalidId> {
                Self::parse(text)
            }
        }

        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                Self::parse(&text).map_err(serde::de::Error::custom)
            }
        }

        impl utoipa::PartialSchema for $name {
            fn schema() -> utoipa::openapi::RefOr<utoipa::openapi::schema::Schema> {
                utoipa::openapi::ObjectBuilder::new()
                    .schema_type(utoipa::openapi::schema::Type::String)
                    .pattern(Some(concat!("^", $prefix, "[0-9a-fA-F-]{32,36}$")))
                    .into()
            }
        }

        impl utoipa::ToSchema for $name {}
    };
}

id!(/// A conversation. The only kind of id that a client may mint.
    ConversationId, "conv_");
id!(/// A run.
    RunId, "run_");
id!(/// A message.
    MessageId, "msg_");
id!(/// A part of a message.
    PartId, "part_");
id!(/// A tool call, minted by us: what a provider calls it is only echoed.
    CallId, "call_");
id!(/// A question to a human.
    InputId, "input_");
id!(/// An answer to an approval that holds for later calls.
    GrantId, "grant_");
id!(/// A definition of a tool that was seen.
    PinId, "pin_");
id!(/// A user: the owner of rows.
    UserId, "user_");
id!(/// An API key.
    KeyId, "key_");
id!(/// A provider that somebody keeps.
    ProviderId, "prov_");
id!(/// An MCP server that somebody keeps, or one of the configuration.
    McpServerId, "mcp_");
id!(/// An agent that somebody keeps, or one that comes with the program.
    AgentId, "agent_");
id!(/// A file that was uploaded.
    FileId, "file_");
id!(/// A server process, new at each start.
    NodeId, "node_");

#[cfg(test)]
mod tests {
    use super::*;
    use crate::support::ids::SequentialIds;

    #[test]
    fn ids_have_one_form() {
        let simple = RunId::parse("run_01980000000070008000000000000001").unwrap();
        assert_eq!(RunId::parse("run_01980000-0000-7000-8000-000000000001").unwrap(), simple);
        assert!(RunId::parse("conv_01980000000070008000000000000001").is_err());
        assert!(RunId::parse("run_1").is_err());
        assert!(RunId::parse("run_").is_err());
        assert_eq!(RunId::generate(&SequentialIds::default()).as_str(), "run_00000000000000000000000000000001");
    }
}
