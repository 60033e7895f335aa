//! The OpenAI API over HTTP.

use axum::http::Method;
use serde_json::{Value, json};

use super::rig::{Rig, text};

// A client reads the next page while `has_more` is true, so a list that ignores `after` never ends.
#[tokio::test(flavor = "multi_thread")]
async fn files_are_listed_in_pages() {
    let rig = Rig::new().await;
    let mut stored = Vec::new();
    for number in 0..5 {
        let path = format!("/v1/files?name={number}.json");
        stored.insert(0, rig.exchange(Method::POST, &path, &[], Some(json!(number))).await.json()["id"].clone());
    }
    let page = async |query: &str| rig.exchange(Method::GET, &format!("/v1/files?{query}"), &[], None).await;
    let (mut listed, mut after): (Vec<Value>, String) = (Vec::new(), String::new());
    loop {
        let found = page(&format!("limit=2{after}")).await.json();
        let ids = found["data"].as_array().unwrap().iter().map(|file| file["id"].clone());
        listed.extend(ids);
        assert_eq!(found["last_id"], *listed.last().unwrap(), "{found}");
        if found["has_more"] == false {
            break;
        }
        after = format!("&after={}", text(&found["last_id"]));
    }
    assert_eq!(listed, stored);
    let whole = page("").await.json();
    assert_eq!((whole["data"].as_array().unwrap().len(), &whole["has_more"]), (5, &json!(false)));
    let refused = page("after=file_1").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["param"]), (400, &json!("after")), "{}", refused.body);
}
