//! The readable text of an HTML page: headings, lists, tables and links as plain lines; no scripts, no styles.
//!
//! A page is untrusted, so it is read as a stream of tags, never as a tree: nesting needs no stack, and time and memory depend only on the
//! length of the page.

use std::borrow::Cow;

use encoding_rs::{Encoding, UTF_8};
use html5gum::{DefaultEmitter, StartTag, Token, Tokenizer};
use reqwest::Url;

use crate::support::text;

/// The bytes at the start of a page in which HTML allows a declaration of the character set.
const CHARSET_WITHIN: usize = 1024;
/// The longest URL of a link in the text.
const MAX_LINK: usize = 2_000;
/// The deepest indented list. Without a limit, the indentation of nested lists would exceed the page.
const MAX_INDENT: usize = 8;

pub fn is_html(media_type: &str) -> bool {
    media_type.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("text/html"))
}

/// Returns the text of a page at `base`: at most `max_bytes`, followed by a note if it was cut.
pub fn readable(page: &[u8], media_type: &str, base: &Url, max_bytes: usize) -> String {
    let mut emitter = DefaultEmitter::default();
    // Otherwise the code of a script would be read as tags.
    emitter.naively_switch_states(true);
    let page = decoded(page, media_type);
    let mut layout = Layout::new(base);
    for Ok(token) in Tokenizer::new_with_emitter(&*page, emitter) {
        layout.take(token);
        if layout.text.len() > max_bytes {
            let excerpt = text::prefix(&layout.text, max_bytes);
            return format!("{excerpt}\n[cut: the text of the page is longer]");
        }
    }
    layout.close_link();
    if layout.text.is_empty() { "[the page has no text; scripts may add some in a browser]".to_owned() } else { layout.text }
}

/// Decodes a page by its byte order mark. Without one, its media type, then its own declaration, then UTF-8 applies.
fn decoded<'a>(page: &'a [u8], media_type: &str) -> Cow<'a, str> {
    let declared = || charset(&page[..page.len().min(CHARSET_WITHIN)]).filter(|encoding| encoding.is_ascii_compatible());
    charset(media_type.as_bytes()).or_else(declared).unwrap_or(UTF_8).decode(page).0
}

/// Returns the encoding after the first `charset=`.
fn charset(declaration: &[u8]) -> Option<&'static Encoding> {
    const NAME: &[u8] = b"charset=";
    let at = declaration.windows(NAME.len()).position(|window| window.eq_ignore_ascii_case(NAME))?;
    let is_border = |byte: &u8| matches!(byte, b'"' | b'\'' | b';' | b'>' | b'/') || byte.is_ascii_whitespace();
    let label = declaration[at + NAME.len()..].split(is_border).find(|label| !label.is_empty())?;
    Encoding::for_label_no_replacement(label)
}

/// The space before the next word.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Gap {
    None,
    Space,
    Line,
    Paragraph,
}

struct Link {
    url: String,
    /// The offset of the link's first word in the text; `None` before that word.
    start: Option<usize>,
}

enum List {
    Bullets,
    /// The number of its last item.
    Numbers(usize),
}

/// An element whose content is omitted.
struct HiddenElement {
    name: Vec<u8>,
    /// The number of open elements with this name.
    depth: usize,
}

/// The text so far, and the elements that are open at its end.
struct Layout<'a> {
    base: &'a Url,
    text: String,
    gap: Gap,
    /// The prefix of a heading or a list item, which is written before its first word.
    mark: String,
    link: Option<Link>,
    lists: Vec<List>,
    hidden: Option<HiddenElement>,
    preformatted: usize,
    /// The number of cells in the current table row.
    cells: usize,
    /// Whether the last cell has no word yet.
    is_cell_empty: bool,
}

impl<'a> Layout<'a> {
    fn new(base: &'a Url) -> Self {
        Self {
            base,
            text: String::new(),
            gap: Gap::None,
            mark: String::new(),
            link: None,
            lists: Vec::new(),
            hidden: None,
            preformatted: 0,
            cells: 0,
            is_cell_empty: false,
        }
    }

    fn take(&mut self, token: Token) {
        match token {
            Token::StartTag(tag) => self.open(&tag),
            Token::EndTag(tag) => self.close(&tag.name),
            Token::String(words) if self.hidden.is_none() => self.write(&String::from_utf8_lossy(&words)),
            Token::String(_) | Token::Comment(_) | Token::Doctype(_) | Token::Error(_) => {}
        }
    }

    fn open(&mut self, tag: &StartTag<()>) {
        if let Some(hidden) = &mut self.hidden {
            hidden.depth += usize::from(*hidden.name == **tag.name && !tag.self_closing);
            return;
        }
        match tag.name.as_slice() {
            b"svg" if tag.self_closing => {}
            name @ (b"script" | b"style" | b"noscript" | b"template" | b"iframe" | b"svg" | b"math") => {
                self.hidden = Some(HiddenElement { name: name.to_vec(), depth: 1 });
            }
            b"br" => self.raise_gap(if self.gap >= Gap::Line { Gap::Paragraph } else { Gap::Line }),
            b"a" => self.open_link(tag),
            b"img" => {
                if let Some(alt) = attribute(tag, b"alt").filter(|alt| !alt.trim().is_empty()) {
                    self.write(&format!("[image: {}]", alt.trim()));
                }
            }
            b"ul" => self.open_list(List::Bullets),
            b"ol" => self.open_list(List::Numbers(0)),
            b"li" => self.open_item(),
            b"tr" => self.open_row(),
            b"td" | b"th" => self.open_cell(),
            b"pre" => {
                self.raise_gap(Gap::Paragraph);
                self.preformatted += 1;
            }
            name => {
                self.raise_gap(block_gap(name));
                if let [b'h', level @ b'1'..=b'6'] = name {
                    self.mark = format!("{} ", "#".repeat(usize::from(level - b'0')));
                }
            }
        }
    }

    fn close(&mut self, name: &[u8]) {
        if let Some(hidden) = &mut self.hidden {
            hidden.depth -= usize::from(hidden.name == name);
            if hidden.depth == 0 {
                self.hidden = None;
            }
            return;
        }
        match name {
            b"a" => self.close_link(),
            b"ul" | b"ol" => {
                self.lists.pop();
                self.raise_gap(if self.lists.is_empty() { Gap::Paragraph } else { Gap::Line });
            }
            b"tr" => self.open_row(),
            b"table" => {
                self.open_row();
                self.raise_gap(Gap::Paragraph);
            }
            b"pre" => {
                self.preformatted = self.preformatted.saturating_sub(1);
                self.raise_gap(Gap::Paragraph);
            }
            name => self.raise_gap(block_gap(name)),
        }
    }

    fn open_list(&mut self, list: List) {
        self.raise_gap(if self.lists.is_empty() { Gap::Paragraph } else { Gap::Line });
        self.lists.push(list);
    }

    fn open_item(&mut self) {
        self.raise_gap(Gap::Line);
        let indent = "  ".repeat(self.lists.len().saturating_sub(1).min(MAX_INDENT));
        self.mark = match self.lists.last_mut() {
            Some(List::Numbers(number)) => {
                *number += 1;
                format!("{indent}{number}. ")
            }
            Some(List::Bullets) | None => format!("{indent}- "),
        };
    }

    /// Begins or ends a row: the next word starts a new line.
    fn open_row(&mut self) {
        (self.cells, self.is_cell_empty) = (0, false);
        self.raise_gap(Gap::Line);
    }

    fn open_cell(&mut self) {
        if self.cells > 0 {
            if !self.is_cell_empty || self.gap == Gap::Space {
                // Blocks inside a cell do not end its row.
                self.gap = Gap::None;
            }
            self.write_gap();
            self.text.push_str(" |");
            self.gap = Gap::Space;
        }
        self.cells += 1;
        self.is_cell_empty = true;
    }

    fn open_link(&mut self, tag: &StartTag<()>) {
        self.close_link();
        let href = attribute(tag, b"href").filter(|href| !href.trim_start().starts_with('#'));
        let url = href.and_then(|href| self.base.join(href.trim()).ok());
        let url = url.filter(|url| matches!(url.scheme(), "http" | "https" | "mailto") && url.as_str().len() <= MAX_LINK);
        self.link = url.map(|url| Link { url: url.into(), start: None });
    }

    fn close_link(&mut self) {
        let Some(Link { url, start: Some(start) }) = self.link.take() else { return };
        if self.text[start..] != url {
            self.text.insert(start, '[');
            self.text.push_str("](");
            self.text.push_str(&url);
            self.text.push(')');
        }
    }

    fn raise_gap(&mut self, gap: Gap) {
        if gap >= Gap::Line {
            self.mark.clear();
        }
        // A block at the beginning of a cell does not break its row.
        if !self.is_cell_empty {
            self.gap = self.gap.max(gap);
        }
    }

    fn write(&mut self, words: &str) {
        if self.preformatted > 0 && !words.is_empty() {
            // HTML ignores a line break directly after the tag.
            let words = if self.gap >= Gap::Line { words.strip_prefix('\n').unwrap_or(words) } else { words };
            self.begin_word();
            self.text.push_str(words);
            return;
        }
        let mut is_first = true;
        if words.starts_with(char::is_whitespace) {
            self.raise_gap(Gap::Space);
        }
        for word in words.split_whitespace() {
            if !is_first {
                self.raise_gap(Gap::Space);
            }
            is_first = false;
            self.begin_word();
            self.text.push_str(word);
        }
        if !is_first && words.ends_with(char::is_whitespace) {
            self.raise_gap(Gap::Space);
        }
    }

    fn begin_word(&mut self) {
        self.write_gap();
        self.text.push_str(&self.mark);
        self.mark.clear();
        self.is_cell_empty = false;
        if let Some(link) = &mut self.link {
            link.start.get_or_insert(self.text.len());
        }
    }

    fn write_gap(&mut self) {
        let gap = match std::mem::replace(&mut self.gap, Gap::None) {
            Gap::None => "",
            Gap::Space => " ",
            Gap::Line => "\n",
            Gap::Paragraph => "\n\n",
        };
        if !self.text.is_empty() {
            self.text.push_str(gap);
        }
    }
}

/// Returns the space around an element: that of a paragraph, that of a line, or none for an inline element.
fn block_gap(name: &[u8]) -> Gap {
    match name {
        b"p" | b"h1" | b"h2" | b"h3" | b"h4" | b"h5" | b"h6" | b"title" | b"table" | b"blockquote" | b"dl" | b"figure" | b"hr"
        | b"section" | b"article" | b"form" => Gap::Paragraph,
        b"div" | b"li" | b"dt" | b"dd" | b"header" | b"footer" | b"nav" | b"main" | b"aside" | b"address" | b"body"
        | b"caption" | b"figcaption" | b"legend" | b"fieldset" | b"details" | b"summary" | b"option" => Gap::Line,
        _ => Gap::None,
    }
}

fn attribute<'t>(tag: &'t StartTag<()>, name: &[u8]) -> Option<Cow<'t, str>> {
    tag.attributes.get(name).map(|value| String::from_utf8_lossy(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn text_of(page: &str) -> String {
        readable(page.as_bytes(), "text/html", &Url::parse("https://a.example/docs/page").unwrap(), 1024 * 1024)
    }

    const ARTICLE: &str = r##"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Release notes &mdash; Tool</title>
<style>body { color: red }</style><script>if (a < b) { document.write("<p>never</p>"); }</script></head>
<body><nav><ul><li><a href="/">Home</a></li><li><a href="../about?x=1&amp;y=2">About  us</a></ul></nav>
<!-- a comment --><main><h1>Version <em>2</em></h1>
<p>It is   <b>fast</b>, see <a href="https://b.example/bench">the
 benchmark</a>.<br>And small.</p><svg><title>icon</title><path d="M0"/></svg>
<ol><li>First<li>Second<ul><li>inner</ul></ol>
<table><thead><tr><th>Name</th><th>Size</th></tr></thead><tr><td><p>core</p></td><td></td><td>3&nbsp;MB</td></tr></table>
<pre>
let a = 1;
  let b = 2;</pre><img src="x.png" alt="A chart"><a href="javascript:go()">Run</a> <a href="#top">Top</a>
<noscript>Switch scripts on</noscript></main></body></html>"##;

    #[test]
    fn article_is_shown_as_lines() {
        let expected = "Release notes \u{2014} Tool\n\n\
            - [Home](https://a.example/)\n- [About us](https://a.example/about?x=1&y=2)\n\n\
            # Version 2\n\n\
            It is fast, see [the benchmark](https://b.example/bench).\nAnd small.\n\n\
            1. First\n2. Second\n  - inner\n\n\
            Name | Size\ncore | | 3 MB\n\n\
            let a = 1;\n  let b = 2;\n\n\
            [image: A chart]Run Top";
        assert_eq!(text_of(ARTICLE), expected);
    }

    #[rstest]
    #[case("<table><tr><td><table><tr><td>a<td>b</table><tr><td><p>c<p>d</table>", "a | b\n\nc\n\nd")]
    #[case("<table><tr><td>a<td></table>b<table><tr><td><td>c</table>", "a |\n\nb\n\n | c")]
    #[case("one<br><br>two<div>three</div>four", "one\n\ntwo\nthree\nfour")]
    #[case("<a href=/x><h2>Head</h2></a><a href=y>", "## [Head](https://a.example/x)")]
    #[case("<a href=https://a.example/x>https://a.example/x</a>", "https://a.example/x")]
    #[case("<h2></h2><p>text</h1></ol></pre></td>", "text")]
    #[case("a <template>b<template>c</template>d</template> e", "a e")]
    #[case("1 &lt; 2 &amp;&amp; 3 &#x1F600; &unknown; <", "1 < 2 && 3 \u{1F600} &unknown; <")]
    #[case("<script>document.title = 'x'</script>", "[the page has no text; scripts may add some in a browser]")]
    fn fragments_are_shown_as_lines(#[case] page: &str, #[case] expected: &str) {
        assert_eq!(text_of(page), expected);
    }

    #[rstest]
    #[case(b"caf\xe9", "text/html; charset=ISO-8859-1", "caf\u{e9}")]
    #[case(b"<meta charset=windows-1251>\xcf\xf0", "text/html", "\u{41f}\u{440}")]
    #[case(b"<meta content='text/html; CHARSET=shift_jis'>\x93\xfa", "text/html", "\u{65e5}")]
    #[case(b"<meta charset=iso-8859-1>\xc3\xa9", "text/html; charset=\"utf-8\"", "\u{e9}")]
    #[case(b"<meta charset=utf-16>\xc3\xa9", "text/html", "\u{e9}")]
    #[case(b"\xff\xfea\0b\0", "text/html", "ab")]
    #[case(b"<meta charset=none>\xc3\xa9\xff", "text/html; charset=", "\u{e9}\u{fffd}")]
    fn charset_is_taken_from_type_mark_or_page(#[case] page: &[u8], #[case] media_type: &str, #[case] expected: &str) {
        assert_eq!(readable(page, media_type, &Url::parse("https://a.example").unwrap(), 100), expected);
    }

    /// As a tree, each of these would need a deep stack, or produce much more text than the page has.
    #[rstest]
    #[case("<div>", "x", 1)]
    #[case("<blockquote>", "x", 1)]
    #[case("<ul><li>", "x", 20)]
    #[case("<table><tr><td>", "x", 4)]
    #[case("<svg>", "", 60)]
    fn deep_page_is_no_larger_than_its_words(#[case] open: &str, #[case] word: &str, #[case] bytes_each: usize) {
        const DEPTH: usize = 20_000;
        let excerpt = text_of(&format!("{open}{word}").repeat(DEPTH));
        assert!(excerpt.len() <= (bytes_each + 3) * DEPTH, "{} bytes", excerpt.len());
    }

    #[test]
    fn text_longer_than_its_limit_is_cut() {
        let base = Url::parse(&format!("https://a.example/{}/", "long".repeat(400))).unwrap();
        let excerpt = readable("<a href=x>\u{e9}</a> ".repeat(2_000).as_bytes(), "text/html", &base, 10_001);
        assert!(excerpt.ends_with("\n[cut: the text of the page is longer]") && excerpt.len() < 10_100, "{} bytes", excerpt.len());
    }
}
