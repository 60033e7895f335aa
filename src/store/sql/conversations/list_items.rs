//! Items of owners' lists, for the feeds of all owners.
//!
//! Owns the statements that read items by id. Must not know why an item is read.

use std::collections::HashMap;

use crate::domain::conversation::{ListItem, OpenQuestion};
use crate::domain::ids::{ConversationId, InputId, UserId};
use crate::domain::run::InputKind;
use crate::store::rows::read_word;
use crate::store::sql::conversations::conversation_rows::{LIST_ITEMS, read_conversation};
use crate::store::sql::{Value, statements};
use crate::store::{RecordStore, StoreResult};

statements! {
    OPEN_QUESTIONS = ["SELECT q.conversation_id, q.id, q.kind FROM runs r JOIN input_requests q ON q.run_id = r.id
         WHERE r.owner_id ", (in_list "$1"), " AND r.conversation_id ", (in_list "$2"), " AND r.finished_at IS NULL
           AND q.state = 'pending' AND q.kind <> 'client_tool'
         ORDER BY q.created_at, q.id"];
}

impl dyn RecordStore + '_ {
    /// Returns those of the conversations that the lists of these owners show, each with its owner.
    pub async fn list_items(&self, owners: &[UserId], ids: &[ConversationId]) -> StoreResult<Vec<(UserId, ListItem)>> {
        if owners.is_empty() || ids.is_empty() {
            return Ok(Vec::new());
        }
        let owners: Value<'_> = owners.iter().map(UserId::as_str).collect();
        let ids: Value<'_> = ids.iter().map(ConversationId::as_str).collect();
        let selected = [owners, ids];
        let rows = self.maintenance_database().fetch_all(LIST_ITEMS, &selected).await?;
        if rows.is_empty() {
            return Ok(Vec::new());
        }
        let mut questions: HashMap<String, Vec<OpenQuestion>> = HashMap::new();
        for row in self.maintenance_database().fetch_all(OPEN_QUESTIONS, &selected).await? {
            let id: String = row.get("id")?;
            let kind = read_word(&row, "input_requests", "kind", &id, InputKind::from_name)?;
            let open = OpenQuestion { id: InputId::from_stored(id), kind };
            questions.entry(row.get("conversation_id")?).or_default().push(open);
        }
        let items = rows.iter().map(|row| {
            let conversation = read_conversation(row)?;
            let open_questions = questions.remove(conversation.id.as_str()).unwrap_or_default();
            Ok((UserId::from_stored(row.get("owner_id")?), ListItem { conversation, open_questions }))
        });
        items.collect()
    }
}
