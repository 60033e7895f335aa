//! Invariants of the stored rows after every test, with or without killed processes. They are read straight from the database.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde_json::Value;

use super::database::Database;

/// The calls of conversations that are not hidden.
const SHOWN_CALLS: &str = "SELECT t.id FROM tool_calls t JOIN runs r ON r.id = t.run_id
    JOIN conversations c ON c.id = r.conversation_id WHERE NOT c.hidden";

/// Panics with all that is wrong.
pub async fn assert_sound(database: &Database) {
    let mut wrong = Vec::new();
    audited(database, &mut wrong).await;
    rest(database, wrong).await;
}

/// The same without the audit of tool calls, which a process of an earlier version does not write.
pub async fn assert_sound_but_for_the_audit(database: &Database) {
    rest(database, Vec::new()).await;
}

async fn rest(database: &Database, mut wrong: Vec<String>) {
    runs(database, &mut wrong).await;
    calls(database, &mut wrong).await;
    logs(database, &mut wrong).await;
    assert!(wrong.is_empty(), "the rows are not sound:\n{}", wrong.join("\n"));
}

async fn runs(database: &Database, wrong: &mut Vec<String>) {
    let unfinished = "SELECT id, status FROM runs WHERE status NOT IN ('completed', 'failed', 'cancelled') \
                      OR finished_at IS NULL OR claimable_at IS NOT NULL OR active";
    for row in database.rows(unfinished).await {
        wrong.push(format!("run not ended, or still active or claimable: {row:?}"));
    }
    for row in database.rows("SELECT run_id, node_id FROM run_leases").await {
        wrong.push(format!("lease left: {row:?}"));
    }
    let endings = "SELECT runs.id, runs.status, CAST(count(events.seq) AS text), min(events.kind) FROM runs LEFT JOIN events \
                   ON events.run_id = runs.id AND events.conversation_id = runs.conversation_id \
                   AND events.kind IN ('run.completed', 'run.failed', 'run.cancelled') GROUP BY runs.id, runs.status";
    for row in database.rows(endings).await {
        let status = row[1].clone().unwrap();
        if row[2].as_deref() != Some("1") || row[3] != Some(format!("run.{status}")) {
            wrong.push(format!("run without exactly its one terminal event: {row:?}"));
        }
    }
    for row in database.rows("SELECT id, state FROM input_requests WHERE state NOT IN ('applied', 'expired', 'cancelled')").await {
        wrong.push(format!("question left open: {row:?}"));
    }
    let begun = "SELECT s.run_id, s.kind, s.status FROM run_steps s JOIN runs r ON r.id = s.run_id \
                 WHERE r.finished_at IS NOT NULL AND s.status = 'started'";
    for row in database.rows(begun).await {
        wrong.push(format!("step of a run that has ended, and has not itself: {row:?}"));
    }
    let held = "SELECT run_id, CAST(held_tokens AS text), CAST(held_cost AS text) FROM spending \
                WHERE held_epoch IS NOT NULL OR held_tokens <> 0 OR held_cost <> 0";
    for row in database.rows(held).await {
        wrong.push(format!("budget that is held for nothing: {row:?}"));
    }
    let status = "SELECT id, status FROM conversations WHERE status NOT IN ('idle', 'failed')";
    for row in database.rows(status).await {
        wrong.push(format!("conversation not at rest: {row:?}"));
    }
}

async fn audited(database: &Database, wrong: &mut Vec<String>) {
    let ends = "SELECT c.id, c.state, a.outcome FROM tool_calls c LEFT JOIN tool_audit a ON a.call_id = c.id AND a.run_id = c.run_id \
                AND a.owner_id = c.owner_id AND a.arguments_hash = c.arguments_hash AND a.name = c.name \
                WHERE c.key IS NULL OR c.started_at IS NOT NULL";
    for row in database.rows(ends).await {
        let word = match row[1].as_deref() {
            Some("done") => "success",
            Some("failed") => "error",
            Some("cancelled") => "skipped",
            Some(other) => other,
            None => "",
        };
        if row[2].as_deref() != Some(word) {
            wrong.push(format!("call whose row of the audit is missing, or says something else: {row:?}"));
        }
    }
}

async fn calls(database: &Database, wrong: &mut Vec<String>) {
    let open = "SELECT id, state, name FROM tool_calls \
                WHERE state NOT IN ('done', 'failed', 'denied', 'cancelled', 'unknown') OR outcome IS NULL";
    for row in database.rows(open).await {
        wrong.push(format!("call without outcome: {row:?}"));
    }
    // Per conversation in order: each call of an assistant message is answered once, before anything else is said.
    let messages = database.rows("SELECT conversation_id, id, body FROM messages ORDER BY conversation_id, position").await;
    // A hidden conversation holds the history that a client sent. Its calls were executed elsewhere.
    let hidden: HashSet<String> = database
        .rows("SELECT id FROM conversations WHERE hidden")
        .await
        .into_iter()
        .map(|mut row| row.remove(0).unwrap())
        .collect();
    let mut open: HashMap<String, Vec<String>> = HashMap::new();
    let mut answered = HashSet::new();
    for row in messages {
        let conversation = row[0].clone().unwrap();
        let body: Value = serde_json::from_str(row[2].as_deref().unwrap()).unwrap();
        let waiting = open.entry(conversation).or_default();
        let parts = body["parts"].as_array().cloned().unwrap_or_default();
        for part in &parts {
            if part["type"] == "tool_result" {
                let call = part["call_id"].as_str().unwrap().to_owned();
                if waiting.first() != Some(&call) {
                    wrong.push(format!("result of {call} in {:?} is not the next one: {waiting:?}", row[1]));
                }
                waiting.retain(|open| *open != call);
                if !hidden.contains(row[0].as_deref().unwrap()) && !answered.insert(call.clone()) {
                    wrong.push(format!("call {call} has two results"));
                }
            }
        }
        if body["role"] == "assistant" {
            if !waiting.is_empty() {
                wrong.push(format!("message {:?} comes before the results of {waiting:?}", row[1]));
            }
            let calls = parts.iter().filter(|part| part["type"] == "tool_call");
            waiting.extend(calls.map(|part| part["call_id"].as_str().unwrap().to_owned()));
        }
    }
    for (conversation, waiting) in open {
        if !waiting.is_empty() {
            wrong.push(format!("calls {waiting:?} in {conversation} have no result"));
        }
    }
    let stored: HashSet<String> = database.rows(SHOWN_CALLS).await.into_iter().map(|mut row| row.remove(0).unwrap()).collect();
    for call in stored.symmetric_difference(&answered) {
        wrong.push(format!("call {call} has a row or a result, but not both"));
    }
}

/// One stored event.
pub struct Entry {
    pub seq: i64,
    pub run: Option<String>,
    pub attempt: i64,
    pub kind: String,
    pub data: Value,
}

async fn logs(database: &Database, wrong: &mut Vec<String>) {
    let heads = database.rows("SELECT conversation_id, CAST(last_seq AS text) FROM conversation_heads").await;
    let heads: HashMap<String, i64> =
        heads.into_iter().map(|row| (row[0].clone().unwrap(), row[1].as_deref().unwrap().parse().unwrap())).collect();
    let rows = database
        .rows(
            "SELECT conversation_id, CAST(seq AS text), run_id, CAST(attempt AS text), kind, data FROM events \
             ORDER BY conversation_id, events.seq",
        )
        .await;
    let mut logs: BTreeMap<String, Vec<Entry>> = BTreeMap::new();
    for row in rows {
        let entry = Entry {
            seq: row[1].as_deref().unwrap().parse().unwrap(),
            run: row[2].clone(),
            attempt: row[3].as_deref().unwrap().parse().unwrap(),
            kind: row[4].clone().unwrap(),
            data: serde_json::from_str(row[5].as_deref().unwrap()).unwrap(),
        };
        logs.entry(row[0].clone().unwrap()).or_default().push(entry);
    }
    for (conversation, log) in logs {
        let mut expected = 1;
        for entry in &log {
            // Deltas that were folded stand in the last of them, which says where they began.
            let folded = if entry.kind == "part.delta" { entry.data["since"].as_i64() } else { None };
            if folded.unwrap_or(entry.seq) != expected || entry.seq < expected {
                wrong.push(format!("gap in {conversation} before {}", entry.seq));
                break;
            }
            expected = entry.seq + 1;
        }
        if heads.get(&conversation) != log.last().map(|entry| &entry.seq) {
            wrong.push(format!("head of {conversation} is {:?}, not its last seq", heads.get(&conversation)));
        }
        let mut runs: BTreeMap<&str, Vec<&Entry>> = BTreeMap::new();
        for entry in &log {
            if let Some(run) = &entry.run {
                runs.entry(run).or_default().push(entry);
            }
        }
        for (run, entries) in runs {
            if let Err(problem) = follow(&entries) {
                wrong.push(format!("log of {run}: {problem}"));
            }
        }
    }
}

/// Reads the log of one run as a client does and says where it contradicts itself.
pub fn follow(entries: &[&Entry]) -> Result<(), String> {
    let mut attempt = 0;
    let mut ended = false;
    let mut parts: HashMap<String, (String, String)> = HashMap::new();
    let mut messages: HashSet<String> = HashSet::new();
    // The calls that were handed to their tools, and when last: the attempt, and how often the run had been taken up.
    let mut started: HashMap<String, (i64, usize)> = HashMap::new();
    let mut outcomes: HashSet<String> = HashSet::new();
    // Calls of the answer that a retry begins with: their start stands in the run before.
    let mut taken_over: HashSet<String> = HashSet::new();
    let mut taken_up = 0;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    for Entry { seq, attempt: by, kind, data, .. } in entries.iter().copied() {
        if ended {
            return Err(format!("{kind} at {seq} after the end"));
        }
        // A message may join from outside at any time; it is not written by an attempt.
        if kind != "message.created" {
            if *by < attempt {
                return Err(format!("{kind} at {seq} by attempt {by}, after attempt {attempt} had begun"));
            }
            attempt = *by;
        }
        match kind.as_str() {
            "message.started" => {
                messages.insert(text(&data["message_id"]));
            }
            "part.started" => {
                if !messages.contains(&text(&data["message_id"])) {
                    return Err(format!("part at {seq} of a message that was not started"));
                }
                parts.insert(text(&data["part_id"]), (text(&data["kind"]), String::new()));
            }
            "part.delta" => match parts.get_mut(&text(&data["part_id"])) {
                Some((_, so_far)) => so_far.push_str(data["delta"].as_str().unwrap_or_default()),
                None => return Err(format!("delta at {seq} of no open part")),
            },
            "part.completed" => {
                let Some((part_kind, so_far)) = parts.remove(&text(&data["part"]["id"])) else {
                    return Err(format!("part.completed at {seq} of no open part"));
                };
                let whole = match part_kind.as_str() {
                    "tool_call" => {
                        // Deltas are the model's own letters, in which U+0000 is an escape that has come in any number of pieces.
                        let so_far = capstan::support::text::storable_json(so_far.clone());
                        serde_json::from_str(&so_far).unwrap_or(Value::Null) == data["part"]["arguments"]
                            || data["part"]["arguments"].get("_raw").is_some()
                            || so_far.is_empty()
                    }
                    // These arrive complete.
                    "image" | "source" => so_far.is_empty(),
                    _ => data["part"]["text"] == so_far,
                };
                if !whole {
                    return Err(format!("part at {seq} is not its deltas {so_far:?}: {data}"));
                }
            }
            "message.completed" => {
                if *by == 0 {
                    let parts = data["message"]["parts"].as_array().into_iter().flatten();
                    taken_over.extend(parts.map(|part| text(&part["call_id"])));
                }
                let role = text(&data["message"]["role"]);
                if !messages.remove(&text(&data["message"]["id"])) && role == "assistant" {
                    return Err(format!("message.completed at {seq} of a message that was not started"));
                }
            }
            "step.reset" => {
                parts.clear();
                messages.clear();
            }
            "run.resumed" => taken_up += 1,
            // I7: a call starts before its outcome. It starts again only after an attempt with unknown progress.
            "tool.started" => {
                let call = text(&data["call_id"]);
                if outcomes.contains(&call) {
                    return Err(format!("call {call} was started at {seq}, after its outcome"));
                }
                if started.insert(call.clone(), (attempt, taken_up)) == Some((attempt, taken_up)) {
                    return Err(format!("call {call} was started twice by one attempt, again at {seq}"));
                }
            }
            "tool.completed" | "tool.outcome_unknown" => {
                let call = text(&data["call_id"]);
                // A call that is not allowed has an outcome without a start.
                if kind == "tool.outcome_unknown" && !started.contains_key(&call) && !taken_over.contains(&call) {
                    return Err(format!("call {call} was not started, and is unknown at {seq}"));
                }
                if !outcomes.insert(call.clone()) {
                    return Err(format!("call {call} has a second outcome at {seq}"));
                }
            }
            "run.completed" | "run.failed" | "run.cancelled" => ended = true,
            _ => {}
        }
    }
    if !parts.is_empty() || !messages.is_empty() {
        return Err(format!("left open: parts {parts:?}, messages {messages:?}"));
    }
    if let Some(call) = started.keys().find(|call| ended && !outcomes.contains(*call)) {
        return Err(format!("call {call} was started and has no outcome"));
    }
    Ok(())
}
