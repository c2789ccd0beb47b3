//! Each client's README, followed literally in a fresh folder that has a checkout of the clients and nothing else.
//!
//! What differs from a reader's machine is what pages say of their commands: ports are free ones, numbers are not compared.

use crate::repository;
use crate::script::{Step, steps};
use crate::shell::Shell;
use std::fs;

/// Follows it; it has at least so many files and commands.
#[track_caller]
fn check(client: &str, least: (usize, usize)) {
    let page = format!("clients/{client}/README.md");
    let text = fs::read_to_string(repository(&page)).unwrap();
    let mut shell = Shell::new(None);
    shell.run(&page, &format!("mkdir tidegate && cp -r {} tidegate/clients", repository("clients").display()), "");
    let (mut files, mut commands) = (0, 0);
    for step in steps(&text) {
        match step {
            Step::Toml(text) => shell.write("tidegate.toml", &text),
            Step::File { name, text } => {
                shell.write(&name, &text);
                files += 1;
            }
            Step::Command { line, shown } => {
                shell.run(&page, &line, &shown);
                commands += 1;
            }
        }
    }
    assert!(
        files >= least.0 && commands >= least.1,
        "{page}: {files} files, {commands} commands; are they still found?"
    );
}

#[test]
fn readme_of_python() {
    check("python", (5, 9));
}

#[test]
fn readme_of_javascript() {
    check("js", (4, 8));
}

#[test]
fn readme_of_go() {
    check("go", (3, 8));
}

#[test]
fn readme_of_ruby() {
    check("ruby", (4, 8));
}
