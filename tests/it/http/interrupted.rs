//! Clients that disconnect while their request is processed.

use std::future::Future;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use capstan::domain::ids::{ConversationId, RunId};
use capstan::live::{Subscription, Tail};
use capstan::service::{ConversationPatch, StartRun};
use capstan::support::ids::UuidIds;
use tokio::sync::Notify;

use super::rig::{Rig, SOON};
use support::text_request;

struct Woken(Notify);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.notify_one();
    }
}

/// Drops a request between its commit and the next poll of its future.
async fn cut<T>(request: impl Future<Output = T>, committed: impl AsyncFn() -> bool) {
    let woken = Arc::new(Woken(Notify::new()));
    let waker = Waker::from(Arc::clone(&woken));
    let mut request = Box::pin(request);
    while request.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
        tokio::time::timeout(SOON, woken.0.notified()).await.expect("the request goes on");
        if committed().await {
            return;
        }
    }
    panic!("the request was answered before it was seen to be committed");
}

async fn heard(tail: &Subscription, kind: &str) {
    let listening = async {
        loop {
            match tail.next().await {
                Tail::Events(events) if events.iter().any(|event| event.kind == kind) => return,
                Tail::Deleted if kind == "deleted" => return,
                Tail::Events(_) => {}
                other @ (Tail::Reread | Tail::Deleted | Tail::Closed) => panic!("{other:?}"),
            }
        }
    };
    tokio::time::timeout(SOON, listening).await.unwrap_or_else(|_| panic!("{kind} was committed and nobody heard of it"));
}

fn hello(conversation: &ConversationId) -> StartRun {
    StartRun { conversation_id: Some(conversation.clone()), ..text_request("hello", &UuidIds) }
}

/// On SQLite the log is not polled: an event that its writer does not publish is never delivered.
#[tokio::test]
async fn committed_run_is_signalled_after_client_disconnect() {
    let rig = Rig::new().await;
    let (service, store, local) = (&rig.service, &rig.store, &rig.local);
    let id = ConversationId::generate(&UuidIds);
    let tail = rig.hub.subscribe(&id);

    let exists = async || store.conversation(&local.user_id, &id).await.unwrap().is_some();
    cut(service.start_run(local, hello(&id), None), exists).await;
    heard(&tail, "run.queued").await;

    let renamed = async || store.conversation(&local.user_id, &id).await.unwrap().is_some_and(|found| found.title == "New");
    let rename = ConversationPatch { title: Some("New".to_owned()), ..ConversationPatch::default() };
    cut(service.change_conversation(local, &id, rename), renamed).await;
    heard(&tail, "conversation.updated").await;

    let run = store.active_run(&local.user_id, &id).await.unwrap().unwrap().id;
    let over = async |run: &RunId| store.run(&local.user_id, run).await.unwrap().unwrap().run.status.is_terminal();
    cut(service.cancel_run(local, &run, None), async || over(&run).await).await;
    heard(&tail, "run.cancelled").await;

    cut(service.delete_conversation(local, &id), async || !exists().await).await;
    heard(&tail, "deleted").await;
}
