//! The parts of a worker that its run drivers share.

use std::sync::{Arc, Mutex, Weak};

use tokio_util::sync::CancellationToken;

use crate::domain::agent::AgentProfile;
use crate::support::locks::lock;
use crate::worker::effects::attachments::Attachments;
use crate::worker::effects::titles::Titles;
use crate::worker::effects::withhold_changed_tools::AcceptedDefinitionCache;
use crate::worker::log_writer::LogWriter;
use crate::worker::ranking::Ranker;
use crate::worker::{WorkerDeps, WorkerOptions};

#[derive(Clone)]
pub struct WorkerContext {
    pub deps: WorkerDeps,
    pub options: WorkerOptions,
    pub writer: LogWriter,
    pub attachments: Arc<Attachments>,
    pub ranker: Arc<Ranker>,
    pub titles: Titles,
    /// Tool definitions that are known to be accepted.
    pub accepted: AcceptedDefinitionCache,
    /// Profiles of runs under way.
    pub profiles: Profiles,
    /// Cancelled when a drain begins: no new step starts.
    pub drain: CancellationToken,
    /// Cancelled when a drain aborts the steps under way.
    pub stop_now: CancellationToken,
}

/// The maximum number of profiles that are compared. A run with a further profile keeps its own copy.
const MAX_COMPARED: usize = 64;

#[derive(Clone, Default)]
pub struct Profiles {
    known: Arc<Mutex<Vec<Weak<AgentProfile>>>>,
}

impl Profiles {
    /// Returns an equal profile of another run, or this one.
    pub fn shared(&self, profile: Arc<AgentProfile>) -> Arc<AgentProfile> {
        let mut known = lock(&self.known);
        if let Some(same) = known.iter().filter_map(Weak::upgrade).find(|same| **same == *profile) {
            return same;
        }
        known.retain(|one| one.strong_count() > 0);
        if known.len() < MAX_COMPARED {
            known.push(Arc::downgrade(&profile));
        }
        profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_model(model: usize) -> Arc<AgentProfile> {
        Arc::new(AgentProfile { model: format!("p/{model}"), ..AgentProfile::default() })
    }

    #[test]
    fn equal_profiles_are_kept_once_and_others_are_not_mixed_up() {
        let profiles = Profiles::default();
        let first = profiles.shared(of_model(1));
        assert!(Arc::ptr_eq(&profiles.shared(of_model(1)), &first));
        assert_eq!(*profiles.shared(of_model(2)), *of_model(2));
    }

    #[test]
    fn profiles_with_another_order_of_properties_are_not_shared() {
        let with = |schema: &str| {
            let mut profile = AgentProfile::default();
            let schema = serde_json::from_str(schema).unwrap();
            profile.options.output_schema = Some(crate::domain::model::OutputSchema { name: "a".to_owned(), schema, strict: true });
            Arc::new(profile)
        };
        let profiles = Profiles::default();
        let (one, other) = (with(r#"{"reasoning":{},"answer":{}}"#), with(r#"{"answer":{},"reasoning":{}}"#));
        assert!(Arc::ptr_eq(&profiles.shared(one.clone()), &one));
        assert!(Arc::ptr_eq(&profiles.shared(other.clone()), &other));
    }

    #[test]
    fn profile_cache_is_bounded_and_reuses_free_entries() {
        let profiles = Profiles::default();
        let mut held: Vec<_> = (0..MAX_COMPARED).map(|model| profiles.shared(of_model(model))).collect();
        let beyond = profiles.shared(of_model(MAX_COMPARED));
        assert!(!Arc::ptr_eq(&profiles.shared(of_model(MAX_COMPARED)), &beyond), "there is no place for it");
        held.remove(0);
        let placed = profiles.shared(of_model(MAX_COMPARED));
        assert!(Arc::ptr_eq(&profiles.shared(of_model(MAX_COMPARED)), &placed));
        assert_eq!(profiles.known.lock().unwrap().len(), MAX_COMPARED);
    }
}
