//! Rules for named records: who may create and change them, and lists that include the configured ones.
//!
//! Owns these rules and their errors. Must not know any aggregate.

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::UserId;
use crate::service::{Error, Result};
use crate::store::{CreateNamedOutcome, NameCursor, Page, PageRequest};

/// How often a change is retried from a newer version, if another request changed the record meanwhile.
pub(in crate::service) const TRIES: usize = 5;

/// The owner of a record: the caller (`own`) or the server (`global`), whose records serve all users.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
#[schema(as = Scope)]
pub enum OwnerScope {
    #[default]
    Own,
    Global,
}

/// Texts about a kind of record, for errors.
pub(in crate::service) struct Kind {
    pub(in crate::service) one: &'static str,
    pub(in crate::service) many: &'static str,
    /// Why a member may not change a record of the server.
    pub(in crate::service) refusal: &'static str,
}

impl Kind {
    pub(in crate::service) fn name_taken(&self, name: &str) -> Error {
        Error::Conflict(format!("{} with the name {name:?} exists already; change that one, or choose another name", self.one))
    }

    /// Returns the id of the record that was created as `name`, or why it was not created.
    pub(in crate::service) fn created_id<I>(&self, outcome: CreateNamedOutcome<I>, name: &str, most: u32) -> Result<I> {
        match outcome {
            CreateNamedOutcome::Made(id) => Ok(id),
            CreateNamedOutcome::NameTaken => Err(self.name_taken(name)),
            CreateNamedOutcome::TooMany => {
                let many = self.many;
                Err(Error::Conflict(format!("this owner has {most} {many}, which is the limit; delete one")))
            }
        }
    }
}

/// Returns the owner of a new record. `None` for the server, whose records only an administrator may create.
pub(in crate::service) fn new_owner(principal: &Principal, scope: OwnerScope, kind: &Kind) -> Result<Option<UserId>> {
    let owner = match scope {
        OwnerScope::Own => Some(principal.user_id.clone()),
        OwnerScope::Global => None,
    };
    may_change(principal, owner.as_ref(), kind)?;
    Ok(owner)
}

/// Refuses a member who changes a record of the server. Records of other owners are never found.
pub(in crate::service) fn may_change(principal: &Principal, owner: Option<&UserId>, kind: &Kind) -> Result<()> {
    match (owner, principal.role) {
        (Some(_), UserRole::Admin | UserRole::Member) | (None, UserRole::Admin) => Ok(()),
        (None, UserRole::Member) => Err(Error::Forbidden(kind.refusal)),
    }
}

/// Refuses to change a record whose version is not one of the given ones.
pub(in crate::service) fn check_version(expected: Option<&[i64]>, version: i64) -> Result<()> {
    if expected.is_none_or(|expected| expected.contains(&version)) { Ok(()) } else { Err(Error::Stale) }
}

/// Returns a page of stored and configured records. `stored` is the page of the stored records.
pub(in crate::service) fn page_of_all<R, T, I: Ord + Clone + Serialize>(
    stored: Page<R>,
    keep: impl Fn(Box<R>) -> T,
    configured: Vec<T>,
    page: &PageRequest<NameCursor<I>>,
    cursor: impl Fn(&T) -> NameCursor<I>,
) -> Page<T> {
    let key = |item: &T| {
        let NameCursor { name, id } = cursor(item);
        (name, id)
    };
    let after = page.after.as_ref().map(|after| (after.name.clone(), after.id.clone()));
    let limit = page.limit.clamp(1, 100) as usize;
    let mut items = configured;
    items.retain(|item| after.as_ref().is_none_or(|after| key(item) > *after));
    items.extend(stored.items.into_iter().map(|record| keep(Box::new(record))));
    items.sort_by_cached_key(key);
    let is_more = stored.next.is_some() || items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| is_more).map(|last| cursor(last).to_string());
    Page { items, next }
}

/// Deserializes a field so that `null` and an absent field differ.
pub(in crate::service) fn nullable<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

pub(in crate::service) fn default_true() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ProviderId;
    use crate::store::ProviderCursor;
    use crate::support::ids::SequentialIds;

    #[test]
    fn pages_are_sorted_by_name_across_owners() {
        let id = ProviderId::generate(&SequentialIds::default());
        let record = |name: &&str| ProviderCursor { name: (*name).to_owned(), id: id.clone() };
        for limit in 1..8 {
            let (mut seen, mut after) = (Vec::new(), None::<ProviderCursor>);
            loop {
                let begin = after.as_ref().map_or("", |after| after.name.as_str());
                let mut stored: Vec<_> = ["b", "d", "e"].iter().filter(|name| **name > begin).map(record).collect();
                let next = (stored.len() > limit).then(String::new);
                stored.truncate(limit);
                let configured = ["a", "c", "f"].iter().map(record).collect();
                let request = PageRequest { limit: limit as u32, after: after.clone() };
                let page = page_of_all(Page { items: stored, next }, |record| *record, configured, &request, Clone::clone);
                assert!(page.items.len() <= limit);
                seen.extend(page.items.into_iter().map(|item| item.name));
                after = page.next.map(|next| next.parse().unwrap());
                if after.is_none() {
                    break;
                }
            }
            assert_eq!(seen, ["a", "b", "c", "d", "e", "f"], "{limit}");
        }
    }
}
