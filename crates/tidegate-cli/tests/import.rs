//! `tidegate import` as people run it: TOML on stdout, notes on stderr, and an exit code.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, stderr, stdout, tidegate};

const SHOP: &str = "domain: shop
descriptors:
  - key: user
    metadata: {team: web}
    rate_limit: {unit: month, requests_per_unit: 100}
  - key: files
    descriptors: [{key: files, rate_limit: {unit: minute, requests_per_unit: 5}}]
";
const API: &str = "domain: api
descriptors:
  - key: not a name
    rate_limit: {unit: hour, requests_per_unit: 2}
";

#[test]
fn a_folder_becomes_a_policy_that_is_valid_and_notes_are_on_stderr() {
    let folder = Folder::new();
    let path = folder.write("shop.yaml", SHOP).parent().unwrap().to_str().unwrap().to_owned();
    folder.write("api.yml", API);
    folder.write("readme.txt", "no YAML");
    let output = tidegate(&["import", "envoy", &path]);
    let (toml, notes) = (stdout(&output), stderr(&output));
    assert_eq!(output.status.code(), Some(0), "{notes}");
    for part in [
        "by = [\"user\"]",
        "limits = [\"100 per 30d\"]",
        "metadata = { team = \"web\" }",
        "by = [\"files\", \"files.2\"]",
        "limits = [\"5 per 1m\"]",
    ] {
        assert!(toml.contains(part), "{part}\n{toml}");
    }
    for note in ["counts requests that it denies", "a month is 30 days", "\"not a name\" cannot be an attribute"] {
        let lines: Vec<&str> = notes.lines().filter(|line| line.contains(note)).collect();
        let [line] = lines[..] else { panic!("{note}: {notes}") };
        let text = line.strip_prefix("note: ").unwrap();
        assert!(toml.contains(&format!("# {text}\n")), "on top of the file, too: {text}\n{toml}");
    }
    assert!(!toml.contains("alternative"), "{toml}");
    let imported = folder.write("imported.toml", &toml);
    let validated = tidegate(&["validate", imported.to_str().unwrap()]);
    assert_eq!(validated.status.code(), Some(0), "{}", stderr(&validated));

    let output = tidegate(&["import", "envoy", "--quota-mode", &path]);
    assert_eq!(stdout(&output).matches("alternative = true").count(), 2, "{}", stdout(&output));
}

#[test]
fn what_cannot_be_read_is_an_error_and_nothing_is_printed() {
    let folder = Folder::new();
    let bad = folder.write("bad.yaml", "domain: d\ndescriptors: [{key: a, ratelimit: {}}]\n");
    let folder_path = bad.parent().unwrap().to_str().unwrap();
    for (path, part) in [
        (folder_path, "bad.yaml, line 2: a descriptor has no setting \"ratelimit\""),
        ("/nowhere", "/nowhere cannot be read"),
    ] {
        let output = tidegate(&["import", "envoy", path]);
        let told = stderr(&output);
        assert_eq!((output.status.code(), stdout(&output).as_str()), (Some(2), ""), "{told}");
        assert!(told.starts_with("error: ") && told.contains(part), "{told}");
    }
}
