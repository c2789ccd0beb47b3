//! Our clients in other languages: their own tests and linters, their READMEs as a reader follows them, and the examples.
//!
//! Each client's tests start `tidegate serve` themselves, kill it, stop it and start it again. What they need of others is
//! installed by its own package manager into `target/client-tools`, once; compilers and Ruby's packages by scripts/test.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

#[path = "../server/mod.rs"]
mod server;

#[path = "../pages/script.rs"]
mod script;
#[path = "../pages/shell.rs"]
mod shell;

mod examples;
mod readmes;

use server::TIDEGATE;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use tidegate_testkit::slowness;

/// A folder of the repository.
fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path).canonicalize().unwrap()
}

/// What clients, linters and examples need of others, installed beside the test's own binary.
struct Tools(PathBuf);

impl Tools {
    const PYTHON: [&str; 6] =
        ["redis==8.1.0", "ruff==0.15.18", "mypy==2.1.0", "fastapi<1", "uvicorn<1", "python-multipart<1"];
    const NODE: [&str; 5] = ["express@5", "fastify@5", "typescript@5", "@types/express@5", "@types/node@20"];

    fn installed() -> Tools {
        let target = Path::new(TIDEGATE).ancestors().nth(2).unwrap().join("client-tools");
        fs::create_dir_all(&target).unwrap();
        let lock = File::create(target.join("lock")).unwrap();
        lock.lock().unwrap();
        let tools = Tools(target);
        if !tools.0.join("done").exists() {
            let install = ["install", "--silent", "--no-audit", "--no-fund", "--prefix"];
            run(Command::new("npm").args(install).arg(&tools.0).args(Tools::NODE));
            run(Command::new("python3").args(["-m", "venv"]).arg(tools.0.join("venv")));
            run(tools.python("pip").args(["install", "--quiet", "--progress-bar=off"]).args(Tools::PYTHON));
            fs::write(tools.0.join("done"), "").unwrap();
        }
        tools
    }

    /// A program of the virtual environment.
    fn python(&self, program: &str) -> Command {
        Command::new(self.0.join("venv/bin").join(program))
    }

    fn node_modules(&self) -> PathBuf {
        self.0.join("node_modules")
    }
}

/// Runs a command to its end, and gives what it said.
#[track_caller]
fn run(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}; scripts/test installs it"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// The same for a client's tests, in its folder.
#[track_caller]
fn suite(command: &mut Command, folder: &str) {
    // Tests write nothing into the repository.
    let command = command.current_dir(repository(folder)).env("PYTHONDONTWRITEBYTECODE", "1");
    run(command.env("TIDEGATE", TIDEGATE).env("SLOWNESS", slowness().to_string()));
}

/// A cache of its own, in the target folder, and nothing from the network.
fn go() -> Command {
    let cache = Path::new(TIDEGATE).ancestors().nth(2).unwrap().join("client-tools/go");
    let mut go = Command::new("go");
    go.env("GOCACHE", cache.join("cache")).env("GOPATH", cache).env("GOPROXY", "off").env("GOFLAGS", "-mod=mod");
    go
}

#[test]
fn tests_of_python() {
    let tools = Tools::installed();
    suite(tools.python("python").args(["-W", "error", "-m", "unittest"]).env("PYTHONPATH", "src"), "clients/python");
}

#[test]
fn tests_of_javascript() {
    let tools = Tools::installed();
    suite(Command::new("node").args(["--test", "tests/"]).env("NODE_PATH", tools.node_modules()), "clients/js");
}

#[test]
fn tests_of_go() {
    suite(go().args(["test", "-count=1", "./..."]), "clients/go");
}

/// Every test, with the Rack that the system has.
#[test]
fn tests_of_ruby() {
    let all = "Dir['test/*_test.rb'].each { |file| require \"./#{file}\" }";
    suite(Command::new("ruby").args(["-w", "-Ilib", "-Itest", "-e", all]), "clients/ruby");
}

/// The middleware's tests once more with Rack 3, which `scripts/test` puts into `target/tools`.
#[test]
fn tests_of_ruby_with_rack_3() {
    let tools = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/tools/rack3");
    let gems = tools.join("usr/share/rubygems-integration/all/gems");
    let gem = fs::read_dir(&gems).unwrap_or_else(|error| panic!("{}: {error}; scripts/test brings it", gems.display()));
    let library = gem.map(|entry| entry.unwrap().path().join("lib")).next().unwrap().canonicalize().unwrap();
    let tests = "require 'rack'; Rack.release >= '3' or abort Rack.release; require './test/rack_test.rb'";
    let mut ruby = Command::new("ruby");
    suite(ruby.arg("-I").arg(library).args(["-w", "-Ilib", "-Itest", "-e", tests]), "clients/ruby");
}

/// The linters of each language have nothing to say.
#[test]
fn python_reads_well() {
    let tools = Tools::installed();
    let cache = tools.0.join("mypy");
    for (folder, rules) in [("clients/python", &[][..]), ("examples", &["--line-length=120"])] {
        suite(tools.python("ruff").args(["check", "--no-cache"]).args(rules).arg("."), folder);
        suite(tools.python("ruff").args(["format", "--no-cache", "--check"]).args(rules).arg("."), folder);
    }
    suite(tools.python("mypy").arg("--cache-dir").arg(cache), "clients/python");
}

/// The types compile, and a program that misuses them does not.
#[test]
fn typescript_reads_well() {
    let (tools, folder) = (Tools::installed(), server::Folder::new());
    std::os::unix::fs::symlink(tools.node_modules(), folder.path("node_modules")).unwrap();
    let package = tools.node_modules().join("tidegate");
    let _ = fs::remove_file(&package);
    std::os::unix::fs::symlink(repository("clients/js"), package).unwrap();
    for file in ["types.ts", "tsconfig.json"] {
        fs::copy(repository("clients/js/tests").join(file), folder.path(file)).unwrap();
    }
    folder.write("package.json", "{\"type\":\"module\"}");
    run(Command::new(tools.node_modules().join(".bin/tsc")).arg("-p").arg(folder.path("")));
}

#[test]
fn go_reads_well() {
    let formatted = run(Command::new("gofmt").arg("-l").arg(repository("clients/go")));
    assert_eq!(formatted, "", "gofmt -w these files");
    suite(go().args(["vet", "./..."]), "clients/go");
}

#[test]
fn ruby_reads_well() {
    for folder in ["lib", "lib/tidegate", "test"] {
        for file in fs::read_dir(repository("clients/ruby").join(folder)).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "rb") {
                let checked = Command::new("ruby").arg("-wc").arg(&file).output().unwrap();
                assert_eq!(String::from_utf8_lossy(&checked.stderr), "", "{}", file.display());
                assert_eq!(String::from_utf8_lossy(&checked.stdout), "Syntax OK\n", "{}", file.display());
            }
        }
    }
}
