//! Thoughts that stand in the text of an answer, between `<think>` and `</think>` at its very beginning: what models write that
//! think aloud, where their server does not take the thoughts out.

/// What opens thoughts.
const OPEN: &str = "<think>";
/// What ends them.
const CLOSE: &str = "</think>";
/// The most blanks that are held back.
const MOST_BLANKS: usize = 256;

/// Takes the thoughts out of a text that comes in pieces. Only what the text begins with, after blanks, is taken for an opening
/// mark: one that comes later is a part of the answer, perhaps of a program in it.
#[derive(Debug)]
pub(super) struct ThinkTags {
    state: State,
    /// What may be the beginning of a mark, or blanks of which nothing is known yet: fewer bytes than a mark has, and blanks.
    held: String,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Only blanks came.
    Before,
    /// Within the thoughts; `true` once one of them was passed on.
    Within(bool),
    /// After the thoughts, before the first word of the answer.
    After,
    /// The answer.
    Answer,
}

/// What a piece of text says.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Told {
    /// Thoughts.
    pub(super) thought: String,
    /// The answer.
    pub(super) text: String,
}

impl ThinkTags {
    /// A reader of an answer whose text may begin with thoughts.
    pub(super) fn looking() -> Self {
        Self { state: State::Before, held: String::new() }
    }

    /// A reader that takes all text for the answer.
    pub(super) fn blind() -> Self {
        Self { state: State::Answer, held: String::new() }
    }

    /// The thoughts came by another way: what follows is the answer. Gives back the text that was held back.
    pub(super) fn give_up(&mut self) -> String {
        match self.state {
            State::Before => {
                self.state = State::Answer;
                std::mem::take(&mut self.held)
            }
            State::Within(_) | State::After | State::Answer => String::new(),
        }
    }

    /// Whether text passes through unchanged.
    pub(super) fn is_over(&self) -> bool {
        self.state == State::Answer
    }

    /// Takes in more of the text.
    pub(super) fn feed(&mut self, piece: &str) -> Told {
        let mut told = Told::default();
        let mut rest = std::mem::take(&mut self.held) + piece;
        loop {
            match self.state {
                State::Before => {
                    let words = rest.trim_start();
                    if let Some(after) = words.strip_prefix(OPEN) {
                        (self.state, rest) = (State::Within(false), after.to_owned());
                    } else if OPEN.starts_with(words) && rest.len() < MOST_BLANKS {
                        self.held = rest;
                        return told;
                    } else {
                        self.state = State::Answer;
                    }
                }
                State::Within(begun) => {
                    // Line ends around the marks belong to neither.
                    if !begun {
                        rest = rest.trim_start().to_owned();
                    }
                    if let Some((thought, after)) = rest.split_once(CLOSE) {
                        told.thought.push_str(thought.trim_end());
                        (self.state, rest) = (State::After, after.to_owned());
                        continue;
                    }
                    let keep = rest.trim_end().len();
                    let end = (0..keep)
                        .rev()
                        .take(CLOSE.len())
                        .find(|at| rest.is_char_boundary(*at) && CLOSE.starts_with(&rest[*at..keep]));
                    // A mark that has begun is not followed by blanks.
                    let cut = end.filter(|_| keep == rest.len()).map_or(keep, |at| rest[..at].trim_end().len());
                    let cut = if rest.len() - cut < MOST_BLANKS { cut } else { rest.len() };
                    self.held = rest.split_off(cut);
                    self.state = State::Within(begun || !rest.is_empty());
                    told.thought.push_str(&rest);
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
                    told.text.push_str(&rest);
                    return told;
                }
            }
        }
    }

    /// The answer is over: what was held back was no mark.
    pub(super) fn finish(&mut self) -> Told {
        let held = std::mem::take(&mut self.held);
        match self.state {
            State::Before => Told { text: held, ..Told::default() },
            State::Within(_) => Told { thought: held.trim_end().to_owned(), ..Told::default() },
            State::After | State::Answer => Told::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn told(pieces: &[&str], mut tags: ThinkTags) -> (String, String) {
        let mut all = Told::default();
        let mut add = |told: Told| {
            all.thought.push_str(&told.thought);
            all.text.push_str(&told.text);
        };
        pieces.iter().for_each(|piece| add(tags.feed(piece)));
        add(tags.finish());
        (all.thought, all.text)
    }

    #[rstest]
    #[case("<think>\nOkay, \nso\n</think>\n\nHi <think>there</think>", "Okay, \nso", "Hi <think>there</think>")]
    #[case("\n <think>\n\n</think>\n\nHi", "", "Hi")]
    #[case("<think>never ends </thin ü< ", "never ends </thin ü<", "")]
    #[case("<think>cut within </thi", "cut within </thi", "")]
    #[case("<think>ä < b </ c </think>", "ä < b </ c", "")]
    #[case("<thinking>no</thinking>", "", "<thinking>no</thinking>")]
    #[case("`<think>` opens", "", "`<think>` opens")]
    #[case("```\n<think>\n```", "", "```\n<think>\n```")]
    #[case("  <thi", "", "  <thi")]
    #[case("Hi\n\n<think>x</think>", "", "Hi\n\n<think>x</think>")]
    #[case(" \n", "", " \n")]
    fn thoughts_are_found_however_the_text_comes(#[case] whole: &str, #[case] thought: &str, #[case] text: &str) {
        let expected = (thought.to_owned(), text.to_owned());
        assert_eq!(told(&[whole], ThinkTags::looking()), expected);
        let single: Vec<String> = whole.chars().map(String::from).collect();
        let single: Vec<&str> = single.iter().map(String::as_str).collect();
        assert_eq!(told(&single, ThinkTags::looking()), expected);
        for at in (0..whole.len()).filter(|at| whole.is_char_boundary(*at)) {
            let (first, second) = whole.split_at(at);
            assert_eq!(told(&[first, second], ThinkTags::looking()), expected, "cut at {at}");
        }
        assert_eq!(told(&[whole], ThinkTags::blind()), (String::new(), whole.to_owned()));
    }

    #[test]
    fn little_is_held_back() {
        let mut tags = ThinkTags::looking();
        assert_eq!(tags.feed("<think>One two"), Told { thought: "One two".to_owned(), ..Told::default() });
        assert_eq!(tags.feed(" three </"), Told { thought: " three".to_owned(), ..Told::default() });
        assert_eq!(tags.feed("b>"), Told { thought: " </b>".to_owned(), ..Told::default() });
        assert_eq!(tags.feed("</think> Yes"), Told { text: "Yes".to_owned(), ..Told::default() });
        assert_eq!(tags.feed(" <"), Told { text: " <".to_owned(), ..Told::default() });
        assert!(tags.is_over());

        let mut tags = ThinkTags::looking();
        assert_eq!(tags.feed("\n<th"), Told::default());
        assert_eq!(tags.give_up(), "\n<th");
        assert_eq!(tags.feed("<think>"), Told { text: "<think>".to_owned(), ..Told::default() });
    }
}
