//! The words of closed sets, as they are on the wire and in the database.
//!
//! Knows no set: each is beside its enum.

/// Implements the list of an enum's variants, and the words for them in both directions.
///
/// A missing variant does not compile, so that no row and no frame can lack a word.
macro_rules! words {
    ($name:ident { $($variant:ident = $word:literal),+ $(,)? }) => {
        impl $name {
            /// Every variant.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$variant),+];

            /// Returns the word on the wire and in the database.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word),+
                }
            }

            /// Reads the word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                match word {
                    $($word => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use words;
