//! What monitors are given, in the real programs: Prometheus scrapes a server and loads the alert rules, promtool judges both, and every
//! query of the Grafana dashboard is answered.
#![allow(clippy::unwrap_used, reason = "a failing unwrap is a failing test")]

mod server;

use server::{Folder, Server, eventually};
use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tidegate_testkit::http;
use tidegate_testkit::servers::Server as Program;

fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples")
}

fn promtool(args: &[&str], input: &str) {
    let mut child =
        Command::new("promtool").args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("promtool");
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "promtool {args:?}: {}", String::from_utf8_lossy(&output.stdout));
}

/// The queries of all panels, with the variables as Grafana fills them in.
fn queries() -> Vec<String> {
    let text = std::fs::read_to_string(examples().join("grafana/tidegate.json")).unwrap();
    let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let targets = panels.flat_map(|panel| panel["targets"].as_array().unwrap());
    let filled =
        |query: &str| query.replace("$__rate_interval", "1m").replace("$instance", ".*").replace("$limiter", ".*");
    targets.map(|target| filled(target["expr"].as_str().unwrap())).collect()
}

/// The names of metrics in a text.
fn metrics_in(text: &str) -> Vec<&str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
    words.filter(|word| word.starts_with("tidegate_")).collect()
}

fn body(address: SocketAddr, path: &str) -> String {
    let text = http::get(address, path, "connection: close\r\n").unwrap();
    text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or(text)
}

#[test]
fn prometheus_takes_the_figures_the_alerts_and_the_dashboards_queries() {
    let folder = Folder::new();
    let config = folder.write(
        "tidegate.toml",
        "[doors]\nhttp = \"127.0.0.1:0\"\nudp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nlimits = [\"2 per minute\"]\ncandidate_limits = [\"1 per minute\"]\n",
    );
    let server = Server::start(&folder, Some(&config));
    (0..4).for_each(|_| drop(server.ask(&["hit", "api", "u1"])));
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    promtool(&["check", "metrics"], &body(address, "/metrics"));
    let rules = examples().join("prometheus/tidegate.rules.yml");
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    promtool(&["test", "rules", examples().join("prometheus/tidegate.rules.test.yml").to_str().unwrap()], "");
    // Each metric that an example names is on the server's page, or documented, as those are which only some servers have.
    let known = include_str!("../../../docs/protocol/http.md").to_owned() + &body(address, "/metrics");
    let known: Vec<&str> = metrics_in(&known);
    let all = queries().join("\n") + &std::fs::read_to_string(&rules).unwrap();
    for metric in metrics_in(&all) {
        let metric = metric.strip_suffix("_bucket").unwrap_or(metric);
        assert!(known.contains(&metric), "{metric} is on no page");
    }
    let prometheus = Program::program(|port, directory| {
        let config = format!(
            "global: {{ scrape_interval: 200ms, evaluation_interval: 200ms }}\nrule_files: [\"{}\"]\n\
             scrape_configs: [{{ job_name: tidegate, static_configs: [{{ targets: [\"{address}\"] }}] }}]\n",
            rules.display()
        );
        let file = directory.join("prometheus.yml");
        std::fs::write(&file, config).unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", file.display()));
        command.arg(format!("--storage.tsdb.path={}", directory.join("data").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command
    });
    let monitor = SocketAddr::from(([127, 0, 0, 1], prometheus.port));
    let ask = |query: &str| {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        body(monitor, &format!("/api/v1/query?query={encoded}"))
    };
    let denied = "tidegate_decisions_total{limiter=\"api\",role=\"enforced\",verdict=\"denied\",door=\"http\"} == 2";
    eventually("Prometheus has the figures", || ask(denied).contains("\"result\":[{"));
    // It prefers OpenMetrics, and took that: the type of a family is known by the name that it has there.
    let families = body(monitor, "/api/v1/metadata?metric=tidegate_decisions");
    assert!(families.contains("\"type\":\"counter\""), "{families}");
    for query in queries() {
        assert!(ask(&query).contains("\"status\":\"success\""), "{query}: {}", ask(&query));
    }
    let rules = body(monitor, "/api/v1/rules");
    assert_eq!(rules.matches("\"alert\":").count().max(rules.matches("\"type\":\"alerting\"").count()), 9, "{rules}");
    eventually("all rules are evaluated", || {
        let rules = body(monitor, "/api/v1/rules");
        rules.matches("\"health\":\"ok\"").count() == 9
    });
}

#[test]
fn denials_are_logged_with_their_reason_and_at_a_bounded_rate() {
    let folder = Folder::new();
    let config = "[doors]\nhttp = \"127.0.0.1:0\"\n[[limiter]]\nname = \"api\"\nlimits = [\"1 per hour\"]\nlog_denials = true\n\
                  [[limiter]]\nname = \"quiet\"\nlimits = [\"0 per hour\"]\n";
    let server = Server::start(&folder, Some(&folder.write("tidegate.toml", config)));
    let address: SocketAddr = server.url.strip_prefix("http://").unwrap().parse().unwrap();
    let mut wire = std::net::TcpStream::connect(address).unwrap();
    let mut hit = |limiter: &str, key: &str| {
        let body = format!("{{\"limiter\":\"{limiter}\",\"key\":\"{key}\"}}");
        http::exchange(&mut wire, "POST /v1/hit", &body).0
    };
    hit("quiet", "unheard");
    let began = std::time::Instant::now();
    let denied = (0..500).filter(|_| hit("api", "a\\nb") == 429).count();
    assert_eq!(denied, 499);
    // Of each second ten lines; the last of them says about how many more there were, by a sample when they are many.
    let lines = |log: &str| log.lines().filter(|line| line.contains(" denied ")).map(str::to_owned).collect::<Vec<_>>();
    let left_out = |line: &String| line.split("left_out=").nth(1).unwrap().trim().parse::<usize>().unwrap();
    let told = |log: &str| lines(log).len() + lines(log).iter().map(left_out).sum::<usize>();
    eventually("denials are told of", || told(&server.log()) >= 100);
    assert!(told(&server.log()) <= 700);
    let log = server.log();
    assert!(lines(&log).len() <= 10 * (2 + usize::try_from(began.elapsed().as_secs()).unwrap()), "{log}");
    for part in
        ["limiter=\"api\"", "key=\"a\\\\nb\"", "reason=\"limited\"", "limit=\"1 per 1h\"", "cost=1", "retry_after_ms="]
    {
        assert!(lines(&log)[0].contains(part), "{part} is not in {log}");
    }
    assert!(!log.contains("unheard"), "{log}");
}
