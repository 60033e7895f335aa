//! `calculate`: arithmetic on 64-bit floating-point numbers.

use exmex::{BinOp, Express as _, FlatEx, FloatOpsFactory, MakeOperators, MatchLiteral, Operator, literal_matcher_from_pattern};

/// The longest expression, in characters.
const MAX_LENGTH: usize = 1_000;
const MAX_DEPTH: usize = 64;
/// The largest integer up to which every integer is exact. Larger results are printed with an exponent.
const MAX_EXACT: f64 = 9_007_199_254_740_992.0;

literal_matcher_from_pattern!(NumberMatcher, r"^(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][+-]?[0-9]+)?");

/// The parser's operators. `*`, `/` and the added `%` are evaluated from left to right.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Operators;

impl MakeOperators<f64> for Operators {
    fn make<'a>() -> Vec<Operator<'a, f64>> {
        let binary = |repr, apply| Operator::make_bin(repr, BinOp { apply, prio: 2, is_commutative: false });
        let mut operators = FloatOpsFactory::<f64>::make();
        operators.retain(|operator| !matches!(operator.repr(), "*" | "/"));
        operators.extend([binary("*", |a, b| a * b), binary("/", |a, b| a / b), binary("%", |a, b| a % b)]);
        operators
    }
}

/// Returns the value of `expression`, or why it cannot be parsed or has no finite value.
pub fn calculate(expression: &str) -> Result<String, String> {
    if expression.chars().count() > MAX_LENGTH {
        return Err(format!("the expression is longer than {MAX_LENGTH} characters"));
    }
    check_depth(expression)?;
    let prepared = prepare(expression)?;
    let parsed = FlatEx::<f64, Operators, NumberMatcher>::parse_wo_compile(&prepared).map_err(|error| unreadable(&error))?;
    if let Some(unknown) = parsed.var_names().first() {
        return Err(format!("the expression cannot be calculated: {unknown} is not supported"));
    }
    let value = parsed.eval(&[]).map_err(|error| unreadable(&error))?;
    if value.is_nan() {
        return Err("the result is not a number".to_owned());
    }
    if value.is_infinite() {
        return Err("the result is not finite: a division by zero, or too large a number".to_owned());
    }
    Ok(show(value))
}

fn unreadable(error: &exmex::ExError) -> String {
    format!("the expression cannot be calculated: {error}")
}

fn check_depth(expression: &str) -> Result<(), String> {
    let mut depth = 0_usize;
    for c in expression.chars() {
        match c {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            // The parser treats braces as quotes around variables, which are not supported.
            '{' | '}' => return Err("the expression cannot be calculated: braces are not supported".to_owned()),
            _ => {}
        }
        if depth > MAX_DEPTH {
            return Err(format!("the expression is nested deeper than {MAX_DEPTH}"));
        }
    }
    Ok(())
}

/// Rewrites an expression for the parser, which binds a sign tighter than a power and evaluates powers from the left. A leading
/// minus becomes a subtraction from 0. Other ambiguous expressions are refused, because their result would differ from the intended
/// one.
fn prepare(expression: &str) -> Result<String, String> {
    let plain = expression.replace("**", "^").replace(['×', '·'], "*").replace('÷', "/").replace('−', "-");
    let tokens: Vec<char> = plain.chars().filter(|c| !c.is_whitespace()).collect();
    let mut before = None;
    for (at, &c) in tokens.iter().enumerate() {
        let sign = matches!(c, '-' | '+') && before.is_some_and(|b| matches!(b, '+' | '-' | '*' | '/' | '%' | '^'));
        if (sign || c == '^') && tokens.get(operand_end(&tokens, at + 1)) == Some(&'^') {
            return Err("the expression is ambiguous: put parentheses around powers that follow a sign or a power".to_owned());
        }
        before = Some(c);
    }
    let mut prepared = String::with_capacity(plain.len() + 8);
    let mut before = None;
    for c in plain.chars() {
        if c == '-' && before.is_none_or(|b| matches!(b, '(' | ',')) {
            prepared.push('0');
        }
        prepared.push(c);
        if !c.is_whitespace() {
            before = Some(c);
        }
    }
    Ok(prepared)
}

/// Returns the end of the operand that begins at `start`: signs, a number or name, and a group in parentheses.
fn operand_end(tokens: &[char], start: usize) -> usize {
    let mut at = start;
    while tokens.get(at).is_some_and(|c| matches!(c, '+' | '-')) {
        at += 1;
    }
    while tokens.get(at).is_some_and(|c| c.is_alphanumeric() || matches!(c, '.' | '_')) {
        at += 1;
    }
    if tokens.get(at) != Some(&'(') {
        return at;
    }
    let mut depth = 0_usize;
    while let Some(c) = tokens.get(at) {
        at += 1;
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            break;
        }
    }
    at
}

fn show(value: f64) -> String {
    // A double is exact to fifteen digits: 0.1 + 0.2 is shown as 0.3.
    let value = format!("{value:.14e}").parse().unwrap_or(value);
    if value == 0.0 {
        return "0".to_owned();
    }
    let magnitude = f64::abs(value);
    if (1e-6..=MAX_EXACT).contains(&magnitude) { format!("{value}") } else { format!("{value:e}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("17*23", "391")]
    #[case("(2 + 3) * 4", "20")]
    #[case("2^10", "1024")]
    #[case("2 ** 10", "1024")]
    #[case("-2^2", "-4")]
    #[case("3*(-2^2)", "-12")]
    #[case("2^-1", "0.5")]
    #[case("5 - -3", "8")]
    #[case("7 / 2", "3.5")]
    #[case("7 % 4", "3")]
    #[case("0.1 + 0.2", "0.3")]
    #[case("1/3", "0.333333333333333")]
    #[case("sqrt(16) + abs(-4)", "8")]
    #[case("sin(PI)", "1.22464679914735e-16")]
    #[case("1e3", "1000")]
    #[case("1.5E-3 * 2", "0.003")]
    #[case("2*E", "5.43656365691809")]
    #[case("10 % 4 / 2", "1")]
    #[case("2 * 10 % 4", "0")]
    #[case("8 / 4 * 2", "4")]
    #[case(".5 + 1.", "1.5")]
    #[case("123456789 * 98765", "12193209765585")]
    #[case("10^20", "1e20")]
    #[case("1-1", "0")]
    #[case("0-0", "0")]
    #[case("round(2.6)", "3")]
    #[case("10 - 4 - 3", "3")]
    #[case("100/10/2", "5")]
    #[case("2*3+4*5", "26")]
    fn calculates(#[case] expression: &str, #[case] expected: &str) {
        assert_eq!(calculate(expression).as_deref(), Ok(expected), "{expression}");
    }

    #[rstest]
    #[case("1/0", "not finite")]
    #[case("10^400", "not finite")]
    #[case("sqrt(0-1)", "not a number")]
    #[case("", "cannot be calculated")]
    #[case("2 +", "cannot be calculated")]
    #[case("x + 1", "cannot be calculated")]
    #[case("import os", "cannot be calculated")]
    #[case("(1", "cannot be calculated")]
    #[case("1)", "cannot be calculated")]
    #[case("{x}", "braces")]
    #[case("2^3^2", "ambiguous")]
    #[case("6/-2^2", "ambiguous")]
    fn refuses_in_words(#[case] expression: &str, #[case] reason: &str) {
        let error = calculate(expression).unwrap_err();
        assert!(error.contains(reason), "{expression}: {error}");
    }

    #[test]
    fn length_and_depth_are_bounded() {
        assert!(calculate(&"1+".repeat(501)).unwrap_err().contains("longer"));
        let nested = |depth| format!("{}1{}", "(".repeat(depth), ")".repeat(depth));
        assert_eq!(calculate(&nested(64)).as_deref(), Ok("1"));
        assert!(calculate(&nested(65)).unwrap_err().contains("deeper"));
        // A thousand signs must neither overflow the stack nor take long.
        assert!(calculate(&format!("{}1", "-".repeat(999))).is_ok());
    }
}
