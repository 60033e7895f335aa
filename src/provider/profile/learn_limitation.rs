//! The limitations that a refused request shows.

use serde_json::Value;

use super::limitation::Limitation;
use super::model_profile::{BodyForm, ModelProfile};
use super::{fields, tools, unsupported_parts};
use crate::domain::model::{Adaptation, ModelError, ModelErrorKind, ModelRequest};
use crate::domain::tool::ToolDefinition;
use crate::provider::errors::facts::is_served_over_responses;
use crate::provider::errors::refusals::{self, Ability, FieldRules};

/// The most repetitions of one request without refused parts. The last one leaves out all parts of the refused kind.
const MAX_PART_CHANGES: usize = 4;

/// The most repetitions of one request. A provider may refuse many tools, one at a time.
const MAX_CHANGES: usize = 100;

/// So many tools with refused schemas show that all schemas need the simplest form.
const REFUSED_SCHEMAS: usize = 3;

/// The limitations that one refusal showed.
pub(in crate::provider) struct LearnedChange {
    pub(in crate::provider) limitations: Vec<Limitation>,
    pub(in crate::provider) adaptation: Adaptation,
}

pub(in crate::provider) struct Attempt<'a> {
    pub(in crate::provider) dialect: &'static str,
    pub(in crate::provider) request: &'a ModelRequest,
    pub(in crate::provider) sent: &'a ModelRequest,
    pub(in crate::provider) body: Option<Value>,
    pub(in crate::provider) form: BodyForm,
    pub(in crate::provider) profile: &'a ModelProfile,
    /// The changes of this request so far.
    pub(in crate::provider) changes: &'a [LearnedChange],
}

/// Returns the change with which the request is to be repeated, if the error shows a limitation that the profile lacks.
pub(in crate::provider) fn limitation_from_refusal(attempt: &Attempt<'_>, error: &ModelError) -> Option<LearnedChange> {
    if attempt.changes.len() >= MAX_CHANGES || is_served_over_responses(error) {
        return None;
    }
    let limitations = attempt.refused_parts(error).or_else(|| {
        let may_be_ability = matches!(error.kind, ModelErrorKind::InvalidRequest | ModelErrorKind::Unavailable);
        let found = attempt.lacking(error).or_else(|| attempt.refused_field(error));
        found.or_else(|| attempt.refused_tool(error)).filter(|_| may_be_ability).map(|found| vec![found])
    })?;
    let change = limitations.first()?.adaptation_name();
    Some(LearnedChange { limitations, adaptation: Adaptation { change, reason: error.message.clone() } })
}

impl Attempt<'_> {
    fn refused_parts(&self, error: &ModelError) -> Option<Vec<Limitation>> {
        let is_of_part = |change: &&LearnedChange| {
            matches!(
                change.limitations.first(),
                Some(Limitation::NoParts(_) | Limitation::UnreadablePart(_) | Limitation::MaxImages(_))
            )
        };
        let before = self.changes.iter().filter(is_of_part).count();
        if before >= MAX_PART_CHANGES {
            return None;
        }
        // The last repetition leaves out all parts of the kind, even if the error names one of them.
        let body = self.body.as_ref().filter(|_| before + 1 < MAX_PART_CHANGES);
        let found =
            refusals::parts(error).into_iter().map(|refusal| unsupported_parts::limitations(self.sent, refusal, error, body));
        let is_new = |found: &Vec<Limitation>| found.iter().any(|limitation| !self.profile.has(limitation));
        found.filter(|found| !found.is_empty()).find(is_new)
    }

    fn lacking(&self, error: &ModelError) -> Option<Limitation> {
        refusals::abilities(error).into_iter().find_map(|ability| self.limitation_of(ability, error))
    }

    /// Returns the limitation of a missing ability, if it changes the request.
    fn limitation_of(&self, ability: Ability, error: &ModelError) -> Option<Limitation> {
        let limitation = match ability {
            // No form of the request helps.
            Ability::Chat => None,
            Ability::Tools => (!self.sent.tools.is_empty()).then_some(Limitation::NoTools),
            // Numbers in an error about one tool are other limits.
            Ability::ManyTools if error.refused_tool.is_some() => None,
            Ability::ManyTools => {
                let count = self.sent.tools.len();
                (count > 1).then(|| {
                    Limitation::MaxTools(unsupported_parts::largest_number_below(&error.message, count).unwrap_or(count / 2))
                })
            }
            Ability::SystemRole => (!self.sent.system.is_empty()).then_some(Limitation::NoSystemRole),
            Ability::Streaming => self.form.streaming.then_some(Limitation::NoStreaming),
            Ability::OutputSchema => self.sent.options.output_schema.as_ref().map(|_| Limitation::NoOutputSchema),
            Ability::LongOutput => {
                let limit = output_limit(self.body.as_ref()?)?;
                let most = unsupported_parts::largest_number_below(&error.message, usize::try_from(limit).ok()?)?;
                u32::try_from(most).ok().map(Limitation::MaxOutput)
            }
            Ability::LookAround => tools::has_keyword(self.sent, &tools::is_look_around).then_some(Limitation::NoLookAround),
            Ability::SchemaKeyword => self.refused_keyword(error),
            Ability::UndeclaredTools => {
                let has_calls = self.sent.messages.iter().any(|message| message.tool_calls().next().is_some());
                (has_calls && self.sent.tools.is_empty()).then_some(Limitation::NeedsFormerTools)
            }
            Ability::NullContent => has_null_content(self.body.as_ref()?).then_some(Limitation::NoNullContent),
            Ability::MissingReasoning => (!self.form.returns_reasoning).then_some(Limitation::NeedsReasoning),
        };
        limitation.filter(|limitation| !self.profile.has(limitation))
    }

    fn refused_keyword(&self, error: &ModelError) -> Option<Limitation> {
        let rules = refusals::field_rules(error)?;
        let is_quoted =
            |keyword: &str| ['\'', '"', '`'].iter().any(|quote| error.message.contains(&format!("{quote}{keyword}{quote}")));
        let quoted = rules.keywords.iter().filter(|keyword| is_quoted(keyword));
        let mut present = quoted.filter(|keyword| tools::has_keyword(self.sent, &|name, _| name == keyword.as_str()));
        present.next().map(|keyword| Limitation::NoKeyword(keyword.clone()))
    }

    fn refused_field(&self, error: &ModelError) -> Option<Limitation> {
        if error.refused_tool.is_some() {
            return None;
        }
        let rules: &FieldRules = refusals::field_rules(error)?;
        let path = fields::refused_field(error, self.body.as_ref()?)?;
        let of_ability = rules.abilities.get(&path).and_then(|ability| self.limitation_of(*ability, error));
        let renamed = || {
            let to = rules.other_name(self.dialect, &path)?.to_owned();
            let is_new = !self.profile.limitations().iter().any(|known| matches!(known, Limitation::RenamedField { .. }));
            is_new.then(|| Limitation::RenamedField { from: path.clone(), to })
        };
        let left_out = || (!rules.is_needed(self.dialect, &path)).then(|| Limitation::NoField(path.clone()));
        of_ability.or_else(renamed).or_else(left_out).filter(|limitation| !self.profile.has(limitation))
    }

    /// Returns the limitation of a tool whose definition is refused: first a simpler schema, then no such tool.
    fn refused_tool(&self, error: &ModelError) -> Option<Limitation> {
        let name = error.refused_tool.as_ref()?;
        let tool: &ToolDefinition = self.request.tools.iter().find(|tool| tool.name == *name)?;
        let key = tools::key(tool);
        let simple = Limitation::SimpleTool(key.clone());
        let is_simple = self.profile.has(&Limitation::SimpleTools) || self.profile.has(&simple) || !tools::can_be_simpler(tool);
        if is_simple {
            return Some(Limitation::NoTool(key)).filter(|limitation| !self.profile.has(limitation));
        }
        let is_schema = |change: &&LearnedChange| matches!(change.limitations.first(), Some(Limitation::SimpleTool(_)));
        let before = self.changes.iter().filter(is_schema).count();
        Some(if before + 1 >= REFUSED_SCHEMAS { Limitation::SimpleTools } else { simple })
    }
}

fn has_null_content(body: &Value) -> bool {
    let mut messages = body["messages"].as_array().into_iter().flatten();
    messages.any(|message| message.get("content").is_some_and(Value::is_null))
}

/// Returns the limit of output tokens in a body of any dialect.
fn output_limit(body: &Value) -> Option<u64> {
    let paths = [
        "/max_tokens",
        "/max_completion_tokens",
        "/max_output_tokens",
        "/generationConfig/maxOutputTokens",
        "/options/num_predict",
    ];
    paths.iter().find_map(|path| body.pointer(path)?.as_u64())
}
