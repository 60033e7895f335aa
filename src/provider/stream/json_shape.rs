//! Tracks whether a text that arrives in pieces is a complete JSON object.

/// The state of a text that may become one JSON object. Only brackets are counted; the parser decides validity.
#[derive(Debug, Default)]
pub(in crate::provider) struct Shape {
    depth: u32,
    pub(in crate::provider) begun: bool,
    in_text: bool,
    escaped: bool,
    pub(in crate::provider) complete: bool,
}

impl Shape {
    pub(in crate::provider) fn is_partial(&self) -> bool {
        self.begun && !self.complete
    }

    pub(in crate::provider) fn feed(&mut self, text: &[u8]) {
        for byte in text.iter().copied() {
            if self.complete {
                return;
            }
            self.begun |= !byte.is_ascii_whitespace();
            match byte {
                _ if self.escaped => self.escaped = false,
                b'\\' if self.in_text => self.escaped = true,
                b'"' => self.in_text = !self.in_text,
                _ if self.in_text => {}
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    self.complete = self.depth == 0;
                }
                _ => {}
            }
        }
    }
}
