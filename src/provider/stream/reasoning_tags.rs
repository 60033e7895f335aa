//! Separates reasoning from text: some servers leave the reasoning between tags such as `<think>` at the start of the text.

const MAX_BLANKS: usize = 256;
/// The number of bytes that are searched for a closing tag without an opening one: more than the reasoning of any model.
const MAX_SEARCHED: usize = 1024 * 1024;

pub(in crate::provider) type TagPair = [String; 2];

/// An opening tag counts only at the start of the text, after blanks. A later one is part of the answer, for example of a program in it. A
/// closing tag without an opening tag shows that all text before it is reasoning, because the prompt contained the opening tag.
#[derive(Debug)]
pub(in crate::provider) struct ReasoningTags {
    tags: Vec<TagPair>,
    state: State,
    /// The index of the pair whose opening tag has opened the reasoning.
    open_pair: Option<usize>,
    /// Text that may be the start of a tag, and blanks around it.
    held_back: String,
    /// The reasoning so far, if the prompt opened it.
    prompt_opened: Option<String>,
    /// The answer so far, while a closing tag may still turn it into reasoning.
    possible_reasoning: Option<String>,
    /// Whether the server marks the current text as reasoning.
    is_marked: bool,
    /// Reasoning from a separate field, which the text may repeat between its tags.
    separate_field: String,
    /// Reasoning from the text that may repeat the separate field.
    repeated: String,
    unsplit: Option<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only blanks have arrived.
    Before,
    /// Inside the reasoning; `true` once some of it was emitted.
    Reasoning(bool),
    /// After the reasoning, before the first word of the answer.
    AfterReasoning,
    Answer,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(in crate::provider) struct SplitText {
    pub(in crate::provider) reasoning: String,
    pub(in crate::provider) text: String,
    /// Bytes of emitted text that turned out to be reasoning. `reasoning` begins with them.
    pub(in crate::provider) voided_bytes: usize,
}

impl ReasoningTags {
    fn new(tags: &[TagPair], state: State) -> Self {
        Self {
            tags: tags.iter().filter(|[open, close]| !open.is_empty() && !close.is_empty()).cloned().collect(),
            state,
            open_pair: None,
            held_back: String::new(),
            prompt_opened: None,
            possible_reasoning: None,
            is_marked: false,
            separate_field: String::new(),
            repeated: String::new(),
            unsplit: None,
        }
    }

    /// Returns a reader of an answer whose text may begin with reasoning.
    pub(in crate::provider) fn detecting(tags: &[TagPair]) -> Self {
        Self { possible_reasoning: Some(String::new()), ..Self::new(tags, State::Before) }
    }

    /// Returns a reader of an answer whose text begins inside the reasoning, because the prompt ends with the opening tag.
    pub(in crate::provider) fn opened_by_prompt(tags: &[TagPair]) -> Self {
        Self { prompt_opened: Some(String::new()), ..Self::detecting(tags) }
    }

    /// Returns a reader for which all text is the answer, except reasoning that the server marks.
    pub(in crate::provider) fn without_tag_detection(tags: &[TagPair]) -> Self {
        Self::new(tags, State::Answer)
    }

    /// Stores reasoning from a separate field. The text may repeat it between tags, but did not begin inside it.
    pub(in crate::provider) fn add_separate_reasoning(&mut self, reasoning: &str) {
        match self.state {
            State::Before | State::Reasoning(_) => self.separate_field.push_str(reasoning),
            State::AfterReasoning | State::Answer => {}
        }
        if self.state == State::Before {
            self.prompt_opened = None;
        }
        self.possible_reasoning = None;
    }

    /// Ends the text so far, because other content follows. Returns the held-back text.
    pub(in crate::provider) fn settle(&mut self) -> String {
        self.possible_reasoning = None;
        if self.state == State::Answer { std::mem::take(&mut self.held_back) } else { String::new() }
    }

    pub(in crate::provider) fn is_over(&self) -> bool {
        self.state == State::Answer && self.possible_reasoning.is_none() && self.held_back.is_empty()
    }

    pub(in crate::provider) fn feed(&mut self, piece: &str) -> SplitText {
        let mut out = SplitText::default();
        if piece.is_empty() {
            return out;
        }
        if self.is_marked && !piece.trim().is_empty() {
            self.is_marked = false;
            out.reasoning = self.end_marked(piece);
        }
        let more = self.feed_text(piece);
        out.reasoning.push_str(&more.reasoning);
        out.text.push_str(&more.text);
        out.voided_bytes = more.voided_bytes;
        out
    }

    /// Adds text that the server marks as reasoning. It may also be between tags, and the closing tag may arrive with the answer.
    pub(in crate::provider) fn feed_marked_reasoning(&mut self, piece: &str) -> SplitText {
        self.prompt_opened = None;
        let held_back = self.settle();
        if let State::AfterReasoning | State::Answer = self.state {
            (self.state, self.open_pair) = (State::Before, None);
        }
        let mut out = self.split(piece);
        match (self.state, self.open_pair) {
            (State::Answer, None) => out = SplitText { reasoning: out.text, ..SplitText::default() },
            (State::Before | State::Reasoning(_), _) => self.is_marked = true,
            (State::AfterReasoning | State::Answer, _) => {}
        }
        out.text.insert_str(0, &held_back);
        out
    }

    /// Ends marked reasoning, unless this piece of the answer has its closing tag. Returns the held-back reasoning.
    fn end_marked(&mut self, piece: &str) -> String {
        let words = format!("{}{piece}", self.held_back);
        let words = words.trim_start();
        let closes = self.open_pair.is_some() && self.closers().any(|close| words.starts_with(close) || close.starts_with(words));
        if closes {
            return String::new();
        }
        self.state = State::AfterReasoning;
        std::mem::take(&mut self.held_back).trim_end().to_owned()
    }

    /// Holds reasoning back while it may repeat that of a separate field.
    fn feed_text(&mut self, piece: &str) -> SplitText {
        if self.separate_field.is_empty() {
            return self.split(piece);
        }
        if self.state == State::Before && self.unsplit.is_none() {
            self.unsplit = Some(self.held_back.clone());
        }
        if let (State::Before | State::Reasoning(_), Some(unsplit)) = (self.state, &mut self.unsplit) {
            unsplit.push_str(piece);
        }
        let mut out = self.split(piece);
        self.repeated.push_str(&std::mem::take(&mut out.reasoning));
        if let State::AfterReasoning | State::Answer = self.state {
            let repeated = std::mem::take(&mut self.repeated);
            if !repeats(&repeated, &self.separate_field) {
                out.reasoning = repeated;
            }
            (self.separate_field, self.unsplit) = (String::new(), None);
        }
        out
    }

    /// Returns the tags that can close the reasoning: all tags if the prompt opened it.
    fn closers(&self) -> impl Iterator<Item = &str> {
        let counts = |at: usize| self.open_pair.is_none_or(|open_pair| open_pair == at);
        self.tags.iter().enumerate().filter(move |(at, _)| counts(*at)).map(|(_, [_, close])| close.as_str())
    }

    fn closing(&self, text: &str) -> Option<(usize, usize)> {
        self.closers().filter_map(|close| text.find(close).map(|at| (at, at + close.len()))).min()
    }

    fn split(&mut self, piece: &str) -> SplitText {
        let mut out = SplitText::default();
        let mut rest = std::mem::take(&mut self.held_back) + piece;
        loop {
            match self.state {
                State::Before => {
                    let words = rest.trim_start();
                    let open_pair = self.tags.iter().position(|[open, _]| words.starts_with(open.as_str()));
                    if let Some(at) = open_pair {
                        rest = words[self.tags[at][0].len()..].to_owned();
                        (self.state, self.open_pair) = (State::Reasoning(false), open_pair);
                        (self.prompt_opened, self.possible_reasoning) = (None, None);
                    } else if self.tags.iter().any(|[open, _]| open.starts_with(words)) && rest.len() < MAX_BLANKS {
                        self.held_back = rest;
                        return out;
                    } else {
                        self.state = if self.prompt_opened.is_some() { State::Reasoning(false) } else { State::Answer };
                        self.possible_reasoning = self.possible_reasoning.take().filter(|_| self.prompt_opened.is_none());
                    }
                }
                State::Reasoning(has_begun) => {
                    // Line ends around the tags are part of neither.
                    if !has_begun {
                        rest = rest.trim_start().to_owned();
                    }
                    if let Some((at, end)) = self.closing(&rest) {
                        out.reasoning.push_str(rest[..at].trim_end());
                        // The text before was no answer.
                        (self.state, self.prompt_opened, rest) = (State::AfterReasoning, None, rest[end..].to_owned());
                        continue;
                    }
                    let keep = rest.trim_end().len();
                    let end = self.partial_closer(&rest[..keep]);
                    // A partial tag at the end is not followed by blanks.
                    let cut = end.filter(|_| keep == rest.len()).map_or(keep, |at| rest[..at].trim_end().len());
                    let cut = if rest.len() - cut < MAX_BLANKS { cut } else { rest.len() };
                    self.held_back = rest.split_off(cut);
                    self.state = State::Reasoning(has_begun || !rest.is_empty());
                    out.reasoning.push_str(&rest);
                    if let Some(prompt_opened) = &mut self.prompt_opened {
                        prompt_opened.push_str(&rest);
                    }
                    return out;
                }
                State::AfterReasoning => {
                    rest = rest.trim_start().to_owned();
                    if rest.is_empty() {
                        return out;
                    }
                    self.state = State::Answer;
                }
                State::Answer => {
                    let Some(mut possible_reasoning) = self.possible_reasoning.take() else {
                        out.text.push_str(&rest);
                        return out;
                    };
                    if let Some((at, end)) = self.closing(&rest) {
                        let emitted = possible_reasoning.len();
                        possible_reasoning.push_str(&rest[..at]);
                        if self.is_reasoning(&possible_reasoning) {
                            (out.reasoning, out.voided_bytes) = (possible_reasoning.trim().to_owned(), emitted);
                            (self.state, rest) = (State::AfterReasoning, rest[end..].to_owned());
                        }
                        continue;
                    }
                    let cut = self.partial_closer(&rest).unwrap_or(rest.len());
                    self.held_back = rest.split_off(cut);
                    possible_reasoning.push_str(&rest);
                    out.text.push_str(&rest);
                    self.possible_reasoning =
                        Some(possible_reasoning).filter(|possible_reasoning| possible_reasoning.len() < MAX_SEARCHED);
                    return out;
                }
            }
        }
    }

    /// Returns whether text before a closing tag can be reasoning. A model that explains such tags writes the opening one or a quote before
    /// it.
    fn is_reasoning(&self, before: &str) -> bool {
        let opens = self.tags.iter().any(|[open, _]| before.contains(open.as_str()));
        !opens && !before.ends_with(['`', '"', '\'', '“', '‘', '«', '(', '['])
    }

    /// Returns the position of a partial closing tag at the end of a text.
    fn partial_closer(&self, text: &str) -> Option<usize> {
        let longest = self.closers().map(str::len).max().unwrap_or(0);
        let begins = |at: &usize| text.is_char_boundary(*at) && self.closers().any(|close| close.starts_with(&text[*at..]));
        (text.len().saturating_sub(longest)..text.len()).find(begins)
    }

    /// Ends the text. Returns the held-back text, which was no tag.
    pub(in crate::provider) fn finish(&mut self) -> SplitText {
        let held_back = std::mem::take(&mut self.held_back);
        match self.state {
            State::Before => SplitText { text: held_back, ..SplitText::default() },
            State::Reasoning(_) => {
                if let Some(prompt_opened) = &mut self.prompt_opened {
                    prompt_opened.push_str(held_back.trim_end());
                }
                let reasoning = std::mem::take(&mut self.repeated) + held_back.trim_end();
                match self.unsplit.take() {
                    _ if !self.separate_field.is_empty() && repeats(&reasoning, &self.separate_field) => SplitText::default(),
                    // The separate field has other reasoning, so this text without a closing tag is the answer.
                    Some(text) => SplitText { text, ..SplitText::default() },
                    None => SplitText { reasoning, ..SplitText::default() },
                }
            }
            // It may have been the start of a closing tag.
            State::AfterReasoning | State::Answer => SplitText { text: held_back, ..SplitText::default() },
        }
    }

    /// Returns the reasoning that the prompt opened and no tag closed. In a complete answer it is also the answer.
    pub(in crate::provider) fn unclosed(&mut self) -> String {
        self.prompt_opened.take().unwrap_or_default()
    }
}

/// Returns whether one text begins with the other, ignoring blanks: gateways trim one, and one may be ahead.
fn repeats(one: &str, other: &str) -> bool {
    let words = |text: &str| text.chars().filter(|c| !c.is_whitespace()).collect::<String>();
    let (one, other) = (words(one), words(other));
    one.starts_with(&other) || other.starts_with(&one)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn tags() -> [TagPair; 2] {
        [["<think>", "</think>"], ["<mm:think>", "</mm:think>"]].map(|tags| tags.map(str::to_owned))
    }

    fn detecting() -> ReasoningTags {
        ReasoningTags::detecting(&tags())
    }

    fn told(pieces: &[&str], mut tags: ReasoningTags) -> (String, String) {
        let mut all = SplitText::default();
        let mut add = |told: SplitText| {
            if told.voided_bytes > 0 {
                assert_eq!((all.reasoning.as_str(), told.voided_bytes), ("", all.text.len()));
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
        assert_eq!(told(&[whole], detecting()), expected);
        let single: Vec<String> = whole.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(told(&single, detecting()), expected);
        for at in (0..whole.len()).filter(|at| whole.is_char_boundary(*at)) {
            let (first, second) = whole.split_at(at);
            assert_eq!(told(&[first, second], detecting()), expected, "cut at {at}");
        }
        assert_eq!(told(&[whole], ReasoningTags::without_tag_detection(&tags())), (String::new(), whole.to_owned()));
    }

    #[test]
    fn little_is_held_back() {
        let mut tags = detecting();
        assert_eq!(tags.feed("<think>One two"), SplitText { reasoning: "One two".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed(" three </"), SplitText { reasoning: " three".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed("b>"), SplitText { reasoning: " </b>".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed("</think> Yes"), SplitText { text: "Yes".to_owned(), ..SplitText::default() });
        assert_eq!(tags.feed(" <"), SplitText { text: " <".to_owned(), ..SplitText::default() });
        assert!(tags.is_over());
    }

    // Splits the text into pieces of one to seven bytes, after reasoning from a separate field.
    fn told_after(separate_field: &str, text: &str) -> Vec<(String, String)> {
        let cut = |size: usize| {
            let mut tags = detecting();
            tags.add_separate_reasoning(separate_field);
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
    fn repeated_reasoning_is_not_emitted_again(
        #[case] separate_field: &str,
        #[case] whole: &str,
        #[case] reasoning: &str,
        #[case] text: &str,
    ) {
        for outcome in told_after(separate_field, whole) {
            assert_eq!(outcome, (reasoning.to_owned(), text.to_owned()));
        }
    }

    #[test]
    fn a_prompt_may_open_the_thoughts() {
        let opened_by_prompt = || ReasoningTags::opened_by_prompt(&tags());
        let expected = |reasoning: &str, text: &str| (reasoning.to_owned(), text.to_owned());
        for pieces in [&["\nOkay", ", so.</th", "ink>\n", "\nHi </think>"][..], &["<think>\nOkay, so.</think>Hi </think>"]] {
            assert_eq!(told(pieces, opened_by_prompt()), expected("Okay, so.", "Hi </think>"));
        }
        // It was the answer after all.
        let mut tags = opened_by_prompt();
        assert_eq!(tags.feed("Hi the").reasoning + &tags.feed("re \n").reasoning, "Hi there");
        assert_eq!((tags.finish(), tags.unclosed()), (SplitText::default(), "Hi there".to_owned()));
        // A server that separates reasoning leaves none in the text.
        let mut tags = opened_by_prompt();
        tags.add_separate_reasoning("hm");
        assert_eq!(told(&["Hi"], tags), expected("", "Hi"));
    }

    #[test]
    fn an_answer_is_taken_back_only_while_nothing_else_came() {
        let text = |text: &str| SplitText { text: text.to_owned(), ..SplitText::default() };
        let mut tags = detecting();
        assert_eq!((tags.feed("Hi "), tags.feed("you </")), (text("Hi "), text("you ")));
        assert_eq!((tags.settle().as_str(), tags.is_over()), ("</", true));
        assert_eq!(tags.feed("think>"), text("think>"));

        let mut tags = detecting();
        assert_eq!(tags.feed("Hi <"), text("Hi "));
        let named = SplitText { reasoning: "hm".to_owned(), text: "<".to_owned(), voided_bytes: 0 };
        assert_eq!(tags.feed_marked_reasoning("hm"), named);

        let mut tags = detecting();
        let long = "x".repeat(MAX_SEARCHED);
        assert_eq!((tags.feed(&long).text.len(), tags.is_over()), (MAX_SEARCHED, true));
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
        for mut tags in [ReasoningTags::without_tag_detection(&tags()), detecting()] {
            let first: Vec<SplitText> = thoughts.iter().map(|piece| tags.feed_marked_reasoning(piece)).collect();
            let said = |of: fn(&SplitText) -> &str| first.iter().map(of).collect::<String>();
            let (named, answered) = (said(|told| &told.reasoning), said(|told| &told.text));
            let rest = told(texts, tags);
            assert_eq!((named + &rest.0, answered + &rest.1), (reasoning.to_owned(), text.to_owned()));
        }
    }
}
