//! Approvals: whether a tool call needs one, the content of the question, and the allowed answers.

use std::collections::BTreeMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::enum_names::named_enum;
use crate::domain::ids::{CallId, ConversationId, GrantId, InputId, RunId};
use crate::domain::run::{InputRecord, InputState, Question};

/// Whether a human is asked before a tool is called. Stricter modes compare as greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalMode {
    /// A call needs no approval.
    #[default]
    Auto,
    /// A call needs approval, unless a grant covers it.
    Ask,
    /// Each call needs approval.
    AlwaysAsk,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnDeny {
    /// The model reads that the call was denied, and continues.
    #[default]
    FeedBack,
    EndTurn,
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ApprovalPolicy {
    /// The mode of each tool, by the tool's name. Has priority over the setting in its server's entry.
    pub tools: BTreeMap<String, ApprovalMode>,
    /// Whether calls of all tools of untrusted servers need approval.
    pub ask_untrusted: bool,
    /// Whether the model is told to give a reason before a call that needs approval.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub rationale: bool,
    pub on_deny: OnDeny,
    /// Milliseconds until an undecided call is denied; 0 for never.
    pub expires_ms: u64,
}

impl Default for ApprovalPolicy {
    fn default() -> Self {
        Self {
            tools: BTreeMap::new(),
            ask_untrusted: false,
            rationale: false,
            on_deny: OnDeny::default(),
            expires_ms: 7 * 24 * 3_600_000,
        }
    }
}

/// Facts about a tool that decide whether a human is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct ToolSafety {
    /// The operator's setting.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub approval: Option<ApprovalMode>,
    /// Whether the MCP server marks the tool as destructive. Its calls need approval, and a grant covers none of them.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub destructive: bool,
    /// Whether the tool comes from a server that the operator does not trust.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub untrusted: bool,
    /// Whether the server belongs to a member, who chose its name. An agent's rule for that name can then only add approvals.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub of_member: bool,
    /// Whether calls are exclusive and run in the model's order. This holds if the operator forbids repeated calls, or if the
    /// server marks the tool as destructive.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub alone: bool,
    /// Whether the server says that the tool only reads, and the operator does not classify it. A false statement can only repeat
    /// calls that the model requests again.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub says_it_reads: bool,
}

impl ApprovalPolicy {
    /// Returns the approval mode of the tool `name`.
    ///
    /// A rule applies to a name. A rule that requires an approval applies to every tool of that name. A rule that relaxes the
    /// default was written for the operator's server of that name, so it does not apply to a member's server of the same name.
    ///
    /// A destructive tool that asks always asks, because no grant covers its calls.
    pub fn mode(&self, name: &str, safety: ToolSafety) -> ApprovalMode {
        let by_nature =
            if safety.destructive || (self.ask_untrusted && safety.untrusted) { ApprovalMode::Ask } else { ApprovalMode::Auto };
        let without_rule = safety.approval.unwrap_or(by_nature);
        let mode = match self.ruled(name) {
            Some(rule) if safety.of_member => rule.max(without_rule),
            Some(rule) => rule,
            None => without_rule,
        };
        if mode == ApprovalMode::Ask && safety.destructive { ApprovalMode::AlwaysAsk } else { mode }
    }

    /// Returns the rule for a name. If two tool names of a server are cleaned to the same name, both get a hash. A rule that
    /// requires an approval then applies to both. Other rules apply to the exact name only.
    fn ruled(&self, name: &str) -> Option<ApprovalMode> {
        let exact = || self.tools.get(name).copied();
        let kin =
            |(rule, mode): (&String, &ApprovalMode)| (*mode > ApprovalMode::Auto && is_hashed_form(name, rule)).then_some(*mode);
        exact().or_else(|| self.tools.iter().filter_map(kin).max())
    }
}

/// Returns whether `name` is `plain` with a hash after one or both of its halves.
fn is_hashed_form(name: &str, plain: &str) -> bool {
    let is_form = |half: &str, plain: &str| half == plain || without_hash(half) == Some(plain);
    match (name.split_once("__"), plain.split_once("__")) {
        (Some((server, tool)), Some((plain_server, plain_tool))) => is_form(server, plain_server) && is_form(tool, plain_tool),
        _ => false,
    }
}

/// Removes the hash at the end of a name.
fn without_hash(name: &str) -> Option<&str> {
    let (stem, hash) = name.rsplit_once('_')?;
    (hash.len() >= 8 && hash.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))).then_some(stem)
}

named_enum! {
    /// The scope of an answer to an approval.
    #[derive(Default)]
    pub enum ApprovalScope {
        /// The answer applies to this call only.
        #[default]
        Once = "once",
        /// The answer applies to the tool's current definition, in this conversation.
        Conversation = "conversation",
        /// The answer applies to the tool's current definition, in all conversations of its owner.
        Always = "always",
    }
}

#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ApprovalTerms {
    pub server: Option<String>,
    pub tool: String,
    /// The server's description of the tool.
    pub description: String,
    pub arguments_hash: String,
    pub definition_hash: String,
    /// SHA-256 of the definition, and of the server's address if that can change. A grant applies to this hash only.
    pub consent_hash: Option<String>,
    pub destructive: bool,
    pub rationale: Option<String>,
    /// The call in one line.
    #[serde(default)]
    pub preview: String,
    #[serde(default)]
    pub undoable: bool,
    /// The call that this call undoes. Edited arguments would undo another call.
    pub undoes: Option<CallId>,
    pub scopes: Vec<ApprovalScope>,
    /// JSON Schema of the arguments, to check edited arguments.
    pub parameters: Arc<Value>,
    /// The argument that carries the idempotency key. It must not be edited.
    pub key_argument: Option<String>,
}

/// A grant: a stored answer to an approval that also allows later calls.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ToolGrant {
    /// The id of the grant.
    pub id: GrantId,
    /// The conversation in which the grant applies. Absent if it applies to all conversations of its owner.
    pub conversation_id: Option<ConversationId>,
    /// The MCP server of the tool. Absent for built-in tools.
    pub server: Option<String>,
    /// The tool's name at the server.
    pub tool: String,
    /// SHA-256 of the tool's definition and of the server's address. A changed tool needs a new grant.
    pub definition_hash: String,
    /// When the grant was given, RFC 3339.
    pub created_at: String,
}

impl ToolGrant {
    pub fn covers(&self, server: Option<&str>, tool: &str, definition_hash: &str) -> bool {
        self.server.as_deref() == server && self.tool == tool && self.definition_hash == definition_hash
    }
}

/// The state of an approval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ApprovalState {
    /// The approval is not decided yet.
    Pending,
    /// The call was allowed.
    Allowed,
    /// The call was denied.
    Denied,
    /// The approval expired without a decision, so the call is denied.
    Expired,
    /// The run ended before a decision.
    Cancelled,
}

pub const ALLOW: &str = "allow";
pub const DENY: &str = "deny";

impl ApprovalState {
    pub fn of(state: InputState, choice: Option<&str>) -> Self {
        match state {
            InputState::Pending => Self::Pending,
            InputState::Answered | InputState::Applied if choice == Some(DENY) => Self::Denied,
            InputState::Answered | InputState::Applied => Self::Allowed,
            InputState::Expired => Self::Expired,
            InputState::Cancelled => Self::Cancelled,
        }
    }
}

named_enum! {
    /// A human's decision about a call.
    pub enum Decision {
        /// The call is executed.
        Allow = "allow",
        /// The call is not executed.
        Deny = "deny",
    }
}

/// The answer to an approval.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ApprovalAnswer {
    /// Whether the call is executed.
    pub decision: Decision,
    /// The scope of the answer: one of the approval's `scopes`. Default: `once`.
    pub scope: Option<ApprovalScope>,
    /// Arguments that replace the requested arguments of the call. They must conform to the tool's schema.
    #[schema(value_type = Option<Object>)]
    pub arguments: Option<Value>,
    /// The reason for the decision. The model reads it if the call is denied.
    pub reason: Option<String>,
    /// The `arguments_hash` of the displayed call. The server refuses the answer if the call has other arguments.
    pub arguments_hash: Option<String>,
}

/// A question to a human about one tool call.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Approval {
    /// The id of the approval, which the answer names.
    pub id: InputId,
    /// The conversation of the run.
    pub conversation_id: ConversationId,
    /// The run that waits for the decision.
    pub run_id: RunId,
    /// The id of the tool call.
    pub call_id: Option<CallId>,
    /// The content of the approval.
    #[serde(flatten)]
    pub request: ApprovalRequest,
    /// The state of the approval.
    pub status: ApprovalState,
    /// The scope of the answer.
    pub scope: Option<ApprovalScope>,
    /// Arguments that replace `arguments` in the call.
    #[schema(value_type = Option<Object>)]
    pub edited_arguments: Option<Value>,
    /// The reason that the user gave for the decision.
    pub reason: Option<String>,
    /// The user who decided.
    pub resolved_by: Option<String>,
    /// When the approval was requested, RFC 3339.
    pub created_at: String,
    /// When the approval was decided or expired, or when its run ended, RFC 3339.
    pub resolved_at: Option<String>,
    /// When the approval expires, RFC 3339.
    pub expires_at: Option<String>,
}

/// The content of an approval.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ApprovalRequest {
    /// The tool's name, as the model used it.
    pub name: String,
    /// The MCP server of the tool. Absent for built-in tools.
    pub server: Option<String>,
    /// The tool's name at the server.
    pub tool: String,
    /// The server's description of the tool.
    pub description: String,
    /// The arguments of the call, unless the answer replaces them.
    #[schema(value_type = Object)]
    pub arguments: Value,
    /// SHA-256 of the arguments. An answer that names it applies to these arguments only.
    pub arguments_hash: String,
    /// The model's text in the answer that contains the call, with its reason if it gave one. At most 1,000 characters.
    pub rationale: Option<String>,
    /// The call in one line: the preview from the server's entry, or else the first 100 characters of the arguments.
    #[serde(default)]
    pub preview: String,
    /// Whether the server marks the tool as destructive.
    pub destructive: bool,
    /// Whether `undo_tool_call` could undo the call.
    #[serde(default)]
    pub undoable: bool,
    /// The scopes that an answer may have.
    pub scopes: Vec<ApprovalScope>,
}

impl ApprovalRequest {
    /// Returns `None` for a question that is not an approval.
    pub fn of(question: &Question) -> Option<Self> {
        let terms = question.approval.as_ref()?;
        Some(Self {
            name: question.tool.clone().unwrap_or_default(),
            server: terms.server.clone(),
            tool: terms.tool.clone(),
            description: terms.description.clone(),
            arguments: question.arguments.clone().unwrap_or_default(),
            arguments_hash: terms.arguments_hash.clone(),
            rationale: terms.rationale.clone(),
            preview: terms.preview.clone(),
            destructive: terms.destructive,
            undoable: terms.undoable,
            scopes: terms.scopes.clone(),
        })
    }
}

impl Approval {
    /// Returns `None` for a question that is not an approval.
    pub fn of(record: InputRecord) -> Option<Self> {
        let InputRecord { request, resolved_by, created_at, resolved_at, expires_at } = record;
        let answer = request.answer;
        Some(Self {
            request: ApprovalRequest::of(&request.question)?,
            status: ApprovalState::of(request.state, answer.as_ref().map(|answer| answer.choice.as_str())),
            scope: answer.as_ref().and_then(|answer| answer.scope),
            edited_arguments: answer.as_ref().and_then(|answer| answer.arguments.clone()),
            reason: answer.and_then(|answer| answer.text),
            id: request.id,
            conversation_id: request.conversation_id,
            run_id: request.run_id,
            call_id: request.call_id,
            resolved_by,
            created_at,
            resolved_at,
            expires_at,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_agent_is_asked_first_then_the_operator_then_the_tool() {
        let safety = ToolSafety { destructive: true, untrusted: true, ..ToolSafety::default() };
        let mut policy = ApprovalPolicy::default();
        assert_eq!(policy.mode("t", safety), ApprovalMode::AlwaysAsk);
        assert_eq!(policy.mode("t", ToolSafety { destructive: false, ..safety }), ApprovalMode::Auto);
        policy.ask_untrusted = true;
        assert_eq!(policy.mode("t", ToolSafety { destructive: false, ..safety }), ApprovalMode::Ask);
        let said = ToolSafety { approval: Some(ApprovalMode::Auto), ..safety };
        assert_eq!(policy.mode("t", said), ApprovalMode::Auto);
        policy.tools.insert("t".to_owned(), ApprovalMode::AlwaysAsk);
        assert_eq!(policy.mode("t", said), ApprovalMode::AlwaysAsk);
    }

    #[test]
    fn a_rule_eases_nothing_of_a_members_server() {
        let rules =
            [("files__delete", ApprovalMode::Auto), ("files__write", ApprovalMode::Ask), ("files__read", ApprovalMode::AlwaysAsk)];
        let policy =
            ApprovalPolicy { tools: rules.map(|(name, mode)| (name.to_owned(), mode)).into(), ..ApprovalPolicy::default() };
        let destructive = ToolSafety { destructive: true, ..ToolSafety::default() };
        let of_member = |safety: ToolSafety| ToolSafety { of_member: true, ..safety };
        assert_eq!(policy.mode("files__delete", destructive), ApprovalMode::Auto);
        assert_eq!(policy.mode("files__delete", of_member(destructive)), ApprovalMode::AlwaysAsk);
        assert_eq!(
            policy.mode("files__delete", of_member(ToolSafety::default())),
            ApprovalMode::Auto,
            "the tool needs no approval without a rule"
        );
        let strict = ToolSafety { approval: Some(ApprovalMode::AlwaysAsk), ..ToolSafety::default() };
        assert_eq!(policy.mode("files__write", of_member(strict)), ApprovalMode::AlwaysAsk);
        assert_eq!(
            policy.mode("files__read", of_member(ToolSafety::default())),
            ApprovalMode::AlwaysAsk,
            "a stricter rule applies"
        );
    }

    /// A server that offers `send` and then `send.` too has `mail__send_<hash>` twice.
    #[test]
    fn a_rule_that_asks_counts_for_names_with_a_hash_too() {
        let rules = [("mail__send", ApprovalMode::AlwaysAsk), ("mail__read", ApprovalMode::Auto)];
        let tools = rules.map(|(name, mode)| (name.to_owned(), mode)).into();
        let policy = ApprovalPolicy { tools, ask_untrusted: true, ..ApprovalPolicy::default() };
        let untrusted = ToolSafety { untrusted: true, ..ToolSafety::default() };
        for name in ["mail__send", "mail__send_0a1b2c3d", "mail_0a1b2c3d__send", "mail_0a1b2c3d__send_0a1b2c3d0a1b2c3d"] {
            assert_eq!(policy.mode(name, untrusted), ApprovalMode::AlwaysAsk, "{name}");
        }
        assert_eq!(policy.mode("mail__read", untrusted), ApprovalMode::Auto);
        assert_eq!(policy.mode("mail__read_0a1b2c3d", untrusted), ApprovalMode::Ask, "another tool may have this name");
        assert_eq!(policy.mode("mail__send_it", ToolSafety::default()), ApprovalMode::Auto);
    }
}
