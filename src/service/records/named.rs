//! Rules of what owners keep under names: who may make and change it, and lists of it together with what the program brings along.
//!
//! Owns these rules and their errors. Must not know any aggregate.

use std::fmt::Display;

use serde::{Deserialize, Deserializer, Serialize};
use utoipa::ToSchema;

use crate::domain::access::principal::{Principal, UserRole};
use crate::domain::ids::UserId;
use crate::service::{Error, Result};
use crate::store::{NameCursor, NamedMade, Page, PageRequest};

/// How often a change is made again from a newer version, if another request has changed the record in the meantime.
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

/// The texts for a kind of record in errors.
pub(in crate::service) struct Kind {
    pub(in crate::service) one: &'static str,
    pub(in crate::service) many: &'static str,
    /// The reason why a member may not change a record of the server.
    pub(in crate::service) refusal: &'static str,
}

impl Kind {
    pub(in crate::service) fn name_taken(&self, name: &str) -> Error {
        Error::Conflict(format!("there is {} called {name:?} already; change that one, or choose another name", self.one))
    }

    /// Returns the id of the record that was created under `name`, or why it was not created.
    pub(in crate::service) fn made<I>(&self, made: NamedMade<I>, name: &str, most: u32) -> Result<I> {
        match made {
            NamedMade::Made(id) => Ok(id),
            NamedMade::NameTaken => Err(self.name_taken(name)),
            NamedMade::TooMany => {
                let many = self.many;
                Err(Error::Conflict(format!("there are {most} {many} of this owner already, which is the most; delete one")))
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

/// Refuses a member who changes a record of the server. Records of other owners are not found in the first place.
pub(in crate::service) fn may_change(principal: &Principal, owner: Option<&UserId>, kind: &Kind) -> Result<()> {
    match (owner, principal.role) {
        (Some(_), UserRole::Admin | UserRole::Member) | (None, UserRole::Admin) => Ok(()),
        (None, UserRole::Member) => Err(Error::Forbidden(kind.refusal)),
    }
}

/// Refuses to change a version that is none of the wanted ones.
pub(in crate::service) fn check_version(wanted: Option<&[i64]>, version: i64) -> Result<()> {
    if wanted.is_none_or(|wanted| wanted.contains(&version)) { Ok(()) } else { Err(Error::Stale) }
}

/// Returns a page of stored and configured records. `kept` is the same page of the stored records alone.
pub(in crate::service) fn page_of_all<R, T, I: Ord + Clone + Display>(
    kept: Page<R>,
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
    items.extend(kept.items.into_iter().map(|record| keep(Box::new(record))));
    items.sort_by_cached_key(key);
    let is_more = kept.next.is_some() || items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| is_more).map(|last| cursor(last).to_string());
    Page { items, next }
}

/// Reads a field of a body, and tells `null` from a field that is absent.
pub(in crate::service) fn given<'de, D: Deserializer<'de>, T: Deserialize<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Option<T>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

pub(in crate::service) fn yes() -> bool {
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::ids::ProviderId;
    use crate::store::ProviderCursor;
    use crate::support::ids::SequentialIds;

    #[test]
    fn pages_go_by_name_whoever_keeps_them() {
        let id = ProviderId::generate(&SequentialIds::default());
        let record = |name: &&str| ProviderCursor { name: (*name).to_owned(), id: id.clone() };
        for limit in 1..8 {
            let (mut seen, mut after) = (Vec::new(), None::<ProviderCursor>);
            loop {
                let begin = after.as_ref().map_or("", |after| after.name.as_str());
                let mut kept: Vec<_> = ["b", "d", "e"].iter().filter(|name| **name > begin).map(record).collect();
                let next = (kept.len() > limit).then(String::new);
                kept.truncate(limit);
                let configured = ["a", "c", "f"].iter().map(record).collect();
                let request = PageRequest { limit: limit as u32, after: after.clone() };
                let page = page_of_all(Page { items: kept, next }, |record| *record, configured, &request, Clone::clone);
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
