//! The arrows between crates, what the core may not know at all, and the code map of ARCHITECTURE.md.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

use std::fs;
use std::path::{Path, PathBuf};

/// Crate → the crates of ours that it may depend on.
const ARROWS: [(&str, &[&str]); 9] = [
    ("tidegate-core", &[]),
    ("tidegate-testkit", &[]),
    ("tidegate-wire", &["tidegate-core"]),
    ("tidegate-store", &["tidegate-wire", "tidegate-core"]),
    ("tidegate", &["tidegate-store", "tidegate-core"]),
    ("tidegate-events", &["tidegate-store", "tidegate-wire", "tidegate-core"]),
    ("tidegate-doors", &["tidegate", "tidegate-events", "tidegate-wire", "tidegate-core"]),
    ("tidegate-proxy", &["tidegate", "tidegate-doors", "tidegate-core"]),
    (
        "tidegate-cli",
        &[
            "tidegate",
            "tidegate-core",
            "tidegate-doors",
            "tidegate-events",
            "tidegate-proxy",
            "tidegate-store",
            "tidegate-wire",
        ],
    ),
];

#[test]
fn crates_know_only_those_below_them() {
    for folder in crates() {
        let name = folder.file_name().unwrap().to_str().unwrap().to_owned();
        let (_, allowed) = ARROWS
            .iter()
            .find(|(known, _)| *known == name)
            .unwrap_or_else(|| panic!("{name} has no arrows yet: add them"));
        for dependency in dependencies(&folder.join("Cargo.toml")) {
            if dependency.starts_with("tidegate") {
                assert!(allowed.contains(&dependency.as_str()), "{name} must not know {dependency}");
            }
        }
    }
}

/// The testkit must never be part of what is shipped, and has no types of ours (its first page says why).
#[test]
fn only_tests_know_the_testkit() {
    for folder in crates() {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        for section in manifest.split("\n[").filter(|section| section.contains("\ntidegate-testkit")) {
            let name = section.lines().next().unwrap();
            assert_eq!(name, "dev-dependencies]", "{}: only [dev-dependencies] may name it", folder.display());
        }
    }
}

/// A code map that names a file which was renamed misleads its reader.
#[test]
fn every_file_of_the_code_map_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let page = fs::read_to_string(root.join("../ARCHITECTURE.md")).unwrap();
    let map = page.split("\n## ").find(|section| section.starts_with("Code map")).unwrap();
    let (mut name, mut checked) = ("", 0);
    for row in map.lines().filter(|line| line.starts_with("| ")) {
        name = quoted(row.split('|').nth(1).unwrap()).next().unwrap_or(name);
        for file in quoted(row).filter(|word| word.ends_with(".rs")) {
            let is_there = sources(&root.join(name).join("src")).iter().any(|path| path.ends_with(file));
            assert!(is_there, "ARCHITECTURE.md: {name} has no {file}; correct the code map");
            checked += 1;
        }
    }
    assert!(checked > 100, "only {checked} files are named: is the table still read?");
}

/// The words between backticks.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

#[test]
fn the_core_has_no_dependency_and_no_world() {
    let core = crates().into_iter().find(|folder| folder.ends_with("tidegate-core")).unwrap();
    assert_eq!(dependencies(&core.join("Cargo.toml")), Vec::<String>::new());
    for file in sources(&core.join("src")) {
        let text = fs::read_to_string(&file).unwrap();
        for world in ["std::net", "std::fs", "std::thread", "std::time", "Instant", "SystemTime", "println!"] {
            assert!(!text.contains(world), "{} mentions {world}", file.display());
        }
    }
}

#[test]
fn time_is_read_in_one_place() {
    let readers: Vec<PathBuf> = crates()
        .iter()
        .flat_map(|folder| sources(&folder.join("src")))
        .filter(|file| {
            let text = fs::read_to_string(file).unwrap();
            text.contains("SystemTime::now") || text.contains("UNIX_EPOCH")
        })
        .collect();
    assert!(readers.iter().all(|file| file.ends_with("tidegate-store/src/clock.rs")), "{readers:?}");
    assert_eq!(readers.len(), 1);
}

#[test]
fn unsafe_lives_in_one_module() {
    let files = crates().into_iter().flat_map(|folder| sources(&folder.join("src")));
    let files: Vec<PathBuf> = files.filter(|file| fs::read_to_string(file).unwrap().contains("unsafe ")).collect();
    assert!(files.iter().all(|file| file.ends_with("tidegate-store/src/bare.rs")), "{files:?}");
}

fn crates() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let folders = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    folders.filter(|folder| folder.join("Cargo.toml").exists()).collect()
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
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

/// The names under `[dependencies]` (tests may know more).
fn dependencies(manifest: &Path) -> Vec<String> {
    let text = fs::read_to_string(manifest).unwrap();
    let section = text.split("\n[").find(|section| section.starts_with("dependencies]")).unwrap_or("");
    let lines = section.lines().skip(1).filter(|line| line.contains('=') && !line.starts_with('#'));
    lines.map(|line| line.split(['.', ' ', '=']).next().unwrap().to_owned()).collect()
}
