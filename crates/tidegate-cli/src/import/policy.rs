//! A policy that was read, on its way to our TOML.
//!
//! A limiter stands for all rules about the same keys of one domain: their values are its `[[limiter.match]]` tables, in the order in which the other
//! program looks for them. So the first that matches is the rule that it would have found, and a request asks one limiter however many rules there are.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use tidegate::{MATCH_VALUES_MAX, MATCHES_MAX, NAME_LEN_MAX, Value, is_address};

/// What came of an import.
#[derive(Default, Debug)]
pub(super) struct Imported {
    /// The files that it was made from.
    pub(super) from: Vec<String>,
    pub(super) by: &'static str,
    pub(super) limiters: Vec<Limiter>,
    /// What could not be carried over.
    pub(super) lost: Vec<String>,
    /// What counts differently here.
    pub(super) different: Vec<String>,
}

/// One limiter.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Limiter {
    pub(super) name: String,
    pub(super) domain: String,
    pub(super) by: Vec<String>,
    pub(super) algorithm: &'static str,
    pub(super) role: Role,
    /// What its rules are called where they come from, if they are.
    pub(super) called: Option<String>,
    /// Rules that are left out where a request meets these, as they are called there.
    pub(super) replaces: Vec<String>,
    /// The first that matches decides; none: nothing limits it.
    pub(super) rows: Vec<Row>,
}

/// What a limiter's word counts for.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) enum Role {
    #[default]
    Enforced,
    /// Counted and told, never deciding.
    Candidate,
    /// One of the alternatives has to allow.
    Alternative,
}

/// Values of the attributes, and what holds for them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Row {
    /// A pattern for each attribute.
    pub(super) values: Vec<String>,
    /// Attributes whose values count together.
    pub(super) together: Vec<String>,
    /// A limit as text; `None`: unlimited.
    pub(super) limit: Option<String>,
    /// What is told of requests that it lets pass: a table of TOML.
    pub(super) metadata: Option<String>,
    /// A word on where it comes from.
    pub(super) comment: String,
}

/// Any value.
pub(super) const ANY: &str = "*";

impl Row {
    fn is_for_all(&self) -> bool {
        self.together.is_empty() && self.values.iter().all(|value| value == ANY)
    }
}

impl Imported {
    /// One more limiter, unless it is none of ours.
    pub(super) fn add(&mut self, limiter: Limiter) {
        match limiter.unfit() {
            None => {
                if let Some(name) = limiter.by.iter().find(|name| is_address(name) && !limiter.names_ipv6()) {
                    self.different.push(format!(
                        "domain \"{}\", key {name}: an IPv6 address counts as its /64 network; ipv6_prefix = 128 counts whole addresses, of which one client has any number",
                        limiter.domain.escape_debug()
                    ));
                }
                self.limiters.push(limiter);
            }
            Some(why) => {
                let (domain, keys) = (limiter.domain.escape_debug(), limiter.by.join(", "));
                self.lost.push(format!("domain \"{domain}\", keys {keys}: {why}"));
            }
        }
    }

    /// Everything that people should know, each in a line.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let lost = self.lost.iter().map(|what| format!("not carried over: {what}"));
        lost.chain(self.different.iter().map(|what| format!("counts differently: {what}")))
    }

    pub(super) fn toml(&self) -> String {
        let mut text =
            format!("# A policy for Tidegate, made by `tidegate import {}` from {}.\n", self.by, self.from.join(", "));
        for note in self.notes() {
            let _ = writeln!(text, "# {note}");
        }
        self.limiters.iter().for_each(|limiter| limiter.write(&mut text, &self.replaced_by(limiter)));
        text
    }

    /// The names of the limiters that a limiter replaces. Rules may be called alike, and a name that none has means nothing.
    fn replaced_by(&self, limiter: &Limiter) -> Vec<String> {
        let is_called = |other: &&Limiter| other.called.as_ref().is_some_and(|name| limiter.replaces.contains(name));
        let others = self.limiters.iter().filter(|other| other.domain == limiter.domain && other.name != limiter.name);
        others.filter(is_called).map(|other| quoted(&other.name)).collect()
    }

    /// The name that rules have where they come from, if it may be a limiter's and is free.
    pub(super) fn own_name(&self, called: Option<&String>) -> Option<String> {
        called.filter(|name| is_name(name) && !self.limiters.iter().any(|other| other.name == **name)).cloned()
    }

    /// A name for a limiter of this domain and these keys that no other has.
    pub(super) fn name_for(&self, domain: &str, by: &[String], end: &str) -> String {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-');
        let whole = std::iter::once(domain).chain(by.iter().map(String::as_str)).collect::<Vec<_>>().join("-");
        let whole: String = whole.chars().map(|c| if is_name(c) { c } else { '-' }).collect();
        let taken: BTreeSet<&str> = self.limiters.iter().map(|limiter| limiter.name.as_str()).collect();
        let cut = |room: usize| whole.chars().take(room).collect::<String>();
        let first = format!("{}{end}", cut(NAME_LEN_MAX - end.len()));
        let numbered = (2..).map(|n| {
            let end = format!("{end}.{n}");
            format!("{}{end}", cut(NAME_LEN_MAX - end.len()))
        });
        std::iter::once(first).chain(numbered).find(|name| !taken.contains(name.as_str())).unwrap_or_default()
    }
}

impl Limiter {
    /// Why it cannot be one of our limiters.
    fn unfit(&self) -> Option<String> {
        let matches = joined(&self.rows).len();
        if matches >= MATCHES_MAX {
            return Some(format!("{matches} different limits by value are more than {}", MATCHES_MAX - 1));
        }
        let (name, no_address) = self.addresses().find(|(name, value)| Value::of(name, value).is_err())?;
        Some(format!("\"{}\" is no address, which values of {name} are here", no_address.escape_debug()))
    }

    /// The values of attributes that are addresses here.
    fn addresses(&self) -> impl Iterator<Item = (&str, &str)> {
        let named = self.rows.iter().flat_map(|row| self.by.iter().zip(&row.values));
        named.map(|(name, value)| (name.as_str(), value.as_str())).filter(|(name, _)| is_address(name))
    }

    /// Has it rules for single addresses of IPv6? Then whole addresses must count.
    fn names_ipv6(&self) -> bool {
        self.addresses().any(|(_, value)| value.contains(':'))
    }

    fn write(&self, text: &mut String, replaced: &[String]) {
        // What holds for all others is the limiter's own; where nothing does, a last row says so.
        let (own, rows) = match self.rows.iter().position(Row::is_for_all) {
            Some(at) => (self.rows[at].limit.as_ref().map(|limit| (limit, &self.rows[at])), &self.rows[..at]),
            None => (None, &self.rows[..]),
        };
        let limits = own.map(|(limit, _)| limit).or_else(|| rows.iter().find_map(|row| row.limit.as_ref()));
        let Some(limits) = limits else { return };
        let by: Vec<String> = self.by.iter().map(|name| quoted(name)).collect();
        let _ = writeln!(text, "\n[[limiter]]\nname = {}\ndomain = {}", quoted(&self.name), quoted(&self.domain));
        let _ = writeln!(text, "by = [{}]\n{}", by.join(", "), self.algorithm);
        if self.names_ipv6() {
            text.push_str("ipv6_prefix = 128\n");
        }
        match self.role {
            Role::Enforced => {}
            Role::Candidate => text.push_str("candidate = true\n"),
            Role::Alternative => text.push_str("alternative = true\n"),
        }
        if !replaced.is_empty() {
            let _ = writeln!(text, "replaces = [{}]", replaced.join(", "));
        }
        let _ = writeln!(text, "limits = [{}]{}", quoted(limits), own.map_or(String::new(), |(_, row)| comment(row)));
        let own_metadata = own.and_then(|(_, row)| row.metadata.as_ref());
        if let Some(metadata) = own_metadata {
            let _ = writeln!(text, "metadata = {metadata}");
        }
        for joined in joined(rows) {
            self.write_rows(text, &joined, own_metadata.is_some());
        }
        if own.is_none() {
            let (values, together) = (vec![ANY.to_owned(); self.by.len()], Vec::new());
            let rest = Row { values, together, limit: None, metadata: None, comment: "no rule".to_owned() };
            self.write_rows(text, &[&rest], false);
        }
    }

    /// Writes rows that differ in one value at most. Where the limiter has metadata, a row says that it has none.
    fn write_rows(&self, text: &mut String, rows: &[&Row], has_metadata: bool) {
        let row = rows[0];
        let more = if rows.len() > 1 { format!(" and {} more", rows.len() - 1) } else { String::new() };
        let _ = writeln!(text, "[[limiter.match]]{}{more}", comment(row));
        let is_for_all = row.values.iter().all(|value| value == ANY);
        for (index, (name, value)) in self.by.iter().zip(&row.values).enumerate() {
            let mut values: Vec<String> = rows.iter().map(|row| quoted(&row.values[index])).collect();
            values.dedup();
            // Any value need not be said, but for one where all are any, or where they count together.
            let is_said = value != ANY || values.len() > 1 || row.together.contains(name);
            if is_said || (is_for_all && index == 0) {
                let values = if values.len() > 1 { format!("[{}]", values.join(", ")) } else { values.concat() };
                let _ = writeln!(text, "{} = {values}", quoted_name(name));
            }
        }
        if !row.together.is_empty() {
            let together: Vec<String> = row.together.iter().map(|name| quoted(name)).collect();
            let _ = writeln!(text, "together = [{}]", together.join(", "));
        }
        match &row.limit {
            Some(limit) => writeln!(text, "limits = [{}]", quoted(limit)),
            None => writeln!(text, "unlimited = true"),
        }
        .unwrap_or_default();
        match (&row.limit, &row.metadata) {
            (Some(_), Some(metadata)) => writeln!(text, "metadata = {metadata}"),
            (Some(_), None) if has_metadata => writeln!(text, "metadata = {{}}"),
            _ => Ok(()),
        }
        .unwrap_or_default();
    }
}

/// Rows that follow one another, have one limit and differ in the same value alone, together: they are one match with several values.
fn joined(rows: &[Row]) -> Vec<Vec<&Row>> {
    let differ =
        |a: &Row, b: &Row| -> Vec<usize> { (0..a.values.len()).filter(|at| a.values[*at] != b.values[*at]).collect() };
    let mut all: Vec<Vec<&Row>> = Vec::new();
    for row in rows {
        if let Some(group) = all.last_mut()
            && group.len() < MATCH_VALUES_MAX
            && (&group[0].limit, &group[0].together, &group[0].metadata) == (&row.limit, &row.together, &row.metadata)
            && let [at] = differ(group[0], row)[..]
            && group.get(1).is_none_or(|second| differ(group[0], second) == [at])
        {
            group.push(row);
        } else {
            all.push(vec![row]);
        }
    }
    all
}

fn comment(row: &Row) -> String {
    if row.comment.is_empty() { String::new() } else { format!("  # {}", row.comment) }
}

/// A name of TOML, bare where it may be.
pub(super) fn quoted_name(name: &str) -> String {
    let is_bare = name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'));
    if is_bare && !name.is_empty() { name.to_owned() } else { quoted(name) }
}

/// A basic string of TOML.
pub(super) fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted.push('"');
    quoted
}

/// May it be the name of a limiter, a domain or an attribute?
pub(super) fn is_name(name: &str) -> bool {
    let ok = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-');
    (1..=NAME_LEN_MAX).contains(&name.len()) && name.bytes().all(ok)
}

/// Words that are settings of a `[[limiter.match]]` table, so that no attribute of that name can be matched there.
pub(super) const TAKEN: [&str; 6] = ["limits", "unlimited", "deny", "together", "metadata", "key"];
