//! Pages that speak of tests stay true: docs/promises.md and its ids, CONTRIBUTING.md and the variables.
//!
//! Tests are found in the text of all crates, so that features and platforms do not matter.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

#[test]
fn promises_and_their_tests_know_each_other() {
    let page = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let (promised, tests) = (ids_of_rows(&page), promise_tests());
    let carried: BTreeSet<String> = tests.iter().flat_map(|test| ids(test)).collect();
    let without_test: Vec<&String> = promised.difference(&carried).collect();
    assert!(without_test.is_empty(), "{without_test:?} are promised, and no test carries them; write it");
    let without_row: Vec<&String> = carried.difference(&promised).collect();
    assert!(without_row.is_empty(), "tests carry {without_row:?}, and docs/promises.md has no row for them; add it");
}

#[test]
fn every_test_that_promises_name_exists() {
    let page = fs::read_to_string(root().join("docs/promises.md")).unwrap();
    let tests = promise_tests();
    for row in page.lines().filter(|line| line.starts_with("| ")) {
        let id: BTreeSet<String> = ids_of_rows(row);
        for name in quoted(row).filter(|name| !ids(name).is_empty()) {
            assert!(tests.contains(name), "docs/promises.md names {name}, and there is no such test");
            assert!(id.iter().all(|id| ids(name).contains(id)), "{name} is named by {id:?} and does not carry it");
        }
    }
}

#[test]
fn every_variable_is_in_contributing() {
    let page = fs::read_to_string(root().join("CONTRIBUTING.md")).unwrap();
    let listed: BTreeSet<&str> = quoted(&page).filter(|name| is_variable(name)).collect();
    let texts: Vec<String> = sources().iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let read = |start: &'static str| texts.iter().flat_map(move |text| text.split(start).skip(1));
    let calls = ["number(\"", "setting(\"", "setting::<u64>(\"", "var_os(\"", "tool(\""];
    let names = calls.into_iter().flat_map(read).map(|rest| rest.split('"').next().unwrap());
    let used: BTreeSet<&str> = names.filter(|name| is_variable(name)).collect();
    assert_eq!(listed, used, "left: the variables that CONTRIBUTING.md lists, right: those that tests read");
}

/// The names of tests that begin with an id.
fn promise_tests() -> BTreeSet<String> {
    let texts = sources().into_iter().map(|file| fs::read_to_string(file).unwrap());
    let names = texts.flat_map(|text| tests_in(&text));
    names.filter(|name| !ids(name).is_empty()).collect()
}

/// The functions that follow an attribute `#[test]` or `#[tokio::test…]`.
fn tests_in(text: &str) -> Vec<String> {
    let (mut found, mut is_test) = (Vec::new(), false);
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[test]") || line.starts_with("#[tokio::test") {
            is_test = true;
        } else if let Some(name) = line.split("fn ").nth(1).filter(|_| is_test && !line.starts_with("//")) {
            found.push(name.split(['(', '<']).next().unwrap().to_owned());
            is_test = false;
        }
    }
    found
}

/// The ids at the beginning of a name: A5 and P4 of `a5_p4_some_thing`.
fn ids(name: &str) -> Vec<String> {
    let is_id = |word: &&str| {
        let (letter, number) = word.split_at_checked(1).unwrap_or_default();
        letter.chars().all(|c| c.is_ascii_lowercase()) && number.parse::<u32>().is_ok()
    };
    name.split('_').take_while(is_id).map(str::to_uppercase).collect()
}

/// The ids that rows of tables begin with.
fn ids_of_rows(page: &str) -> BTreeSet<String> {
    let cells = page.lines().filter_map(|line| line.strip_prefix("| ")?.split(" |").next());
    cells.filter(|cell| !ids(&cell.to_lowercase()).is_empty()).map(str::to_owned).collect()
}

/// What stands between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

fn is_variable(name: &str) -> bool {
    name.starts_with("TIDEGATE_") && name.chars().all(|c| c.is_ascii_uppercase() || c == '_')
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust file of every crate.
fn sources() -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root().join("crates")]);
    while let Some(folder) = folders.pop() {
        for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                found.push(path);
            }
        }
    }
    found
}
