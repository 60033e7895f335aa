//! Tracks whether a text that arrives in pieces is a complete JSON object.

/// The state of a text that may become one JSON object. Only brackets are counted; the parser decides validity.
#[derive(Debug, Default)]
pub(in crate::provider) struct Shape {
    depth: u32,
    pub(in crate::provider) has_begun: bool,
    is_in_text: bool,
    is_escaped: bool,
    pub(in crate::provider) is_complete: bool,
}

impl Shape {
    pub(in crate::provider) fn is_partial(&self) -> bool {
        self.has_begun && !self.is_complete
    }

    pub(in crate::provider) fn feed(&mut self, text: &[u8]) {
        for byte in text.iter().copied() {
            if self.is_complete {
                return;
            }
            self.has_begun |= !byte.is_ascii_whitespace();
            match byte {
                _ if self.is_escaped => self.is_escaped = false,
                b'\\' if self.is_in_text => self.is_escaped = true,
                b'"' => self.is_in_text = !self.is_in_text,
                _ if self.is_in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.is_complete = self.depth == 0;
                }
                _ => {}
            }
        }
    }
}
