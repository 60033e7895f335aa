//! Uploaded files and their references in messages.

use capstan::domain::conversation::file::{FileOrigin, FilePurpose, FileText};
use capstan::domain::conversation::message::{BinaryContent, FilePart, Part, Role, ToolContent};
use capstan::domain::ids::{FileId, PartId, UserId};
use capstan::domain::run::change::Change;
use capstan::domain::tool::{ToolCallState, ToolOutcome};
use capstan::store::{
    AcceptOutcome, AcceptRun, AppendMessages, AppendOutcome, FILES_PIECE, FileCursor, FileFilter, NewFile, StoredOutcome,
    store_file,
};
use capstan::support::ids::UuidIds;

use super::fixture::{
    LONG, World, all_items, append, assistant, changes, completed, conversation, fresh, hello, key, page, planned_call, user,
};

contract! {
    ;
    a_file_is_its_owners_when_it_is_whole,
    files_are_listed_newest_first_and_counted,
    a_file_goes_with_the_last_conversation_that_has_it,
    unattached_file_is_deleted_by_age,
    a_message_without_its_files_is_not_stored,
    appended_files_count_for_the_limit,
    a_file_does_not_go_while_a_message_comes_to_have_it,
    file_of_an_outcome_goes_with_its_conversation,
    content_files_have_a_limit_of_their_own,
}

fn new(owner: &UserId) -> NewFile {
    NewFile {
        id: FileId::generate(&UuidIds),
        owner: owner.clone(),
        origin: FileOrigin::Upload,
        purpose: FilePurpose::default(),
        name: "größe \u{0}.txt".to_owned(),
        media_type: "text/plain".to_owned(),
        size: 5,
        sha256: "abc".to_owned(),
        text: Some(FileText { words: "h€l\u{0}o".to_owned(), is_cut: true }),
    }
}

async fn stored(world: &World, owner: &UserId) -> FileId {
    let new = new(owner);
    assert!(world.store.begin_file(&new, 100).await.unwrap());
    world.store.add_file_chunk(&new.id, 0, b"hello").await.unwrap();
    world.store.finish_file(owner, &new.id).await.unwrap().unwrap();
    new.id
}

/// Accepts a message with these files in a new conversation.
async fn said(world: &World, owner: &UserId, files: &[&FileId]) -> capstan::domain::ids::ConversationId {
    let id = conversation();
    let mut accept = hello(owner, &id);
    accept.parts.extend(parts(files));
    world.store.accept_run(accept, None).await.unwrap();
    id
}

async fn appended_files_count_for_the_limit(world: &World) {
    let owner = user();
    let files = [stored(world, &owner).await, stored(world, &owner).await, stored(world, &owner).await];
    let id = said(world, &owner, &[&files[0]]).await;
    world.commit_one(completed(&world.claim_one().await)).await.unwrap();
    let log = world.log(&owner, &id).await;
    let with = |files: &[&FileId]| AppendMessages { max_files: 2, ..append(&owner, &id, vec![(Role::User, parts(files))]) };
    let refused = fresh(world.store.append_messages(with(&[&files[1], &files[2]]), key(&owner, "k", "f")).await.unwrap());
    assert_eq!((refused, world.log(&owner, &id).await), (AppendOutcome::TooManyFiles { files: 3 }, log));
    let accepted = fresh(world.store.append_messages(with(&[&files[0], &files[1]]), key(&owner, "k", "f")).await.unwrap());
    assert!(matches!(accepted, AppendOutcome::Appended { .. }), "{accepted:?}");
    assert_eq!(world.store.remove_unused_files(0).await.unwrap(), 1, "messages refer to the others");
}

/// Returns parts that refer to the files.
fn parts(files: &[&FileId]) -> Vec<Part> {
    let part = |file: &&FileId| {
        let (media_type, file_id) = ("text/plain".to_owned(), Some(file.as_str().to_owned()));
        Part::File(FilePart {
            id: PartId::generate(&UuidIds),
            media_type,
            url: None,
            file_id,
            name: None,
            size: None,
            text_chars: None,
            text_bytes: None,
            text_limit: None,
            text: None,
        })
    };
    files.iter().map(part).collect()
}

async fn a_file_is_its_owners_when_it_is_whole(world: &World) {
    let (ada, ben) = (user(), user());
    let new = new(&ada);
    assert!(world.store.begin_file(&new, 1).await.unwrap());
    assert_eq!(world.store.file(&ada, &new.id).await.unwrap(), None, "the upload is incomplete");
    world.store.add_file_chunk(&new.id, 0, b"hel").await.unwrap();
    world.store.add_file_chunk(&new.id, 1, b"lo").await.unwrap();
    assert_eq!(world.store.file_chunk(&ada, &new.id, 0).await.unwrap(), None, "the upload is incomplete");
    assert_eq!(world.store.finish_file(&ben, &new.id).await.unwrap(), None);
    let file = world.store.finish_file(&ada, &new.id).await.unwrap().unwrap();
    assert_eq!((file.size, file.text_chars, file.text_bytes, file.text_cut), (5, Some(5), Some(9), true));
    assert!(!file.name.contains('\u{0}') && file.name.starts_with("größe"), "{}", file.name);
    assert_eq!(world.store.file(&ada, &new.id).await.unwrap().as_ref(), Some(&file));
    assert_eq!(world.store.file_chunk(&ada, &new.id, 1).await.unwrap().as_deref(), Some(&b"lo"[..]));
    assert_eq!(world.store.file_chunk(&ada, &new.id, 2).await.unwrap(), None);
    let attached = world.store.attached_files(&ada, &[FileId::generate(&UuidIds), new.id.clone()]).await.unwrap();
    assert_eq!(attached.len(), 1);
    assert_eq!(attached[0].file, file);
    assert!(attached[0].text.as_deref().unwrap().starts_with("h€l"));

    let of = async |owner: &UserId, sha256: &str, name: &str| world.store.file_of(owner, sha256, name).await.unwrap();
    assert_eq!(of(&ada, "abc", "größe \u{0}.txt").await, Some(file.clone()));
    assert_eq!(
        (of(&ada, "abc", "b.txt").await, of(&ada, "abd", &file.name).await, of(&ben, "abc", &file.name).await),
        (None, None, None)
    );

    assert_eq!(world.store.file(&ben, &new.id).await.unwrap(), None);
    assert_eq!(world.store.file_chunk(&ben, &new.id, 0).await.unwrap(), None);
    assert!(world.store.attached_files(&ben, std::slice::from_ref(&new.id)).await.unwrap().is_empty());
    assert!(!world.store.delete_file(&ben, &new.id).await.unwrap());
    assert!(world.store.delete_file(&ada, &new.id).await.unwrap());
    assert!(!world.store.delete_file(&ada, &new.id).await.unwrap());
    assert_eq!(world.store.file_bytes().await.unwrap(), 0);
}

async fn files_are_listed_newest_first_and_counted(world: &World) {
    let owner = user();
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(stored(world, &owner).await);
    }
    let ben = user();
    let other = stored(world, &ben).await;
    ids.sort();
    ids.reverse();
    let found =
        all_items(async |after| world.store.files(&owner, FileFilter::default(), &page::<FileCursor>(2, after)).await.unwrap())
            .await;
    let seen: Vec<_> = found.into_iter().map(|file| file.id).collect();
    assert_eq!(seen, ids);
    let batch = NewFile { purpose: FilePurpose::Batch, ..new(&ben) };
    assert!(world.store.begin_file(&batch, 100).await.unwrap());
    world.store.finish_file(&ben, &batch.id).await.unwrap().unwrap();
    let listed = async |owner, purpose| {
        let filter = FileFilter { purpose, is_oldest_first: true };
        let found = all_items(async |after| world.store.files(owner, filter, &page::<FileCursor>(2, after)).await.unwrap()).await;
        found.into_iter().map(|file| file.id).collect::<Vec<_>>()
    };
    ids.reverse();
    assert_eq!(listed(&owner, None).await, ids);
    assert_eq!(listed(&ben, Some(FilePurpose::Batch)).await, std::slice::from_ref(&batch.id));
    assert_eq!(listed(&ben, Some(FilePurpose::UserData)).await, [other]);
    assert!(!world.store.begin_file(&new(&owner), 5).await.unwrap(), "five is the limit");
    assert!(world.store.begin_file(&new(&owner), 6).await.unwrap());
    assert_eq!(world.store.file_bytes().await.unwrap(), 40);
}

async fn a_file_goes_with_the_last_conversation_that_has_it(world: &World) {
    let (ada, ben) = (user(), user());
    let (one, both, foreign) = (stored(world, &ada).await, stored(world, &ada).await, stored(world, &ben).await);
    let first = said(world, &ada, &[&one, &both]).await;
    let second = said(world, &ada, &[&both, &both]).await;

    world.store.delete_conversation(&ada, &first).await.unwrap().unwrap();
    assert_eq!(world.store.file(&ada, &one).await.unwrap(), None);
    assert!(world.store.file(&ada, &both).await.unwrap().is_some(), "the other conversation refers to it");
    world.store.delete_conversation(&ada, &second).await.unwrap().unwrap();
    assert_eq!(world.store.file(&ada, &both).await.unwrap(), None);
    assert!(world.store.file(&ben, &foreign).await.unwrap().is_some());
}

async fn unattached_file_is_deleted_by_age(world: &World) {
    let owner = user();
    let used = stored(world, &owner).await;
    said(world, &owner, &[&used]).await;
    for _ in 0..FILES_PIECE + 1 {
        stored(world, &owner).await;
    }
    // An interrupted upload.
    assert!(world.store.begin_file(&new(&owner), 100).await.unwrap());
    assert_eq!(world.store.count_unused_files(60_000).await.unwrap(), 0);
    assert_eq!(world.store.remove_unused_files(60_000).await.unwrap(), 0, "the files are recent");
    let piece = u64::try_from(FILES_PIECE).unwrap();
    assert_eq!(world.store.count_unused_files(0).await.unwrap(), piece + 2);
    for removed in [piece, 2, 0] {
        assert_eq!(world.store.remove_unused_files(0).await.unwrap(), removed);
    }
    assert!(world.store.file(&owner, &used).await.unwrap().is_some());
}

async fn a_message_without_its_files_is_not_stored(world: &World) {
    let (ada, ben) = (user(), user());
    let (own, foreign, half) = (stored(world, &ada).await, stored(world, &ben).await, new(&ada));
    assert!(world.store.begin_file(&half, 100).await.unwrap());
    let missing = FileId::generate(&UuidIds);
    let id = conversation();
    for file in [&foreign, &half.id, &missing] {
        for key in [None, key(&ada, "k", "f")] {
            let mut accept = hello(&ada, &id);
            accept.parts.extend(parts(&[&own, file]));
            let refused = fresh(world.store.accept_run(accept, key).await.unwrap());
            assert_eq!(refused, AcceptOutcome::NoFile { file_id: file.to_string() });
        }
    }
    assert_eq!(world.store.conversation(&ada, &id).await.unwrap(), None, "nothing is stored");
    assert_eq!(world.store.claim_runs(&world.node, 10, LONG).await.unwrap(), [], "no run is claimable");

    // In an idle conversation, and in a busy one, where the message queues.
    let more = [stored(world, &ada).await, stored(world, &ada).await, stored(world, &ada).await];
    let with = |files: &[&FileId]| {
        let mut accept = AcceptRun { max_files: 3, ..hello(&ada, &id) };
        accept.parts.extend(parts(files));
        accept
    };
    world.accept(with(&[&own, &more[0]])).await;
    let refused = fresh(world.store.accept_run(with(&[&more[1], &more[2]]), None).await.unwrap());
    assert_eq!(refused, AcceptOutcome::TooManyFiles { files: 4 });
    world.accept(with(&[&own, &own, &more[1]])).await;
    let refused = fresh(world.store.accept_run(with(&[&missing]), None).await.unwrap());
    assert_eq!(refused, AcceptOutcome::NoFile { file_id: missing.to_string() });
    assert_eq!(fresh(world.store.accept_run(with(&[&more[2]]), None).await.unwrap()), AcceptOutcome::TooManyFiles { files: 4 });
    // Superseded messages do not count.
    world.database.rows("UPDATE messages SET superseded_by = 'x'").await;
    world.accept(with(&[&more[1], &more[2]])).await;
}

async fn a_file_does_not_go_while_a_message_comes_to_have_it(world: &World) {
    let ada = user();
    for round in 0..40 {
        let file = stored(world, &ada).await;
        let first = said(world, &ada, &[&file]).await;
        let mut accept = hello(&ada, &conversation());
        accept.parts.extend(parts(&[&file]));
        let (deleted, accepted) = tokio::join!(world.store.delete_conversation(&ada, &first), world.store.accept_run(accept, None));
        deleted.unwrap();
        let is_there = world.store.file(&ada, &file).await.unwrap().is_some();
        match fresh(accepted.unwrap()) {
            AcceptOutcome::Run { .. } => assert!(is_there, "round {round}: the message has lost its file"),
            AcceptOutcome::NoFile { .. } => assert!(!is_there, "round {round}"),
            other => panic!("{other:?}"),
        }
        // By age, too.
        let file = stored(world, &ada).await;
        let mut accept = hello(&ada, &conversation());
        accept.parts.extend(parts(&[&file]));
        let (removed, accepted) = tokio::join!(world.store.remove_unused_files(0), world.store.accept_run(accept, None));
        removed.unwrap();
        let is_there = world.store.file(&ada, &file).await.unwrap().is_some();
        assert_eq!(matches!(fresh(accepted.unwrap()), AcceptOutcome::Run { .. }), is_there, "round {round}");
    }
}

async fn file_of_an_outcome_goes_with_its_conversation(world: &World) {
    let owner = user();
    let (kept, foreign, orphan) = (stored(world, &owner).await, stored(world, &user()).await, stored(world, &owner).await);
    let fence = world.claimed(&owner).await;
    let message = assistant(&fence, "calls");
    let call = planned_call(&fence, &message.id, 0);
    let add = vec![Change::AddMessage(message), Change::AddToolCalls(vec![call.clone()]), Change::StartCall(call.id.clone())];
    world.commit_one(changes(&fence, add)).await.unwrap();
    let reference = |id: &FileId| {
        let file_id = Some(id.as_str().to_owned());
        ToolContent::File(BinaryContent { media_type: "text/plain".to_owned(), file_id, ..BinaryContent::default() })
    };
    // Text of a tool is no reference.
    let words = ToolContent::text(format!("{{\"file_id\":\"{orphan}\"}} \u{0}"));
    let content = vec![reference(&kept), reference(&foreign), words];
    let outcome = ToolOutcome { state: ToolCallState::Done, content, is_error: false, duration_ms: 1 };
    world.commit_one(changes(&fence, vec![Change::FinishCall(call.id.clone(), outcome)])).await.unwrap();
    assert_eq!(world.store.remove_unused_files(0).await.unwrap(), 2, "the message with the result is not stored yet");
    assert!(world.store.file(&owner, &kept).await.unwrap().is_some());
    assert_eq!(world.store.file(&owner, &orphan).await.unwrap(), None);
    world.commit_one(completed(&fence)).await.unwrap();
    world.store.delete_conversation(&owner, &fence.conversation_id).await.unwrap().unwrap();
    assert_eq!(world.store.file(&owner, &kept).await.unwrap(), None);
}

async fn content_files_have_a_limit_of_their_own(world: &World) {
    let owner = user();
    let content = || NewFile { origin: FileOrigin::Content, ..new(&owner) };
    let StoredOutcome::Stored(file) = store_file(world.store.records(), &content(), b"hello", 1).await.unwrap() else {
        panic!("there is room for one")
    };
    assert_eq!(file.origin, FileOrigin::Content);
    assert_eq!(store_file(world.store.records(), &content(), b"hello", 1).await.unwrap(), StoredOutcome::Full);
    assert!(world.store.begin_file(&new(&owner), 1).await.unwrap(), "uploads count separately");
    let id = conversation();
    let accept = AcceptRun { max_files: 0, ..hello(&owner, &id) };
    let accept = AcceptRun { parts: parts(&[&file.id]), ..accept };
    let accepted = fresh(world.store.accept_run(accept, None).await.unwrap());
    assert!(!matches!(accepted, AcceptOutcome::TooManyFiles { .. } | AcceptOutcome::NoFile { .. }), "{accepted:?}");
}
