//! Agents: creation, changes, pinned versions, and the selection for a run.
//!
//! A member may use every visible agent, unless it is restricted to other groups. A run freezes its profile, so no change of an
//! agent affects a run that was accepted before.

use std::collections::BTreeSet;

use serde::Deserialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::agent::agent_record::{AgentRecord, AgentVersion, ProfileDocument, profile_of};
use crate::domain::agent::preset::{self, Preset, preset_id};
use crate::domain::agent::{AgentProfile, InvalidProfile};
use crate::domain::ids::AgentId;
use crate::domain::problem::ProblemBody;
use crate::service::idempotency_outcome::{Replay, RequestKey, outcome_or_conflict};
use crate::service::records::agent_bounds::{bring_within, within};
use crate::service::records::named::{Kind, OwnerScope, TRIES, check_version, may_change, new_owner, nullable, page_of_all};
use crate::service::{Error, Result, Service};
use crate::store::{AgentCursor, AgentVersionCursor, Page, PageRequest, UpdateNamedOutcome};
use crate::support::clock::UnixMillis;

/// Limit of a description and of a note, in characters.
const MAX_DESCRIPTION_CHARS: usize = 1_000;
const MAX_NAME_BYTES: usize = 64;
const MAX_PROFILE_BYTES: usize = 64 * 1024;
/// The reason why a member cannot use an agent of their own.
const NOT_IN_GROUPS: &str =
    "the server's default agent is restricted to some groups; ask an administrator to add you to one of them";
/// The key of a profile that names the agent whose profile it changes.
const EXTENDS: &str = "extends";
/// Limit of the agents above an agent in its chain of `extends`.
const MAX_EXTENDED: usize = 5;
const AGENTS: Kind = Kind { one: "an agent", many: "agents", refusal: "only an administrator can change agents of the server" };

/// An agent as a path or a run names it. The caller's own agent has priority over the one for all users.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentRef {
    Id(AgentId),
    Name(String),
}

impl From<&str> for AgentRef {
    fn from(text: &str) -> Self {
        AgentId::parse(text).map_or_else(|_| Self::Name(text.to_owned()), Self::Id)
    }
}

/// An agent to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = CreateAgentBody)]
pub struct NewAgent {
    /// The name by which runs request the agent.
    #[schema(pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")]
    name: String,
    /// The purpose of the agent.
    #[serde(default)]
    #[schema(max_length = 1000)]
    description: String,
    /// The differences from the agent of the server's settings, or from the agent that `extends` names. The other keys are those of
    /// `[agent]` in the documentation of the configuration.
    #[serde(default)]
    #[schema(value_type = Object)]
    profile: ProfileDocument,
    /// The reason for the version, shown in the list of versions.
    #[serde(default)]
    #[schema(max_length = 1000)]
    note: String,
    /// The owner of the agent: the caller or the server. Only an administrator may create an agent for all users.
    #[serde(default)]
    scope: OwnerScope,
}

/// The changes to an agent. Absent fields stay unchanged.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(as = UpdateAgentBody)]
pub struct AgentPatch {
    /// The new name.
    #[schema(pattern = "^[a-zA-Z0-9][a-zA-Z0-9._-]{0,63}$")]
    name: Option<String>,
    /// The purpose of the agent.
    #[schema(max_length = 1000)]
    description: Option<String>,
    /// All differences from the agent of the server's settings, or from the agent that `extends` names. Creates a new version.
    #[schema(value_type = Option<Object>)]
    profile: Option<ProfileDocument>,
    /// The reason for the new version.
    #[serde(default)]
    #[schema(max_length = 1000)]
    note: String,
    /// The pinned version, which runs receive even if there are newer versions. `null` for the newest version.
    #[serde(default, deserialize_with = "nullable")]
    #[schema(value_type = Option<u32>, minimum = 1)]
    pinned_version: Option<Option<u32>>,
}

#[derive(Debug, Clone, PartialEq)]
pub enum AnyAgent {
    Stored(Box<AgentRecord>),
    Preset(Preset),
    /// The default agent of the settings, with this name.
    Default(String),
}

impl AnyAgent {
    pub fn name(&self) -> &str {
        match self {
            Self::Stored(record) => &record.name,
            Self::Preset(preset) => preset.name,
            Self::Default(name) => name,
        }
    }

    pub fn description(&self) -> &str {
        match self {
            Self::Stored(record) => &record.description,
            Self::Preset(preset) => &preset.description,
            Self::Default(_) => "The agent of the server's settings: what runs get that ask for no other.",
        }
    }

    pub fn created_at(&self) -> Option<UnixMillis> {
        match self {
            Self::Stored(record) => Some(record.created_at),
            Self::Preset(_) | Self::Default(_) => None,
        }
    }

    fn cursor(&self) -> AgentCursor {
        let (name, id) = match self {
            Self::Stored(record) => (record.name.clone(), record.id.clone()),
            Self::Preset(preset) => (preset.name.to_owned(), preset.id.clone()),
            Self::Default(name) => (name.clone(), preset_id(name)),
        };
        AgentCursor { name, id }
    }

    /// Returns the groups that the agent is restricted to; none if all users may use it. A member's own agent keeps the groups of
    /// `base`.
    fn groups(&self, base: &AgentProfile) -> BTreeSet<String> {
        match self {
            Self::Default(_) | Self::Preset(_) => base.groups.clone(),
            Self::Stored(record) if record.owner.is_some() => base.groups.clone(),
            Self::Stored(record) => groups_in(base, &record.profile),
        }
    }

    /// Returns the groups whose members may read the agent. Its owner may read it even without the right to use it.
    fn readers(&self, base: &AgentProfile) -> BTreeSet<String> {
        match self {
            Self::Stored(record) => readers_in(base, record, &record.profile),
            Self::Preset(_) | Self::Default(_) => self.groups(base),
        }
    }
}

fn readers_in(base: &AgentProfile, record: &AgentRecord, document: &ProfileDocument) -> BTreeSet<String> {
    match record.owner {
        Some(_) => BTreeSet::new(),
        None => groups_in(base, document),
    }
}

/// Returns the groups that a version of an agent for all users is restricted to.
fn groups_in(base: &AgentProfile, document: &ProfileDocument) -> BTreeSet<String> {
    match document.get("groups") {
        None => base.groups.clone(),
        // An unreadable list admits no member: no group has an empty name.
        Some(groups) => serde_json::from_value(groups.clone()).unwrap_or_else(|_| BTreeSet::from([String::new()])),
    }
}

/// The groups of a principal, as far as they matter.
enum Membership {
    /// Irrelevant: the principal is an administrator, or no agent is restricted.
    Unasked,
    Of(Vec<String>),
}

impl Membership {
    fn admits(&self, groups: &BTreeSet<String>) -> bool {
        match self {
            Self::Unasked => true,
            Self::Of(theirs) => groups.is_empty() || theirs.iter().any(|group| groups.contains(group)),
        }
    }
}

/// An agent as shown, with the profile that runs use, or the reason why runs cannot use it.
#[derive(Debug, Clone, PartialEq)]
pub struct AgentView {
    pub agent: AnyAgent,
    pub effective: std::result::Result<Box<AgentProfile>, InvalidProfile>,
}

impl Service {
    pub async fn create_agent(&self, principal: &Principal, new: NewAgent, key: Option<RequestKey>) -> Result<(AgentView, Replay)> {
        let NewAgent { name, description, profile, note, scope } = new;
        let owner = new_owner(principal, scope, &AGENTS)?;
        self.check_agent_name(&name)?;
        check_words("/description", &description)?;
        self.check_profile(principal, &name, 1, &profile).await?;
        let now = self.clock.now();
        let first = self.agent_version_of(principal, 1, profile, note)?;
        let record = AgentRecord {
            id: AgentId::generate(self.ids.as_ref()),
            owner,
            name,
            description,
            pinned: None,
            latest: 1,
            profile: first.profile.clone(),
            created_at: now,
            updated_at: now,
            revision: 1,
        };
        let most = self.limits.max_agents;
        let claim = self.claim(&principal.user_id, key);
        let (outcome, replay) = outcome_or_conflict(self.store.create_agent(&record, &first, most, claim).await?)?;
        let id = AGENTS.created_id(outcome, &record.name, most)?;
        Ok((self.agent(principal, &AgentRef::Id(id)).await?, replay))
    }

    pub async fn agent(&self, principal: &Principal, agent: &AgentRef) -> Result<AgentView> {
        let agent = self.any_agent(principal, agent).await?.ok_or(Error::NotFound("agent"))?;
        let base = &self.default_profile;
        let membership = self.membership(principal, &[agent.groups(base)]).await?;
        if !membership.admits(&agent.readers(base)) {
            return Err(Error::NotInGroups(agent.cursor().name));
        }
        self.shown_agent(principal, agent, &membership).await
    }

    /// Returns a page of the agents that the principal may read, by name. A page may be short although others follow.
    pub async fn agents(&self, principal: &Principal, page: &PageRequest<AgentCursor>) -> Result<Page<AgentView>> {
        let stored = self.store.agents(&principal.user_id, page).await?;
        let Page { items, next } = page_of_all(stored, AnyAgent::Stored, self.agents_of_the_program(), page, AnyAgent::cursor);
        let base = &self.default_profile;
        let groups: Vec<_> = items.iter().map(|agent| agent.groups(base)).collect();
        let membership = self.membership(principal, &groups).await?;
        let mut views = Vec::new();
        for agent in items.into_iter().filter(|agent| membership.admits(&agent.readers(base))) {
            views.push(self.shown_agent(principal, agent, &membership).await?);
        }
        Ok(Page { items: views, next })
    }

    /// Returns all agents that the principal may read, by name.
    pub async fn all_agents(&self, principal: &Principal) -> Result<Vec<AgentView>> {
        let (mut all, mut page) = (Vec::new(), PageRequest { limit: 100, after: None });
        loop {
            let Page { items, next } = self.agents(principal, &page).await?;
            all.extend(items);
            match next.and_then(|next| next.parse().ok()) {
                Some(after) => page.after = Some(after),
                None => return Ok(all),
            }
        }
    }

    /// Changes an agent. If revisions are named, the agent must have one of them.
    pub async fn update_agent(
        &self,
        principal: &Principal,
        agent: &AgentRef,
        patch: AgentPatch,
        revisions: Option<&[i64]>,
    ) -> Result<AgentView> {
        let AgentPatch { name, description, profile, note, pinned_version } = patch;
        for _ in 0..TRIES {
            let mut after = self.changeable_agent(principal, agent, revisions).await?;
            if let Some(name) = name.as_ref().filter(|name| **name != after.name) {
                self.check_agent_name(name)?;
                after.name.clone_from(name);
            }
            if let Some(description) = &description {
                check_words("/description", description)?;
                after.description.clone_from(description);
            }
            let version = match &profile {
                Some(profile) => Some(self.next_version(principal, &mut after, profile.clone(), note.clone()).await?),
                None => None,
            };
            match pinned_version {
                Some(Some(number)) if number != after.latest && self.store.agent_version(&after.id, number).await?.is_none() => {
                    return Err(Error::field("/pinned_version", format!("the agent has no version {number}")));
                }
                Some(agent_name) => after.pinned = agent_name,
                None => {}
            }
            if let Some(views) = self.put_agent(principal, after, version).await? {
                return Ok(views);
            }
        }
        Err(Error::Stale)
    }

    /// Creates a new version that equals an earlier one, for all later runs.
    pub async fn roll_back_agent(&self, principal: &Principal, agent: &AgentRef, number: u32, note: &str) -> Result<AgentView> {
        for _ in 0..TRIES {
            let mut after = self.changeable_agent(principal, agent, None).await?;
            let earlier = self.store.agent_version(&after.id, number).await?;
            let earlier = earlier.ok_or_else(|| Error::field("/version", format!("the agent has no version {number}")))?;
            // A repeated request changes nothing more. The order of keys matters, because models see a schema in its order.
            let is_same = serde_json::to_string(&earlier.profile).ok() == serde_json::to_string(&after.profile).ok();
            if after.pinned.is_none() && is_same {
                return self.agent(principal, &AgentRef::Id(after.id)).await;
            }
            let note = if note.is_empty() { format!("same as version {number}") } else { note.to_owned() };
            let version = self.next_version(principal, &mut after, earlier.profile, note).await?;
            after.pinned = None;
            if let Some(views) = self.put_agent(principal, after, Some(version)).await? {
                return Ok(views);
            }
        }
        Err(Error::Stale)
    }

    /// Deletes an agent with its versions. If revisions are named, the agent must have one of them. Its running runs continue.
    pub async fn delete_agent(&self, principal: &Principal, agent: &AgentRef, revisions: Option<&[i64]>) -> Result<()> {
        for _ in 0..TRIES {
            let record = self.changeable_agent(principal, agent, revisions).await?;
            if self.store.delete_agent(record.owner.as_ref(), &record.id, record.revision).await? {
                return Ok(());
            }
        }
        Err(Error::Stale)
    }

    pub async fn agent_versions(
        &self,
        principal: &Principal,
        agent: &AgentRef,
        page: &PageRequest<AgentVersionCursor>,
    ) -> Result<Page<AgentVersion>> {
        let record = self.readable_agent(principal, agent).await?;
        let Page { items, next } = self.store.agent_versions(&record.id, page).await?;
        let readers: Vec<_> = items.iter().map(|version| readers_in(&self.default_profile, &record, &version.profile)).collect();
        let membership = self.membership(principal, &readers).await?;
        let items = items.into_iter().zip(&readers).filter(|(_, readers)| membership.admits(readers));
        Ok(Page { items: items.map(|(version, _)| version).collect(), next })
    }

    pub async fn agent_version(&self, principal: &Principal, agent: &AgentRef, number: u32) -> Result<AgentVersion> {
        let record = self.readable_agent(principal, agent).await?;
        let version = self.store.agent_version(&record.id, number).await?.ok_or(Error::NotFound("version of this agent"))?;
        self.admit(principal, &record.name, &readers_in(&self.default_profile, &record, &version.profile)).await?;
        Ok(version)
    }

    /// Returns the profile for runs that request an agent, and whether it names a model itself. `agent_name` may end with `@` and a
    /// version.
    pub(in crate::service) async fn agent_profile(
        &self,
        principal: &Principal,
        agent_name: Option<&str>,
    ) -> Result<(AgentProfile, bool)> {
        self.extended_profile(principal, agent_name, &[]).await
    }

    /// Returns the profile of an agent that the agents of `path` extend, one after another, and whether it names a model.
    async fn extended_profile(
        &self,
        principal: &Principal,
        agent_name: Option<&str>,
        path: &[String],
    ) -> Result<(AgentProfile, bool)> {
        let base = &self.default_profile;
        let Some(agent_name) = agent_name.filter(|agent_name| **agent_name != base.name) else {
            self.admit(principal, &base.name, &base.groups).await?;
            return Ok((base.clone(), false));
        };
        let missing = |reason: String| Error::field("/agent", format!("{reason}; GET /api/v1/agents lists the agents"));
        let (agent, number) = match agent_name.rsplit_once('@') {
            Some((agent, number)) => {
                let number: u32 = number.parse().map_err(|_| missing(format!("{number:?} is not a version number")))?;
                (agent, Some(number))
            }
            None => (agent_name, None),
        };
        let found =
            self.any_agent(principal, &agent.into()).await?.ok_or_else(|| missing(format!("there is no agent {agent:?}")))?;
        if path.contains(&found.cursor().name) {
            return Err(Error::conflict(format!("the agent {:?} extends itself", found.cursor().name)));
        }
        // A principal who may not use the agent's current version may use none of its versions: an old one may be older than the
        // restriction.
        self.admit(principal, &found.cursor().name, &found.groups(base)).await?;
        let no_version = |number: u32| missing(format!("the agent {agent:?} has no version {number}"));
        let (name, version, document, source) = match found {
            AnyAgent::Default(_) | AnyAgent::Preset(_) if number.is_some_and(|number| number != 1) => {
                return Err(no_version(number.unwrap_or_default()));
            }
            AnyAgent::Default(_) => return Ok((base.clone(), false)),
            AnyAgent::Preset(preset) => (preset.name.to_owned(), 1, preset.profile, Source::Program),
            AnyAgent::Stored(record) => {
                let current = record.current();
                let document = match number.filter(|number| *number != current) {
                    None => record.profile,
                    Some(number) => self.store.agent_version(&record.id, number).await?.ok_or_else(|| no_version(number))?.profile,
                };
                let source = if record.owner.is_some() { Source::Own } else { Source::Server };
                (record.name, number.unwrap_or(current), document, source)
            }
        };
        if number.is_some() && matches!(source, Source::Server) {
            self.admit(principal, &name, &groups_in(base, &document)).await?;
        }
        let cannot = |InvalidProfile { field, reason }| {
            Error::Conflict(format!("the agent {name:?} is invalid: {field}: {reason}; change the agent"))
        };
        let (profile, names_model) = self.merged_profile(principal, (&name, version), &document, path).await?;
        let mut profile = profile.map_err(cannot)?;
        match (source, principal.role) {
            (Source::Own, UserRole::Member) => within(base, &profile).map_err(cannot)?,
            (Source::Program, UserRole::Member) => bring_within(base, &mut profile),
            (Source::Own | Source::Program, UserRole::Admin) | (Source::Server, _) => {}
        }
        Ok((profile, names_model))
    }

    /// Merges a document into the profile of the agent that it extends, or else of the settings. Returns also whether one of them
    /// names a model.
    async fn merged_profile(
        &self,
        principal: &Principal,
        (name, version): (&str, u32),
        document: &ProfileDocument,
        path: &[String],
    ) -> Result<(std::result::Result<AgentProfile, InvalidProfile>, bool)> {
        let mut document = document.clone();
        let invalid = |reason: String| Ok((Err(InvalidProfile { field: EXTENDS.to_owned(), reason }), false));
        let (base, names_model) = match document.remove(EXTENDS) {
            None => (self.default_profile.clone(), false),
            Some(Value::String(_)) if path.len() == MAX_EXTENDED => {
                return invalid(format!("more than {MAX_EXTENDED} agents extend each other, one after another"));
            }
            Some(Value::String(agent_name)) => {
                let path = [path, &[name.to_owned()]].concat();
                match Box::pin(self.extended_profile(principal, Some(&agent_name), &path)).await {
                    Ok(found) => found,
                    Err(error @ (Error::Invalid { .. } | Error::Conflict(_) | Error::NotInGroups(_))) => {
                        let ProblemBody { detail, mut errors, .. } = error.problem();
                        return invalid(errors.pop().map_or(detail, |error| error.detail));
                    }
                    Err(error) => return Err(error),
                }
            }
            Some(_) => return invalid("must be the name of an agent, with or without @VERSION".to_owned()),
        };
        Ok((profile_of(&base, name, version, &document), names_model || document.contains_key("model")))
    }

    pub(in crate::service) async fn admit(&self, principal: &Principal, agent: &str, groups: &BTreeSet<String>) -> Result<()> {
        let membership = self.membership(principal, std::slice::from_ref(groups)).await?;
        if membership.admits(groups) { Ok(()) } else { Err(Error::NotInGroups(agent.to_owned())) }
    }

    /// Returns the groups of a principal, if they matter for any of these restrictions. Most agents are unrestricted, so the store
    /// is rarely asked.
    async fn membership(&self, principal: &Principal, groups: &[BTreeSet<String>]) -> Result<Membership> {
        match principal.role {
            UserRole::Member if groups.iter().any(|groups| !groups.is_empty()) => {
                Ok(Membership::Of(self.store.groups_of(&principal.user_id).await?))
            }
            UserRole::Member | UserRole::Admin => Ok(Membership::Unasked),
        }
    }

    /// Returns the built-in agents and the default agent of the settings. Their names are reserved.
    fn agents_of_the_program(&self) -> Vec<AnyAgent> {
        let default = &self.default_profile.name;
        let presets = preset::presets().iter().filter(|preset| preset.name != default).cloned().map(AnyAgent::Preset);
        std::iter::once(AnyAgent::Default(default.clone())).chain(presets).collect()
    }

    async fn any_agent(&self, principal: &Principal, agent: &AgentRef) -> Result<Option<AnyAgent>> {
        let is_meant = |known: &AnyAgent| match agent {
            AgentRef::Id(id) => known.cursor().id == *id,
            AgentRef::Name(name) => known.cursor().name == *name,
        };
        if let Some(known) = self.agents_of_the_program().into_iter().find(is_meant) {
            return Ok(Some(known));
        }
        let record = match agent {
            AgentRef::Id(id) => self.store.agent(&principal.user_id, id).await?,
            AgentRef::Name(name) if is_name(name) => self.store.agent_named(&principal.user_id, name).await?,
            AgentRef::Name(_) => None,
        };
        Ok(record.map(|record| AnyAgent::Stored(Box::new(record))))
    }

    async fn kept_agent(&self, principal: &Principal, agent: &AgentRef) -> Result<AgentRecord> {
        match self.any_agent(principal, agent).await? {
            Some(AnyAgent::Stored(record)) => Ok(*record),
            Some(AnyAgent::Preset(_)) => {
                Err(Error::conflict("this agent is built in and cannot be changed; create your own agent with its profile"))
            }
            Some(AnyAgent::Default(_)) => Err(Error::conflict("this agent is defined in the settings; change it there")),
            None => Err(Error::NotFound("agent")),
        }
    }

    /// Returns a stored agent, if the principal may read the version that runs use.
    async fn readable_agent(&self, principal: &Principal, agent: &AgentRef) -> Result<AgentRecord> {
        let record = self.kept_agent(principal, agent).await?;
        self.admit(principal, &record.name, &readers_in(&self.default_profile, &record, &record.profile)).await?;
        Ok(record)
    }

    async fn changeable_agent(&self, principal: &Principal, agent: &AgentRef, revisions: Option<&[i64]>) -> Result<AgentRecord> {
        let record = self.kept_agent(principal, agent).await?;
        may_change(principal, record.owner.as_ref(), &AGENTS)?;
        check_version(revisions, record.revision)?;
        Ok(record)
    }

    /// Stores a changed agent. `None` if it was changed meanwhile.
    async fn put_agent(
        &self,
        principal: &Principal,
        mut after: AgentRecord,
        version: Option<AgentVersion>,
    ) -> Result<Option<AgentView>> {
        after.updated_at = self.clock.now().max(after.updated_at);
        match self.store.change_agent(&after, version.as_ref()).await? {
            UpdateNamedOutcome::Changed(_) => self.agent(principal, &AgentRef::Id(after.id)).await.map(Some),
            UpdateNamedOutcome::NameTaken => Err(AGENTS.name_taken(&after.name)),
            UpdateNamedOutcome::Stale => Ok(None),
        }
    }

    async fn next_version(
        &self,
        principal: &Principal,
        agent: &mut AgentRecord,
        profile: ProfileDocument,
        note: String,
    ) -> Result<AgentVersion> {
        agent.latest += 1;
        self.check_profile(principal, &agent.name, agent.latest, &profile).await?;
        self.agent_version_of(principal, agent.latest, profile, note)
    }

    fn agent_version_of(&self, by: &Principal, number: u32, profile: ProfileDocument, note: String) -> Result<AgentVersion> {
        check_words("/note", &note)?;
        Ok(AgentVersion { number, profile, note, created_by: by.user_id.clone(), created_at: self.clock.now() })
    }

    async fn check_profile(&self, principal: &Principal, name: &str, version: u32, document: &ProfileDocument) -> Result<()> {
        let size = serde_json::to_string(document).map_or(0, |text| text.len());
        if size > MAX_PROFILE_BYTES {
            return Err(Error::field("/profile", format!("has {size} bytes as JSON; the limit is {MAX_PROFILE_BYTES}")));
        }
        let refuse = |InvalidProfile { field, reason }| Error::field(&format!("/profile/{field}"), reason);
        let profile = self.merged_profile(principal, (name, version), document, &[]).await?.0.map_err(refuse)?;
        match principal.role {
            UserRole::Admin => Ok(()),
            UserRole::Member => within(&self.default_profile, &profile).map_err(refuse),
        }
    }

    fn check_agent_name(&self, name: &str) -> Result<()> {
        if !is_name(name) {
            let rule =
                format!("must have 1 to {MAX_NAME_BYTES} of a-z, A-Z, 0-9, '.', '_' and '-', and begin with a letter or a digit");
            return Err(Error::field("/name", rule));
        }
        if AgentId::parse(name).is_ok() {
            return Err(Error::field("/name", "must not look like an id"));
        }
        if preset::is_preset(name) || *name == self.default_profile.name {
            return Err(AGENTS.name_taken(name));
        }
        Ok(())
    }

    async fn shown_agent(&self, viewer: &Principal, agent: AnyAgent, membership: &Membership) -> Result<AgentView> {
        let base = &self.default_profile;
        let effective = match &agent {
            AnyAgent::Default(_) => Ok(base.clone()),
            AnyAgent::Preset(preset) => profile_of(base, preset.name, 1, &preset.profile).map(|mut profile| {
                if viewer.role == UserRole::Member {
                    bring_within(base, &mut profile);
                }
                profile
            }),
            AnyAgent::Stored(record) => {
                let (profile, _) = self.merged_profile(viewer, (&record.name, record.current()), &record.profile, &[]).await?;
                profile.and_then(|profile| match (&record.owner, viewer.role) {
                    (Some(_), UserRole::Member) => within(base, &profile).map(|()| profile),
                    (Some(_), UserRole::Admin) | (None, _) => Ok(profile),
                })
            }
        };
        // A reader may use the agent. The exception is a member whose own agent is restricted: they see only the fields that they
        // wrote.
        let effective = effective.and_then(|profile| match membership.admits(&profile.groups) {
            true => Ok(profile),
            false => Err(InvalidProfile { field: "groups".to_owned(), reason: NOT_IN_GROUPS.to_owned() }),
        });
        Ok(AgentView { agent, effective: effective.map(Box::new) })
    }
}

enum Source {
    Own,
    Server,
    Program,
}

fn check_words(field: &str, words: &str) -> Result<()> {
    match words.chars().count() {
        0..=MAX_DESCRIPTION_CHARS => Ok(()),
        count => Err(Error::field(field, format!("has {count} characters; the limit is {MAX_DESCRIPTION_CHARS}"))),
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-');
    name.len() <= MAX_NAME_BYTES && name.starts_with(|c: char| c.is_ascii_alphanumeric()) && name.chars().all(fits)
}
