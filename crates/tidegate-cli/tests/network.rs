//! Asked from another host: a network namespace with an address of its own, and docs/guide/exposing-it.md followed as it is printed.
//!
//! Namespaces need privileges. Where there are none the test says so and ends; in CI (`CI` is set) it fails.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, TIDEGATE, eventually, stderr, stdout};
use std::fs::{self, File};
use std::net::TcpStream;
use std::process::{Child, Command, Output, Stdio};
use tidegate_testkit::servers::free_port;

const GUIDE: &str = include_str!("../../../docs/guide/exposing-it.md");

/// Another host: `here` is this one as it sees it. Gone with the test.
struct OtherHost {
    name: String,
    link: String,
    here: String,
}

impl OtherHost {
    /// `None`: not permitted here.
    fn new() -> Option<OtherHost> {
        let pid = std::process::id();
        let (name, link, there) = (format!("tidegate-{pid}"), format!("tgh{pid}"), format!("tgt{pid}"));
        let net = format!("10.213.{}", pid % 250);
        let host = OtherHost { here: format!("{net}.1"), name: name.clone(), link: link.clone() };
        let steps = [
            format!("netns add {name}"),
            format!("link add {link} type veth peer name {there}"),
            format!("link set {there} netns {name}"),
            format!("addr add {net}.1/24 dev {link}"),
            format!("link set {link} up"),
            format!("-n {name} addr add {net}.2/24 dev {there}"),
            format!("-n {name} link set {there} up"),
            format!("-n {name} link set lo up"),
        ];
        for step in steps {
            let made = Command::new("ip").args(step.split(' ')).output();
            if let Some(why) = made
                .map_or_else(|error| Some(error.to_string()), |made| (!made.status.success()).then(|| stderr(&made)))
            {
                assert!(
                    std::env::var_os("CI").is_none(),
                    "ip {step}: {why}; CI has to show this: run it with privileges"
                );
                eprintln!("skipped: ip {step}: {why}");
                return None;
            }
        }
        Some(host)
    }

    fn run(&self, program: &str, args: &[&str]) -> Output {
        Command::new("ip").args(["netns", "exec", &self.name, program]).args(args).output().unwrap()
    }

    /// curl's status from there; 000: nobody listens.
    fn status(&self, url: &str, args: &[&str]) -> String {
        stdout(&self.run("curl", &[&["-s", "-m", "10", "-o", "/dev/null", "-w", "%{http_code}", url], args].concat()))
    }
}

impl Drop for OtherHost {
    fn drop(&mut self) {
        for step in [["link", "del", &self.link], ["netns", "del", &self.name]] {
            let _ = Command::new("ip").args(step).stderr(Stdio::null()).status();
        }
    }
}

/// The blocks of one kind under a heading of the guide.
fn blocks(heading: &str, kind: &str) -> Vec<String> {
    let (guide, heading, fence) = (format!("\n{GUIDE}"), format!("\n{heading}\n"), format!("```{kind}\n"));
    let (_, section) = guide.split_once(&heading).unwrap_or_else(|| panic!("the guide has no {heading}"));
    let section = section.split("\n## ").next().unwrap();
    section.split(fence.as_str()).skip(1).map(|block| block.split("```").next().unwrap().to_owned()).collect()
}

/// A reader of the guide: a folder, `tidegate` in the path, and ports of its own.
struct Reader {
    folder: Folder,
    ports: [(&'static str, u16); 2],
    serving: Option<Child>,
}

impl Reader {
    fn new() -> Reader {
        let folder = Folder::new();
        fs::create_dir(folder.path("bin")).unwrap();
        std::os::unix::fs::symlink(TIDEGATE, folder.path("bin/tidegate")).unwrap();
        Reader { folder, ports: [("7400", free_port()), ("7401", free_port())], serving: None }
    }

    fn with_ports(&self, text: &str) -> String {
        self.ports.iter().fold(text.to_owned(), |text, (printed, free)| text.replace(printed, &free.to_string()))
    }

    fn http(&self) -> u16 {
        self.ports[0].1
    }

    /// Writes the file that a `toml` block is.
    fn write(&self, text: &str) {
        self.folder.write("tidegate.toml", &self.with_ports(text));
    }

    /// Runs a line as it is printed; a server until the next one.
    fn run(&mut self, line: &str) -> Output {
        let line = &self.with_ports(line);
        let path = format!("{}:{}", self.folder.path("bin").display(), std::env::var("PATH").unwrap());
        let mut shell = Command::new("sh");
        shell
            .current_dir(self.folder.path(""))
            .env("PATH", path)
            .env("TIDEGATE_SERVER", format!("http://127.0.0.1:{}", self.http()));
        if !line.starts_with("tidegate serve") {
            return shell.args(["-c", line]).output().unwrap();
        }
        self.stop();
        let log = File::create(self.folder.path("log")).unwrap();
        shell.args(["-c", &format!("exec {line}")]).stdout(log.try_clone().unwrap()).stderr(log);
        let mut child = shell.spawn().unwrap();
        let mut ended = None;
        let listens = || TcpStream::connect(("127.0.0.1", self.http())).is_ok();
        eventually("the server listens or ends", || {
            ended = child.try_wait().unwrap();
            ended.is_some() || listens()
        });
        let said = fs::read(self.folder.path("log")).unwrap();
        if ended.is_none() {
            self.serving = Some(child);
        }
        Output { status: ended.unwrap_or_default(), stdout: said, stderr: Vec::new() }
    }

    #[track_caller]
    fn follow(&mut self, lines: &str) {
        for line in lines.lines().filter(|line| !line.is_empty()) {
            let output = self.run(line);
            assert!(output.status.success(), "{line}: {}{}", stdout(&output), stderr(&output));
        }
    }

    fn stop(&mut self) {
        if let Some(mut child) = self.serving.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    fn bearer(&self, name: &str) -> String {
        format!(
            "Authorization: Bearer {}",
            fs::read_to_string(self.folder.path(&format!("{name}.token"))).unwrap().trim()
        )
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Nginx(Child);

impl Nginx {
    /// The guide's locations on an address of the network, with a file in the place of the application.
    fn start(reader: &Reader, host: &OtherHost, locations: &str, port: u16) -> Nginx {
        let root = reader.folder.path("").display().to_string();
        reader.folder.write("login", "welcome\n");
        let locations = reader.with_ports(locations).replace("proxy_pass http://app;", &format!("root {root};"));
        let config = format!(
            "daemon off; master_process off; pid {root}/nginx.pid;\nevents {{}}\nhttp {{\naccess_log off;\n\
             client_body_temp_path {root}/a; proxy_temp_path {root}/b; fastcgi_temp_path {root}/c;\n\
             uwsgi_temp_path {root}/d; scgi_temp_path {root}/e;\nserver {{\nlisten {}:{port};\n{locations}\n}}\n}}\n",
            host.here
        );
        let file = reader.folder.write("nginx.conf", &config);
        let child = Command::new("nginx").args(["-e", "stderr", "-c"]).arg(file).stderr(Stdio::null()).spawn();
        let nginx = Nginx(child.expect("nginx is installed by scripts/test"));
        eventually("nginx listens", || TcpStream::connect((host.here.as_str(), port)).is_ok());
        nginx
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn s4_from_another_host_the_guides_set_ups_hold() {
    let Some(host) = OtherHost::new() else { return };
    let mut reader = Reader::new();
    let direct = format!("http://{}:{}", host.here, reader.http());

    // Refused: nothing listens.
    reader.write(&blocks("# How do I expose it safely?", "toml")[0]);
    let refused = reader.run("tidegate serve --config tidegate.toml");
    assert_eq!(refused.status.code(), Some(2), "{}", stdout(&refused));
    assert!(stdout(&refused).contains("can be reached from other machines"));
    assert_eq!(host.status(&format!("{direct}/v1/limiters"), &[]), "000");

    for line in blocks("## Tokens", "console")[0].lines().filter_map(|line| line.strip_prefix("$ ")) {
        reader.follow(line);
    }

    // Behind nginx: it is limited, and Tidegate itself is not there.
    reader.write(&blocks("## Behind nginx", "toml")[0]);
    reader.follow(&blocks("## Behind nginx", "sh")[0]);
    let port = free_port();
    let nginx = Nginx::start(&reader, &host, &blocks("## Behind nginx", "nginx")[0], port);
    let login = format!("http://{}:{port}/login", host.here);
    let page = [
        "-H",
        "Origin: http://elsewhere.example",
        "-H",
        "Sec-Fetch-Site: cross-site",
        "-H",
        "Authorization: Basic eDp5",
    ];
    let statuses: Vec<String> = (0..4).map(|_| host.status(&login, &page)).collect();
    assert_eq!(
        statuses,
        ["200", "200", "200", "429"],
        "visitors may come from other sites, and have a login of their own"
    );
    assert_eq!(host.status(&format!("{direct}/livez"), &[]), "000", "only nginx is reached");
    drop(nginx);

    // With TLS and tokens: on the network, under the name in the certificate, with a token.
    let with_tls = "## With TLS and tokens";
    let shell = blocks(with_tls, "sh");
    reader.follow(&shell[0]);
    reader.write(&blocks(with_tls, "toml")[0]);
    reader.follow(&shell[1]);
    let named = format!("https://tidegate.example:{}", reader.http());
    let resolve = format!("tidegate.example:{}:{}", reader.http(), host.here);
    let ca = reader.folder.path("ca.pem").display().to_string();
    let trusting = ["--cacert", &ca, "--resolve", &resolve];
    let ask = |path: &str, args: &[&str]| host.status(&format!("{named}{path}"), &[&trusting, args].concat());
    let (ops, nginx) = (reader.bearer("ops"), reader.bearer("nginx"));
    let hit = ["-d", r#"{"limiter":"login-ip","key":"192.0.2.1"}"#];
    assert_eq!(ask("/livez", &[]), "200");
    assert_eq!(host.status(&format!("{named}/livez"), &["--resolve", &resolve]), "000", "nobody else's certificate");
    assert_eq!(host.status(&format!("{direct}/v1/limiters"), &["-H", &ops]), "400", "no token in the clear");
    assert_eq!(ask("/v1/hit", &hit), "401");
    assert_eq!(ask("/v1/hit", &[&hit[..], &["-H", &ops]].concat()), "403");
    for status in ["200", "200", "200", "429"] {
        assert_eq!(ask("/v1/hit", &[&hit[..], &["-H", &nginx]].concat()), status, "refused ones were not charged");
    }
    for (bearer, status) in [(&nginx, "403"), (&ops, "200")] {
        let block = ["-X", "PUT", "-d", r#"{"for":"1h"}"#, "-H", bearer];
        assert_eq!(ask("/v1/limiters/login-ip/keys/x/block", &block), status);
    }
    let udp = reader.ports[1].1;
    let pinged = host.run(TIDEGATE, &["udp", &format!("{}:{udp}", host.here), "ping"]);
    assert!(pinged.status.success(), "10.0.0.0/8 may ask: {}", stderr(&pinged));
    let pinged = reader.run(&format!("tidegate udp 127.0.0.1:{udp} ping"));
    assert!(!pinged.status.success(), "and nobody else: {}", stdout(&pinged));

    // In a mesh: certificates instead of tokens.
    let shell = blocks("## In a mesh", "sh");
    reader.follow(&shell[0]);
    let document = blocks("## In a mesh", "console")[0].replace("$ cat", "cat");
    assert!(reader.run(&document).status.success(), "{document}");
    reader.write(&blocks("## In a mesh", "toml")[0]);
    reader.follow(&shell[1]);
    let files =
        |name: &str| ["pem", "key"].map(|end| reader.folder.path(&format!("{name}.{end}")).display().to_string());
    let (login, monitor) = (files("login"), files("monitor"));
    let by = |[cert, key]: &[String; 2], path: &str, args: &[&str]| {
        ask(path, &[&["--cert", cert.as_str(), "--key", key.as_str()], args].concat())
    };
    assert_eq!(ask("/livez", &[]), "000", "no certificate, no handshake");
    assert_eq!(by(&monitor, "/v1/hit", &hit), "403");
    // One was spent by the guide's own command.
    for status in ["200", "200", "429"] {
        assert_eq!(by(&login, "/v1/hit", &hit), status, "refused ones were not charged");
    }
    assert_eq!(by(&login, "/v1/limiters", &[]), "403");
    assert_eq!(by(&monitor, "/v1/limiters", &[]), "200");
    assert_eq!(by(&monitor, "/v1/limiters", &["-H", "Host: evil.example"]), "403", "rebinding");
    assert_eq!(by(&monitor, "/v1/limiters", &["-H", "Origin: https://evil.example"]), "403", "a browser that has one");
    assert_eq!(by(&login, "/v1/limiters/login-ip/disable", &["-X", "POST"]), "403");

    // Open on purpose.
    let open = blocks("# How do I expose it safely?", "toml")[0]
        .replace("[[limiter]]", "[access]\nopen = [\"http\"]\n[[limiter]]");
    reader.write(&open);
    let served = reader.run("tidegate serve --config tidegate.toml");
    assert!(served.status.success() && reader.serving.is_some());
    eventually("the log says what is open", || {
        fs::read_to_string(reader.folder.path("log")).unwrap().contains("is open to whoever reaches it")
    });
    let hit = [&format!("{direct}/v1/hit")[..], "-d", r#"{"limiter":"api","key":"u1"}"#];
    assert_eq!(host.status(hit[0], &hit[1..]), "200");
    assert_eq!(host.status(hit[0], &[&hit[1..], &["-H", "Host: evil.example"]].concat()), "403", "rebinding");
    assert_eq!(
        host.status(&format!("{direct}/v1/limiters/api/disable"), &["-X", "POST"]),
        "403",
        "what an operator does"
    );
}
