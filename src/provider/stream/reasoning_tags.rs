//! Separates reasoning from text: models write it first, between tags such as `<think>`, and some servers leave it there.
//!
//! Owns the text that is held back until its kind is known. Must not know a dialect.

const MOST_BLANKS: usize = 256;
/// The most bytes of an answer that are watched for a closing tag without an opening one: more than the reasoning of any model.
const MOST_WATCHED: usize = 1024 * 1024;

pub(in crate::provider) type TagPair = [String; 2];

/// An opening tag counts only where the text begins with it, after blanks. A later one is a part of the answer, perhaps of a program
/// in it. A closing tag that no tag has opened shows that all before it was reasoning, because the prompt had opened it.
#[derive(Debug)]
pub(in crate::provider) struct ReasoningTags {
    marks: Vec<TagPair>,
    state: State,
    /// The tags around the reasoning, once one of them has opened it.
    opened: Option<usize>,
    /// Text that may be the beginning of a tag, and blanks around it.
    held: String,
    /// All reasoning so far, of a text that begins with it because the prompt had the opening tag.
    implied: Option<String>,
    /// All of the answer so far, while it may turn out to have been reasoning.
    watched: Option<String>,
    /// Whether the server marks the text as reasoning.
    is_told: bool,
    /// Reasoning from a field of its own, which the text may repeat between its tags.
    elsewhere: String,
    /// Reasoning of the text that may be a repetition.
    again: String,
    raw: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only blanks came.
    Before,
    /// Within the reasoning; `true` once some of it was emitted.
    Within(bool),
    /// After the reasoning, before the first word of the answer.
    After,
    Answer,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::provider) struct SplitText {
    pub(in crate::provider) reasoning: String,
    pub(in crate::provider) text: String,
    /// Bytes of earlier answer text that were reasoning, with which the reasoning begins.
    pub(in crate::provider) taken_back: usize,
}

impl ReasoningTags {
    fn new(marks: &[TagPair], state: State) -> Self {
        Self {
            marks: marks.iter().filter(|[open, close]| !open.is_empty() && !close.is_empty()).cloned().collect(),
            state,
            opened: None,
            held: String::new(),
            implied: None,
            watched: None,
            is_told: false,
            elsewhere: String::new(),
            again: String::new(),
            raw: None,
        }
    }

    /// Returns a reader of an answer whose text may begin with reasoning.
    pub(in crate::provider) fn looking(marks: &[TagPair]) -> Self {
        Self { watched: Some(String::new()), ..Self::new(marks, State::Before) }
    }

    /// Returns a reader of an answer whose text begins within reasoning, because the prompt ends with the opening tag.
    pub(in crate::provider) fn within(marks: &[TagPair]) -> Self {
        Self { implied: Some(String::new()), ..Self::looking(marks) }
    }

    /// Returns a reader that takes all text for the answer, except reasoning that the server marks.
    pub(in crate::provider) fn blind(marks: &[TagPair]) -> Self {
        Self::new(marks, State::Answer)
    }

    /// Notes reasoning that came in a field of its own. The text may repeat it between its tags, but did not begin within it.
    pub(in crate::provider) fn came_elsewhere(&mut self, reasoning: &str) {
        match self.state {
            State::Before | State::Within(_) => self.elsewhere.push_str(reasoning),
            State::After | State::Answer => {}
        }
        if self.state == State::Before {
            self.implied = None;
        }
        self.watched = None;
    }

    /// Settles the text so far, as other content follows. Returns the text that was held.
    pub(in crate::provider) fn settle(&mut self) -> String {
        self.watched = None;
        if self.state == State::Answer { std::mem::take(&mut self.held) } else { String::new() }
    }

    pub(in crate::provider) fn is_over(&self) -> bool {
        self.state == State::Answer && self.watched.is_none() && self.held.is_empty()
    }

    pub(in crate::provider) fn feed(&mut self, piece: &str) -> SplitText {
        let mut told = SplitText::default();
        if piece.is_empty() {
            return told;
        }
        if self.is_told && !piece.trim().is_empty() {
            self.is_told = false;
            told.reasoning = self.leave_unmarked(piece);
        }
        let more = self.feed_marked(piece);
        told.reasoning.push_str(&more.reasoning);
        told.text.push_str(&more.text);
        told.taken_back = more.taken_back;
        told
    }

    /// Takes in text that the server marks as reasoning. It may also stand between tags, and the closing one may come with the answer.
    pub(in crate::provider) fn feed_thought(&mut self, piece: &str) -> SplitText {
        self.implied = None;
        let held = self.settle();
        if let State::After | State::Answer = self.state {
            (self.state, self.opened) = (State::Before, None);
        }
        let mut told = self.split(piece);
        match (self.state, self.opened) {
            (State::Answer, None) => told = SplitText { reasoning: told.text, ..SplitText::default() },
            (State::Before | State::Within(_), _) => self.is_told = true,
            (State::After | State::Answer, _) => {}
        }
        told.text.insert_str(0, &held);
        told
    }

    /// Ends marked reasoning, unless this piece of the answer has its closing tag. Returns the reasoning that was held.
    fn leave_unmarked(&mut self, piece: &str) -> String {
        let words = format!("{}{piece}", self.held);
        let words = words.trim_start();
        let closes = self.opened.is_some() && self.closers().any(|close| words.starts_with(close) || close.starts_with(words));
        if closes {
            return String::new();
        }
        self.state = State::After;
        std::mem::take(&mut self.held).trim_end().to_owned()
    }

    /// Holds back text while it may repeat reasoning of another field.
    fn feed_marked(&mut self, piece: &str) -> SplitText {
        if self.elsewhere.is_empty() {
            return self.split(piece);
        }
        if self.state == State::Before && self.raw.is_none() {
            self.raw = Some(self.held.clone());
        }
        if let (State::Before | State::Within(_), Some(raw)) = (self.state, &mut self.raw) {
            raw.push_str(piece);
        }
        let mut told = self.split(piece);
        self.again.push_str(&std::mem::take(&mut told.reasoning));
        if let State::After | State::Answer = self.state {
            let again = std::mem::take(&mut self.again);
            if !repeats(&again, &self.elsewhere) {
                told.reasoning = again;
            }
            (self.elsewhere, self.raw) = (String::new(), None);
        }
        told
    }

    /// Returns the tags that can close the reasoning: all if no tag has opened it.
    fn closers(&self) -> impl Iterator<Item = &str> {
        let counts = |at: usize| self.opened.is_none_or(|opened| opened == at);
        self.marks.iter().enumerate().filter(move |(at, _)| counts(*at)).map(|(_, [_, close])| close.as_str())
    }

    fn closing(&self, text: &str) -> Option<(usize, usize)> {
        self.closers().filter_map(|close| text.find(close).map(|at| (at, at + close.len()))).min()
    }

    fn split(&mut self, piece: &str) -> SplitText {
        let mut told = SplitText::default();
        let mut rest = std::mem::take(&mut self.held) + piece;
        loop {
            match self.state {
                State::Before => {
                    let words = rest.trim_start();
                    let opened = self.marks.iter().position(|[open, _]| words.starts_with(open.as_str()));
                    if let Some(at) = opened {
                        rest = words[self.marks[at][0].len()..].to_owned();
                        (self.state, self.opened) = (State::Within(false), opened);
                        (self.implied, self.watched) = (None, None);
                    } else if self.marks.iter().any(|[open, _]| open.starts_with(words)) && rest.len() < MOST_BLANKS {
                        self.held = rest;
                        return told;
                    } else {
                        self.state = if self.implied.is_some() { State::Within(false) } else { State::Answer };
                        self.watched = self.watched.take().filter(|_| self.implied.is_none());
                    }
                }
                State::Within(begun) => {
                    // Line ends around the tags belong to neither.
                    if !begun {
                        rest = rest.trim_start().to_owned();
                    }
                    if let Some((at, end)) = self.closing(&rest) {
                        told.reasoning.push_str(rest[..at].trim_end());
                        // No text before was the answer.
                        (self.state, self.implied, rest) = (State::After, None, rest[end..].to_owned());
                        continue;
                    }
                    let keep = rest.trim_end().len();
                    let end = self.closer_begins(&rest[..keep]);
                    // A tag that has begun is not followed by blanks.
                    let cut = end.filter(|_| keep == rest.len()).map_or(keep, |at| rest[..at].trim_end().len());
                    let cut = if rest.len() - cut < MOST_BLANKS { cut } else { rest.len() };
                    self.held = rest.split_off(cut);
                    self.state = State::Within(begun || !rest.is_empty());
                    told.reasoning.push_str(&rest);
                    if let Some(implied) = &mut self.implied {
                        implied.push_str(&rest);
                    }
                    return told;
                }
                State::After => {
                    rest = rest.trim_start().to_owned();
                    if rest.is_empty() {
                        return told;
                    }
                    self.state = State::Answer;
                }
                State::Answer => {
                    let Some(mut watched) = self.watched.take() else {
                        told.text.push_str(&rest);
                        return told;
                    };
                    if let Some((at, end)) = self.closing(&rest) {
                        let told_before = watched.len();
                        watched.push_str(&rest[..at]);
                        if self.is_reasoning(&watched) {
                            (told.reasoning, told.taken_back) = (watched.trim().to_owned(), told_before);
                            (self.state, rest) = (State::After, rest[end..].to_owned());
                        }
                        continue;
                    }
                    let cut = self.closer_begins(&rest).unwrap_or(rest.len());
                    self.held = rest.split_off(cut);
                    watched.push_str(&rest);
                    told.text.push_str(&rest);
                    self.watched = Some(watched).filter(|watched| watched.len() < MOST_WATCHED);
                    return told;
                }
            }
        }
    }

    /// Returns whether text before a closing tag can be reasoning. A model that explains such tags names the opening one or quotes.
    fn is_reasoning(&self, before: &str) -> bool {
        let opens = self.marks.iter().any(|[open, _]| before.contains(open.as_str()));
        !opens && !before.ends_with(['`', '"', '\'', '“', '‘', '«', '(', '['])
    }

    /// Returns where the end of a text begins that may be the beginning of a closing tag.
    fn closer_begins(&self, text: &str) -> Option<usize> {
        let longest = self.closers().map(str::len).max().unwrap_or(0);
        let begins = |at: &usize| text.is_char_boundary(*at) && self.closers().any(|close| close.starts_with(&text[*at..]));
        (text.len().saturating_sub(longest)..text.len()).find(begins)
    }

    /// Ends the text. Returns the text that was held back, which was no tag.
    pub(in crate::provider) fn finish(&mut self) -> SplitText {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Before => SplitText { text: held, ..SplitText::default() },
            State::Within(_) => {
                if let Some(implied) = &mut self.implied {
                    implied.push_str(held.trim_end());
                }
                let reasoning = std::mem::take(&mut self.again) + held.trim_end();
                match self.raw.take() {
                    _ if !self.elsewhere.is_empty() && repeats(&reasoning, &self.elsewhere) => SplitText::default(),
                    // The other field has other reasoning, so this text without a closing tag is the answer.
                    Some(text) => SplitText { text, ..SplitText::default() },
                    None => SplitText { reasoning, ..SplitText::default() },
                }
            }
            // It may have been the beginning of a closing tag.
            State::After | State::Answer => SplitText { text: held, ..SplitText::default() },
        }
    }

    /// Returns the reasoning that the prompt opened and no tag closed. In a whole answer it is also the answer.
    pub(in crate::provider) fn unclosed(&mut self) -> String {
        self.implied.take().unwrap_or_default()
    }
}

/// Returns whether one text begins like the other, except for blanks: gateways trim one, and one may be ahead.
fn repeats(one: &str, other: &str) -> bool {
    let words = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let (one, other) = (words(one), words(other));
    one.starts_with(&other) || other.starts_with(&one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn marks() -> [TagPair; 2] {
        [["<think>", "</think>"], ["<mm:think>", "</mm:think>"]].map(|marks| marks.map(str::to_owned))
    }

    fn looking() -> ReasoningTags {
        ReasoningTags::looking(&marks())
    }

    fn told(pieces: &[&str], mut tags: ReasoningTags) -> (String, String) {
        let mut all = SplitText::default();
        let mut add = |told: SplitText| {
            if told.taken_back > 0 {
                assert_eq!((all.reasoning.as_str(), told.taken_back), ("", all.text.len()));
                all.text.clear();
            }
            all.reasoning.push_str(&told.reasoning);
            all.text.push_str(&told.text);
        };
        pieces.iter().for_each(|piece| add(tags.feed(piece)));
        add(tags.finish());
        (all.reasoning, all.text)
    }

    #[rstest]
    #[case("<think>\nOkay, \nso\n</think>\n\nHi <think>there</think>", "Okay, \nso", "Hi <think>there</think>")]
    #[case("\n <think>\n\n</think>\n\nHi", "", "Hi")]
    #[case("<think>never ends </thin ü< ", "never ends </thin ü<", "")]
    #[case("<think>cut within </thi", "cut within </thi", "")]
    #[case("<think>ä < b </ c </think>", "ä < b </ c", "")]
    #[case("<thinking>no</thinking>", "", "<thinking>no</thinking>")]
    #[case("<mm:think>a </think> b</mm:think>Hi", "a </think> b", "Hi")]
    #[case("Okay, so </ i.\n</think>\n\nHi </think>", "Okay, so </ i.", "Hi </think>")]
    #[case("\nHi </th", "", "\nHi </th")]
    #[case("</think>\n\nHi", "", "Hi")]
    #[case("It ends with `</think>`.", "", "It ends with `</think>`.")]
    #[case("After <think> comes </think>.", "", "After <think> comes </think>.")]
    #[case("`<think>` opens", "", "`<think>` opens")]
    #[case("```\n<think>\n```", "", "```\n<think>\n```")]
    #[case("  <thi", "", "  <thi")]
    #[case("Hi\n\n<think>x</think>", "", "Hi\n\n<think>x</think>")]
    #[case(" \n", "", " \n")]
    fn thoughts_are_found_however_the_text_comes(#[case] whole: &str, #[case] reasoning: &str, #[case] text: &str) {
        let expected = (reasoning.to_owned(), text.to_owned());
        assert_eq!(told(&[whole], looking()), expected);
        let single: Vec<String> = whole.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(told(&single, looking()), expected);
        for at in (0..whole.len()).filter(|at| whole.is_char_boundary(*at)) {
            let (first, second) = whole.split_at(at);
            assert_eq!(told(&[first, second], looking()), expected, "cut at {at}");
        }
        assert_eq!(told(&[whole], ReasoningTags::blind(&marks())), (String::new(), whole.to_owned()));
    }

    #[test]
    fn little_is_held_back() {
        let mut tags = looking();
        assert_eq!(tags.feed("<think>One two"), SplitText { reasoning: "One two".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed(" three </"), SplitText { reasoning: " three".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed("b>"), SplitText { reasoning: " </b>".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed("</think> Yes"), SplitText { text: "Yes".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed(" <"), SplitText { text: " <".to_owned(), ..SplitText::default() });
        assert!(tags.is_over());
    }

    // Splits the text in pieces of one to seven bytes, after reasoning that came through another field.
    fn told_after(elsewhere: &str, text: &str) -> Vec<(String, String)> {
        let cut = |size: usize| {
            let mut tags = looking();
            tags.came_elsewhere(elsewhere);
            let pieces: Vec<&str> = text.as_bytes().chunks(size).map(|piece| std::str::from_utf8(piece).unwrap()).collect();
            told(&pieces, tags)
        };
        (1..8).map(cut).collect()
    }

    #[rstest]
    #[case::repeated("Let me see", "<think>\nLet me see\n</think>\n\nHi", "", "Hi")]
    #[case::one_is_ahead("Let me", "<think>Let me see</think>Hi", "", "Hi")]
    #[case::others("hm", "<think>Let me see</think>Hi", "Let me see", "Hi")]
    #[case::cut("Let me see", "<think>\nLet me", "", "")]
    #[case::a_mark_in_the_answer("hm", " <think> is a mark", "", " <think> is a mark")]
    #[case::an_answer("hm", "\nHi", "", "\nHi")]
    fn thoughts_that_came_elsewhere_are_not_told_again(
        #[case] elsewhere: &str,
        #[case] whole: &str,
        #[case] reasoning: &str,
        #[case] text: &str,
    ) {
        for outcome in told_after(elsewhere, whole) {
            assert_eq!(outcome, (reasoning.to_owned(), text.to_owned()));
        }
    }

    #[test]
    fn a_prompt_may_open_the_thoughts() {
        let within = || ReasoningTags::within(&marks());
        let expected = |reasoning: &str, text: &str| (reasoning.to_owned(), text.to_owned());
        for pieces in [&["\nOkay", ", so.</th", "ink>\n", "\nHi </think>"][..], &["<think>\nOkay, so.</think>Hi </think>"]] {
            assert_eq!(told(pieces, within()), expected("Okay, so.", "Hi </think>"));
        }
        // It was the answer after all.
        let mut tags = within();
        assert_eq!(tags.feed("Hi the").reasoning + &tags.feed("re \n").reasoning, "Hi there");
        assert_eq!((tags.finish(), tags.unclosed()), (SplitText::default(), "Hi there".to_owned()));
        // A server that takes thoughts out leaves none in the text.
        let mut tags = within();
        tags.came_elsewhere("hm");
        assert_eq!(told(&["Hi"], tags), expected("", "Hi"));
    }

    #[test]
    fn an_answer_is_taken_back_only_while_nothing_else_came() {
        let text = |text: &str| SplitText { text: text.to_owned(), ..SplitText::default() };
        let mut tags = looking();
        assert_eq!((tags.feed("Hi "), tags.feed("you </")), (text("Hi "), text("you ")));
        assert_eq!((tags.settle().as_str(), tags.is_over()), ("</", true));
        assert_eq!(tags.feed("think>"), text("think>"));

        let mut tags = looking();
        assert_eq!(tags.feed("Hi <"), text("Hi "));
        let named = SplitText { reasoning: "hm".to_owned(), text: "<".to_owned(), taken_back: 0 };
        assert_eq!(tags.feed_thought("hm"), named);

        let mut tags = looking();
        let long = "x".repeat(MOST_WATCHED);
        assert_eq!((tags.feed(&long).text.len(), tags.is_over()), (MOST_WATCHED, true));
        assert_eq!(tags.feed("</think>"), text("</think>"));
    }

    #[rstest]
    #[case::closed_with_the_answer(&["<think>Plan ", "it"], &["</think>Hi"], "Plan it", "Hi")]
    #[case::in_pieces(&["<thi", "nk>Plan"], &["</", "think>", "Hi"], "Plan", "Hi")]
    #[case::never_closed(&["<think>Plan\n"], &["Hi"], "Plan", "Hi")]
    #[case::without_marks(&["Plan ", "it"], &["Hi"], "Plan it", "Hi")]
    #[case::all_at_once(&["<think>Plan</think>Hi"], &[" you"], "Plan", "Hi you")]
    fn thoughts_that_the_server_names(
        #[case] thoughts: &[&str],
        #[case] texts: &[&str],
        #[case] reasoning: &str,
        #[case] text: &str,
    ) {
        for mut tags in [ReasoningTags::blind(&marks()), looking()] {
            let first: Vec<SplitText> = thoughts.iter().map(|piece| tags.feed_thought(piece)).collect();
            let said = |of: fn(&SplitText) -> &str| first.iter().map(of).collect::<String>();
            let (named, answered) = (said(|told| &told.reasoning), said(|told| &told.text));
            let rest = told(texts, tags);
            assert_eq!((named + &rest.0, answered + &rest.1), (reasoning.to_owned(), text.to_owned()));
        }
    }
}
