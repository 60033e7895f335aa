//! Fields that are left out of JSON while they have their default value.

/// Returns whether serde skips a field.
pub(super) fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
