//! The names of enum variants, as they are on the wire and in the database.

/// Defines an enum, the list of its variants, and the conversion from and to their names.
///
/// JSON uses the same names.
macro_rules! named_enum {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[$attr:meta])* $variant:ident = $text:tt,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize, utoipa::ToSchema)]
        pub enum $name {
            $($(#[$attr])* #[serde(rename = $text)] $variant,)+
        }

        impl $name {
            pub const ALL: [Self; [$($text),+].len()] = [$(Self::$variant),+];

            /// Returns the name on the wire and in the database.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text),+
                }
            }

            /// Parses the name.
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($text => Some(Self::$variant),)+
                    _ => None,
                }
            }
        }
    };
}

pub(crate) use named_enum;
