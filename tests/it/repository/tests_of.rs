//! Finds the tests in a source file.

/// A test, or an entry in the list of a contract, which is a test of each store.
pub struct TestFunction {
    pub name: String,
    /// The comments directly above it, among its attributes.
    pub comments: Vec<String>,
}

pub fn tests_of(code: &str) -> Vec<TestFunction> {
    let (mut tests, mut comments) = (Vec::new(), Vec::new());
    let (mut is_test, mut in_attribute, mut in_contract) = (false, false, false);
    for line in code.lines().map(str::trim) {
        let begins = line.starts_with("#[");
        if begins || in_attribute {
            is_test |= begins && ["test]", "test("].iter().any(|mark| line.contains(mark)) && !line.starts_with("#[cfg");
            // Code after an attribute on its line, such as an argument, is not part of the attribute.
            in_attribute = if begins { line.matches('[').count() > line.matches(']').count() } else { !line.ends_with(']') };
        } else if line.starts_with("//") {
            comments.push(line.to_owned());
        } else {
            in_contract = line == "contract! {" || in_contract && line != "}";
            let function = ["fn ", "async fn "].iter().find_map(|word| line.strip_prefix(word)).filter(|_| is_test);
            let entry = line.strip_suffix(',').filter(|_| in_contract);
            if let Some(rest) = function.or(entry) {
                let name = rest.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
                tests.push(TestFunction { name, comments: std::mem::take(&mut comments) });
            }
            comments.clear();
            is_test = false;
        }
    }
    tests
}
