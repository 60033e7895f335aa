//! Tracks how much of one JSON object a text holds that comes in pieces.

/// The state of a text that may become one JSON object. It counts brackets only; the parser has the last word.
#[derive(Debug, Default)]
pub(in crate::provider) struct Shape {
    depth: u32,
    begun: bool,
    in_text: bool,
    escaped: bool,
    complete: bool,
}

impl Shape {
    pub(in crate::provider) fn has_begun(&self) -> bool {
        self.begun
    }

    pub(in crate::provider) fn is_complete(&self) -> bool {
        self.complete
    }

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
