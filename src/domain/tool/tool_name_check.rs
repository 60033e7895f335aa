//! Names of tools in settings, agents and requests. Each names one tool: a name that looks like a pattern is refused, because a
//! rule that matches nothing protects nothing.

/// The longest name that models see, in bytes.
const MAX_NAME: usize = 64;

/// Characters of globs and regular expressions, and of lists.
const PATTERN: [char; 15] = ['*', '?', '[', ']', '{', '}', '(', ')', '|', '^', '$', '+', '\\', ',', '!'];

/// Checks the name of one tool as models see it, such as `mail__send`.
pub fn check_tool_name(name: &str) -> Result<(), String> {
    check_no_pattern(name)?;
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if (1..=MAX_NAME).contains(&name.len()) && name.bytes().all(fits) {
        return Ok(());
    }
    Err(format!(
        "{name:?} cannot be the name of a tool: write the name that models see, such as mail__send; it has 1 to {MAX_NAME} \
         letters, digits, _ and -"
    ))
}

/// Checks the name of one tool as its server knows it, or of a server.
pub fn check_no_pattern(name: &str) -> Result<(), String> {
    if name.trim().is_empty() {
        return Err("an empty name: write the whole name".to_owned());
    }
    if name.contains(PATTERN) {
        return Err(format!("{name:?} is a pattern or a list, and neither is supported: write each name separately"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("mail__send")]
    #[case("calculate")]
    #[case("a-b__c_0a1b2c3d")]
    fn name_of_one_tool_is_accepted(#[case] name: &str) {
        assert_eq!(check_tool_name(name), Ok(()));
    }

    #[rstest]
    #[case("m__*", "pattern")]
    #[case("*", "pattern")]
    #[case("m__?", "pattern")]
    #[case("m__[ab]", "pattern")]
    #[case("^m__.+$", "pattern")]
    #[case("m__a,m__b", "pattern")]
    #[case("!m__a", "pattern")]
    #[case("m__{a,b}", "pattern")]
    #[case("", "empty")]
    #[case(" ", "empty")]
    #[case("m__a m__b", "cannot be the name")]
    #[case("m/a", "cannot be the name")]
    #[case("m.a", "cannot be the name")]
    fn pattern_or_impossible_name_is_refused(#[case] name: &str, #[case] reason: &str) {
        let error = check_tool_name(name).unwrap_err();
        assert!(error.contains(reason), "{error}");
    }

    #[test]
    fn name_at_a_server_may_have_dots_and_slashes() {
        assert_eq!(check_no_pattern("files/read.v2"), Ok(()));
        assert!(check_no_pattern("files/*").is_err());
    }
}
