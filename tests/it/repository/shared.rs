//! Tests of the shared parts of the tests.

use support::measure::percentile;
use support::script::{Act, Script};

#[test]
fn percentile_is_the_least_that_covers() {
    let values: Vec<u32> = (1..=200).rev().collect();
    assert_eq!((percentile(&values, 50), percentile(&values, 99), percentile(&values, 100)), (100, 198, 200));
    assert_eq!(percentile(&[7], 50), 7);
}

#[test]
fn script_is_read() {
    let script = Script::parse(r#"do it [[id:x1]] [[call:a__b {"c":[[1]]}]][[call:d]] [[next]] [[text:3,20]][[hold]][[say:bye]]"#);
    assert_eq!(script.id, "x1");
    let first = [
        Act::Call { name: "a__b".into(), arguments: r#"{"c":[[1]]}"#.into() },
        Act::Call { name: "d".into(), arguments: "{}".into() },
    ];
    assert_eq!(script.rounds[0], first);
    assert_eq!(script.rounds[1], [Act::Text(3, 20), Act::Hold, Act::Say("bye".into())]);
    let script = Script::parse("[[end]][[or]][[hold]][[next]][[cut]]");
    assert_eq!([1, 2, 3].map(|time| script.acts(0, time, false)), [[Act::End], [Act::Hold], [Act::Hold]]);
    assert_eq!((script.acts(1, 2, false), script.acts(2, 1, false)), (vec![Act::Cut], Vec::new()));
}
