//! User servers: the values.

use crate::domain::ids::McpServerId;
use crate::store::NameCursor;

pub type McpServerCursor = NameCursor<McpServerId>;
