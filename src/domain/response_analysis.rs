//! What is done about an answer whose words say that the work is not done, or that it is where nothing was.
//!
//! Owns the wishes of an agent and the phrases; the loop owns the judgement.

use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

/// What the words of an answer lead to. All of it is off by default: words are judged by phrases, and phrases are mistaken at times.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ResponseAnalysis {
    /// How often in a row a model that stops before the work is done is told to go on; 0 for never.
    pub incomplete: u32,
    /// How often in a turn a model that asks back or refuses is told to go on without questions; 0 for never.
    pub deflection: u32,
    /// With so many calls of tools, whoever asks back is believed: a model that has worked for long asks for a reason. 0 for no limit.
    #[serde(skip_serializing_if = "is_zero")]
    pub deflection_calls: u32,
    /// Whether the end of a run tells of an answer that claims a change where nothing was changed, and the next run's model, too.
    pub claims: bool,
    /// Lists that take the place of the server's own.
    #[serde(skip_serializing_if = "PhraseLists::is_default")]
    pub phrases: PhraseLists,
}

fn is_zero(count: &u32) -> bool {
    *count == 0
}

/// Lists of phrases; `None` for the server's own.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PhraseLists {
    /// Something is left to do.
    pub incomplete: Option<Vec<String>>,
    /// Everything is done.
    pub completion: Option<Vec<String>>,
    /// The model asks back, offers or refuses.
    pub deflection: Option<Vec<String>>,
    /// A result is shown.
    pub presentation: Option<Vec<String>>,
    /// The user shall say how to go on.
    pub deferral: Option<Vec<String>>,
    /// Words of a claim.
    pub claim: Option<Vec<String>>,
    /// What is claimed to have been done.
    pub action: Option<Vec<String>>,
    /// What makes a claim none.
    pub negation: Option<Vec<String>>,
}

/// One of the lists.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phrases {
    /// Something is left to do.
    Incomplete,
    /// Everything is done.
    Completion,
    /// The model asks back, offers or refuses.
    Deflection,
    /// A result is shown.
    Presentation,
    /// The user shall say how to go on.
    Deferral,
    /// Words of a claim.
    Claim,
    /// What is claimed to have been done.
    Action,
    /// What makes a claim none.
    Negation,
}

impl Phrases {
    /// All lists.
    pub const ALL: [Self; 8] = [
        Self::Incomplete,
        Self::Completion,
        Self::Deflection,
        Self::Presentation,
        Self::Deferral,
        Self::Claim,
        Self::Action,
        Self::Negation,
    ];
}

/// The server's own. That the file can be read and is whole is tested.
static OWN: LazyLock<PhraseLists> = LazyLock::new(|| toml::from_str(include_str!("phrases.toml")).unwrap_or_default());

impl PhraseLists {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    fn list(&self, which: Phrases) -> Option<&[String]> {
        match which {
            Phrases::Incomplete => self.incomplete.as_deref(),
            Phrases::Completion => self.completion.as_deref(),
            Phrases::Deflection => self.deflection.as_deref(),
            Phrases::Presentation => self.presentation.as_deref(),
            Phrases::Deferral => self.deferral.as_deref(),
            Phrases::Claim => self.claim.as_deref(),
            Phrases::Action => self.action.as_deref(),
            Phrases::Negation => self.negation.as_deref(),
        }
    }
}

impl ResponseAnalysis {
    /// The most that a model is told to go on, in a row or in a turn.
    pub const MAX_NUDGES: u32 = 10;
    /// The most phrases in a list.
    pub const MAX_PHRASES: usize = 100;
    /// The longest phrase, in bytes.
    pub const MAX_PHRASE_BYTES: usize = 100;

    /// Whether it is as it is by itself.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// The phrases of a list.
    #[must_use]
    pub fn phrases(&self, which: Phrases) -> &[String] {
        self.phrases.list(which).or_else(|| OWN.list(which)).unwrap_or_default()
    }

    /// Looks for values that cannot be used.
    ///
    /// # Errors
    /// The field and the reason.
    pub fn check(&self) -> Result<(), (String, String)> {
        for (field, count) in [("incomplete", self.incomplete), ("deflection", self.deflection)] {
            if count > Self::MAX_NUDGES {
                return Err((field.to_owned(), format!("must be at most {}", Self::MAX_NUDGES)));
            }
        }
        for which in Phrases::ALL {
            let phrases = self.phrases.list(which).unwrap_or_default();
            let field = || format!("phrases/{}", format!("{which:?}").to_lowercase());
            if phrases.len() > Self::MAX_PHRASES {
                return Err((field(), format!("has {} entries; the most is {}", phrases.len(), Self::MAX_PHRASES)));
            }
            if phrases.iter().any(|phrase| phrase.trim().is_empty() || phrase.len() > Self::MAX_PHRASE_BYTES) {
                return Err((field(), format!("each phrase has 1 to {} bytes", Self::MAX_PHRASE_BYTES)));
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
        let own = ResponseAnalysis::default();
        let counts = Phrases::ALL.map(|which| own.phrases(which).len());
        assert_eq!(counts, [16, 17, 21, 15, 8, 8, 14, 14]);
        assert!(own.check().is_ok());
    }

    #[test]
    fn a_list_of_the_agent_takes_the_place_of_ours() {
        let lists = PhraseLists { completion: Some(vec!["fertig".to_owned()]), ..PhraseLists::default() };
        let analysis = ResponseAnalysis { phrases: lists, ..ResponseAnalysis::default() };
        assert_eq!(analysis.phrases(Phrases::Completion), ["fertig"]);
        assert_eq!(analysis.phrases(Phrases::Deferral).len(), 8);
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let many = ResponseAnalysis { deflection: 11, ..ResponseAnalysis::default() };
        assert_eq!(many.check().unwrap_err().0, "deflection");
        for phrases in [vec![" ".to_owned()], vec!["x".repeat(101)], vec!["x".to_owned(); 101]] {
            let phrases = PhraseLists { claim: Some(phrases), ..PhraseLists::default() };
            let analysis = ResponseAnalysis { phrases, ..ResponseAnalysis::default() };
            assert_eq!(analysis.check().unwrap_err().0, "phrases/claim");
        }
    }
}
