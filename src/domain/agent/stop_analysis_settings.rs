//! The settings and phrases of stop analysis, an agent's `response_analysis`. `engine/strategy/stop_analysis.rs` applies them.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::domain::defaults::is_default;
use crate::domain::enum_names::named_enum;
use crate::domain::invalid::{InvalidProfile, invalid};

/// Off by default: phrases decide, and they are wrong at times.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StopAnalysisSettings {
    /// Maximum number of consecutive nudges after an incomplete answer. 0 disables them.
    pub incomplete: u32,
    /// Maximum number of nudges per user message after answers that ask back or refuse. 0 disables them.
    pub deflection: u32,
    /// Number of tool calls from which an answer that asks back is accepted, because long work leads to questions. 0 for no limit.
    #[serde(skip_serializing_if = "is_default")]
    pub deflection_calls: u32,
    /// Whether answers are judged before any call has succeeded, the first answer among them.
    #[serde(skip_serializing_if = "is_default")]
    pub before_success: bool,
    /// Whether the client and the model of the next run are told if an answer claims a change that no call has made.
    pub claims: bool,
    /// Lists that replace the built-in lists.
    #[serde(skip_serializing_if = "is_default")]
    pub phrases: PhraseLists,
}

/// Lists of phrases; `None` for the built-in list.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PhraseLists {
    /// The answer says that work remains.
    pub incomplete: Option<Vec<String>>,
    /// The answer says that all work is done.
    pub completion: Option<Vec<String>>,
    /// The model asks back, offers or refuses.
    pub deflection: Option<Vec<String>>,
    /// The answer presents a result.
    pub presentation: Option<Vec<String>>,
    /// The answer lets the user decide how to continue.
    pub deferral: Option<Vec<String>>,
    /// Verbs of a claim.
    pub claim: Option<Vec<String>>,
    /// The claimed change.
    pub action: Option<Vec<String>>,
    /// Words that cancel a claim.
    pub negation: Option<Vec<String>>,
}

named_enum! {
    pub enum PhraseListName {
        Incomplete = "incomplete",
        Completion = "completion",
        Deflection = "deflection",
        Presentation = "presentation",
        Deferral = "deferral",
        Claim = "claim",
        Action = "action",
        Negation = "negation",
    }
}

/// The built-in lists. A test parses the file.
static BUILT_IN: LazyLock<PhraseLists> = LazyLock::new(|| toml::from_str(include_str!("phrases.toml")).unwrap_or_default());

impl PhraseLists {
    fn list(&self, name: PhraseListName) -> Option<&[String]> {
        match name {
            PhraseListName::Incomplete => self.incomplete.as_deref(),
            PhraseListName::Completion => self.completion.as_deref(),
            PhraseListName::Deflection => self.deflection.as_deref(),
            PhraseListName::Presentation => self.presentation.as_deref(),
            PhraseListName::Deferral => self.deferral.as_deref(),
            PhraseListName::Claim => self.claim.as_deref(),
            PhraseListName::Action => self.action.as_deref(),
            PhraseListName::Negation => self.negation.as_deref(),
        }
    }
}

impl StopAnalysisSettings {
    /// The highest accepted number of nudges.
    pub const MAX_NUDGES: u32 = 10;
    pub const MAX_PHRASES: usize = 100;
    pub const MAX_PHRASE_BYTES: usize = 100;

    pub fn phrases(&self, name: PhraseListName) -> &[String] {
        self.phrases.list(name).or_else(|| BUILT_IN.list(name)).unwrap_or_default()
    }

    pub fn check(&self) -> Result<(), InvalidProfile> {
        for (field, count) in [("incomplete", self.incomplete), ("deflection", self.deflection)] {
            if count > Self::MAX_NUDGES {
                return Err(invalid(field, format!("must be at most {}", Self::MAX_NUDGES)));
            }
        }
        for name in PhraseListName::ALL {
            let phrases = self.phrases.list(name).unwrap_or_default();
            let field = || format!("phrases/{}", name.as_str());
            if phrases.len() > Self::MAX_PHRASES {
                return Err(invalid(field(), format!("has {} entries; the most is {}", phrases.len(), Self::MAX_PHRASES)));
            }
            if phrases.iter().any(|phrase| phrase.trim().is_empty() || phrase.len() > Self::MAX_PHRASE_BYTES) {
                return Err(invalid(field(), format!("each phrase has 1 to {} bytes", Self::MAX_PHRASE_BYTES)));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_list_is_there_and_as_long_as_the_documents_say() {
        let own = StopAnalysisSettings::default();
        let counts = PhraseListName::ALL.map(|name| own.phrases(name).len());
        assert_eq!(counts, [16, 17, 21, 15, 8, 8, 14, 14]);
        assert!(own.check().is_ok());
    }

    #[test]
    fn a_list_of_the_agent_takes_the_place_of_ours() {
        let lists = PhraseLists { completion: Some(vec!["fertig".to_owned()]), ..PhraseLists::default() };
        let analysis = StopAnalysisSettings { phrases: lists, ..StopAnalysisSettings::default() };
        assert_eq!(analysis.phrases(PhraseListName::Completion), ["fertig"]);
        assert_eq!(analysis.phrases(PhraseListName::Deferral).len(), 8);
    }

    #[test]
    fn unusable_analysis_setting_is_named() {
        let many = StopAnalysisSettings { deflection: 11, ..StopAnalysisSettings::default() };
        assert_eq!(many.check().unwrap_err().field, "deflection");
        for phrases in [vec![" ".to_owned()], vec!["x".repeat(101)], vec!["x".to_owned(); 101]] {
            let phrases = PhraseLists { claim: Some(phrases), ..PhraseLists::default() };
            let analysis = StopAnalysisSettings { phrases, ..StopAnalysisSettings::default() };
            assert_eq!(analysis.check().unwrap_err().field, "phrases/claim");
        }
    }
}
