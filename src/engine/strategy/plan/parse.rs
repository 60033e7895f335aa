//! Parses a planner's answer: steps in brackets, or else JSON.

use serde_json::Value;

use crate::domain::run::PlanStep;
use crate::engine::calls::json_repair;
use crate::support::text::prefix_chars;

/// The longest step, in characters.
const STEP_CHARS: usize = 2_000;
/// The longest plan, and the longest call in it, in characters: a confused model begins thousands of calls and ends none.
const PLAN_CHARS: usize = 32_000;
const CALL_CHARS: usize = 8_000;

#[derive(Debug, PartialEq)]
pub(super) enum PlanAnswer {
    Steps(Vec<PlanStep>),
    /// No tools are needed; this text is the answer.
    Answer(String),
}

pub(super) fn plan(text: &str) -> Option<PlanAnswer> {
    bracketed(text).or_else(|| json(text))
}

fn step(server: Option<&str>, description: &str) -> Option<PlanStep> {
    let description = prefix_chars(description.trim(), STEP_CHARS).trim();
    let server = server.map(str::trim).filter(|server| !server.is_empty()).map(|server| prefix_chars(server, 64).to_owned());
    (!description.is_empty()).then(|| PlanStep { server, description: description.to_owned(), call: None, state: None })
}

/// Parses `[step("files", "move a.png to b.png")]` and so on, up to `[done()]`; or `[answer("...")]`. A tool call,
/// `[files.move_file(source="a.png")]`, becomes a step of its server. A bracket may contain several calls, separated by commas.
fn bracketed(text: &str) -> Option<PlanAnswer> {
    let mut steps = Vec::new();
    let (mut rest, mut is_within) = (prefix_chars(text, PLAN_CHARS), false);
    loop {
        if !is_within {
            let Some(at) = rest.find('[') else { break };
            rest = &rest[at + 1..];
        }
        // If no quote ends an argument properly, the first possible one counts.
        let Some((call, after)) = call(rest, ends_argument).or_else(|| call(rest, |_| true)) else {
            is_within = false;
            continue;
        };
        is_within = matches!(after, CallTail::Call(_));
        rest = match after {
            CallTail::Call(rest) | CallTail::Bracket(rest) => rest,
        };
        let argument = |at: usize| call.arguments.get(at).map(String::as_str);
        match call.name {
            "done" | "plan.done" => break,
            "answer" if steps.is_empty() => {
                return argument(0).filter(|field| !field.trim().is_empty()).map(|field| PlanAnswer::Answer(field.to_owned()));
            }
            "step" | "plan.step" => steps.extend(match argument(1) {
                Some(description) => step(argument(0), description),
                None => step(None, argument(0).unwrap_or_default()),
            }),
            name => {
                let server = name.split_once("__").or_else(|| name.split_once('.')).map(|(server, _)| server);
                steps.extend(step(server, &format!("{name}({})", call.written)));
            }
        }
    }
    (!steps.is_empty()).then_some(PlanAnswer::Steps(steps))
}

struct Call<'t> {
    name: &'t str,
    arguments: Vec<String>,
    /// All arguments, as written.
    written: &'t str,
}

enum CallTail<'t> {
    /// Another call in the same bracket.
    Call(&'t str),
    /// The text after the bracket.
    Bracket(&'t str),
}

/// Splits a call into its name and the text after its `(`.
fn opened(text: &str) -> Option<(&str, &str)> {
    let end = text.find(|c: char| !c.is_ascii_alphanumeric() && !"_.-".contains(c)).filter(|end| *end > 0)?;
    Some((&text[..end], text[end..].strip_prefix('(')?))
}

/// Returns the text after a `)`, if that ends a call.
fn after_end(text: &str) -> Option<CallTail<'_>> {
    let text = text.trim_start();
    if let Some(rest) = text.strip_prefix(']') {
        return Some(CallTail::Bracket(rest));
    }
    let next = text.strip_prefix(',')?.trim_start();
    opened(next).map(|_| CallTail::Call(next))
}

/// Returns whether a quote ends its argument. Planners nest quotes without escaping them.
fn ends_argument(after: &str) -> bool {
    let after = after.trim_start();
    if let Some(rest) = after.strip_prefix(')') {
        return after_end(rest).is_some();
    }
    let Some(next) = after.strip_prefix(',').map(str::trim_start) else { return false };
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let named = next.trim_start_matches(is_name).trim_start().starts_with('=');
    let is_value = next.starts_with(|c: char| "\"'[{-".contains(c) || c.is_ascii_digit());
    named || is_value || ["true", "false", "null", "True", "False", "None"].iter().any(|word| next.starts_with(word))
}

/// Parses a call up to its `)`.
fn call(text: &str, ends_argument: impl Fn(&str) -> bool) -> Option<(Call<'_>, CallTail<'_>)> {
    let (name, inner) = opened(text)?;
    let mut arguments = vec![String::new()];
    let (mut quote, mut is_escaped) = (None, false);
    for (at, c) in inner.char_indices().take(CALL_CHARS) {
        let last = arguments.last_mut()?;
        match (quote, c) {
            _ if is_escaped => {
                last.push(if c == 'n' { '\n' } else { c });
                is_escaped = false;
            }
            (Some(_), '\\') => is_escaped = true,
            (Some(open), _) if c == open && ends_argument(&inner[at + 1..]) => quote = None,
            (Some(_), _) => last.push(c),
            (None, '"' | '\'') if last.trim().is_empty() || last.ends_with('=') => quote = Some(c),
            (None, ',') => arguments.push(String::new()),
            (None, ')') => match after_end(&inner[at + 1..]) {
                None => last.push(c),
                Some(after) => {
                    let arguments = arguments.into_iter().map(|argument| argument.trim().to_owned());
                    let arguments = arguments.filter(|argument| !argument.is_empty()).collect();
                    return Some((Call { name, arguments, written: &inner[..at] }, after));
                }
            },
            (None, _) => last.push(c),
        }
    }
    None
}

/// Parses `{"steps": [{"server": "files", "description": "..."}]}`, or `{"needs_tools": false, "direct_response": "..."}`.
fn json(text: &str) -> Option<PlanAnswer> {
    let object = text.get(text.find('{')?..=text.rfind('}')?)?;
    let value: Value = serde_json::from_str(object).ok().or_else(|| json_repair::repair(object).map(|mended| mended.value))?;
    let field = |value: &Value, names: [&str; 3]| names.into_iter().find_map(|name| value.get(name)?.as_str().map(str::to_owned));
    let steps: Vec<PlanStep> = value
        .get("steps")
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
        .filter_map(|one| {
            let server = field(one, ["server", "expected_server", "server_hint"]);
            step(
                server.as_deref(),
                one.as_str().map(str::to_owned).or_else(|| field(one, ["description", "step", "text"]))?.as_str(),
            )
        })
        .collect();
    if value.get("needs_tools") != Some(&Value::Bool(false)) && !steps.is_empty() {
        return Some(PlanAnswer::Steps(steps));
    }
    let answer = field(&value, ["direct_response", "response", "answer"]).filter(|answer| !answer.trim().is_empty())?;
    Some(PlanAnswer::Answer(answer))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn steps(of: &[(Option<&str>, &str)]) -> Option<PlanAnswer> {
        Some(PlanAnswer::Steps(of.iter().filter_map(|(server, description)| step(*server, description)).collect()))
    }

    #[rstest]
    #[case("[step(\"ocr\", \"read a.png\")]\n[step('files', 'rename it, as step 1 says')]\n[done()]\n[step(\"x\", \"y\")]",
        &[(Some("ocr"), "read a.png"), (Some("files"), "rename it, as step 1 says")])]
    #[case("Sure!\n1. [step(\"say \\\"hi\\\" (now)\")]", &[(None, "say \"hi\" (now)")])]
    #[case("[files.move_file(source=\"a\", to=\"b\")] [done()]", &[(Some("files"), "files.move_file(source=\"a\", to=\"b\")")])]
    #[case("[files__list(path=x)]", &[(Some("files"), "files__list(path=x)")])]
    #[case(r#"[step("ocr", "read a.png"), step("files","rename it")]"#, &[(Some("ocr"), "read a.png"), (Some("files"), "rename it")])]
    #[case(r#"[ocr.extract(path="a", deep=f(1)), files.move(source="a"), done()] [step("x", "y")]"#,
        &[(Some("ocr"), "ocr.extract(path=\"a\", deep=f(1))"), (Some("files"), "files.move(source=\"a\")")])]
    #[case(r#"[step("files","rename "a, b.png" to c")] [step("x", "take "a", then (b)")]"#,
        &[(Some("files"), r#"rename "a, b.png" to c"#), (Some("x"), r#"take "a", then (b)"#)])]
    #[case(r#"[files.cut(path="a", at=3, "b", 5, True)]"#, &[(Some("files"), r#"files.cut(path="a", at=3, "b", 5, True)"#)])]
    #[case(r#"[step("files", move a.png to b.png)]"#, &[(Some("files"), "move a.png to b.png")])]
    #[case(r#"```json
{"needs_tools": true, "direct_response": null, "steps": [{"number": 1, "server": "ocr", "description": "read"}, {"description": "move"}]}
```"#, &[(Some("ocr"), "read"), (None, "move")])]
    #[case("{'steps': ['read', 'move',]}", &[(None, "read"), (None, "move")])]
    fn steps_are_read_in_either_form(#[case] text: &str, #[case] expected: &[(Option<&str>, &str)]) {
        assert_eq!(plan(text), steps(expected), "{text}");
    }

    #[rstest]
    #[case("[answer(\"Paris, of course.\")]", Some("Paris, of course."))]
    #[case(r#"[answer("The word "tea", says he, is old.")]"#, Some(r#"The word "tea", says he, is old."#))]
    #[case(r#"{"needs_tools": false, "direct_response": "Paris.", "steps": []}"#, Some("Paris."))]
    #[case("Paris.", None)]
    #[case("", None)]
    #[case("[step()] [done()]", None)]
    #[case("[1, 2] [step(\"never closed", None)]
    #[case("} {", None)]
    #[case("[]({})", None)]
    fn text_without_plan_is_no_plan(#[case] text: &str, #[case] answer: Option<&str>) {
        assert_eq!(plan(text), answer.map(|answer| PlanAnswer::Answer(answer.to_owned())), "{text}");
    }

    #[test]
    fn a_planner_that_has_lost_its_way_is_read_in_time() {
        let began = std::time::Instant::now();
        assert_eq!(plan(&"[step(".repeat(200_000)), None);
        // Without a bound, parsing would take hours.
        assert!(began.elapsed() < std::time::Duration::from_secs(30), "{:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[\\[\\](){}\"'\\\\,a-c\u{e9}.=step\n ]{0,60}") {
            let _ = plan(&text);
        }
    }
}
