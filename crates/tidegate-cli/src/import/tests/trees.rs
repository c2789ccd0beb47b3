//! Configurations as short texts, of which the YAML of envoyproxy/ratelimit is made, and the tree that the model walks down.
//!
//! A line is a rule: `key[=value] [COUNT/UNIT | COUNT/TIMESxUNIT | unlimited] [WORD…]`, under the rule that is indented less. Words: `shadow`, `quota`, `share`, `detailed`,
//! `metadata`, `name:NAME`, `replaces:NAME`. The shapes of [`VALID`] are those that the files of that project's own tests have; keys, values and limits are ours.

use std::fmt::Write as _;

#[derive(Clone, Default, Debug)]
pub(super) struct Rule {
    pub(super) key: String,
    /// Empty: any.
    pub(super) value: String,
    /// `COUNT/UNIT`, or `unlimited`.
    pub(super) limit: Option<String>,
    pub(super) words: Vec<String>,
    pub(super) children: Vec<Rule>,
}

impl Rule {
    pub(super) fn is(&self, word: &str) -> bool {
        self.words.iter().any(|own| own == word)
    }

    /// What stands behind `name:` or `replaces:`.
    pub(super) fn named(&self, word: &str) -> Vec<&str> {
        self.words.iter().filter_map(|own| own.strip_prefix(word)?.strip_prefix(':')).collect()
    }
}

/// The rules of a text.
pub(super) fn read(text: &str) -> Vec<Rule> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    below(&lines)
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

fn below(mut lines: &[&str]) -> Vec<Rule> {
    let mut rules = Vec::new();
    while let Some((first, rest)) = lines.split_first() {
        let end = rest.iter().position(|line| indent(line) <= indent(first)).unwrap_or(rest.len());
        rules.push(Rule { children: below(&rest[..end]), ..rule(first) });
        lines = &rest[end..];
    }
    rules
}

fn rule(line: &str) -> Rule {
    let mut rule = Rule::default();
    let mut words = line.split_whitespace();
    let (key, value) = words.next().map(|word| word.split_once('=').unwrap_or((word, ""))).unwrap();
    (rule.key, rule.value) = (key.to_owned(), value.to_owned());
    for word in words {
        let is_limit = word == "unlimited" || word.starts_with(|c: char| c.is_ascii_digit());
        if is_limit { rule.limit = Some(word.to_owned()) } else { rule.words.push(word.to_owned()) }
    }
    rule
}

/// A file of that domain.
pub(super) fn yaml(rules: &[Rule]) -> String {
    let mut text = "domain: d\ndescriptors:\n".to_owned();
    write(rules, 1, &mut text);
    text
}

fn write(rules: &[Rule], depth: usize, text: &mut String) {
    let indent = "  ".repeat(depth);
    for rule in rules {
        let _ = writeln!(text, "{indent}- key: {}", rule.key);
        let mut say = |line: String| {
            let _ = writeln!(text, "{indent}  {line}");
        };
        if !rule.value.is_empty() {
            say(format!("value: \"{}\"", rule.value));
        }
        let flags = [
            ("shadow", "shadow_mode: true"),
            ("quota", "quota_mode: true"),
            ("share", "share_threshold: true"),
            ("detailed", "detailed_metric: true"),
            ("metadata", "metadata: {team: {name: a}}"),
        ];
        flags.iter().filter(|(word, _)| rule.is(word)).for_each(|(_, line)| say((*line).to_owned()));
        if let Some(limit) = &rule.limit {
            let limit = match limit.split_once('/') {
                Some((count, unit)) => match unit.split_once('x') {
                    Some((times, unit)) => {
                        format!("unit: {unit}, requests_per_unit: {count}, unit_multiplier: {times}")
                    }
                    None => format!("unit: {unit}, requests_per_unit: {count}"),
                },
                None => "unlimited: true".to_owned(),
            };
            let name = rule.named("name").first().map_or(String::new(), |name| format!(", name: {name}"));
            let replaces: Vec<String> = rule.named("replaces").iter().map(|name| format!("{{name: {name}}}")).collect();
            let replaces =
                if replaces.is_empty() { String::new() } else { format!(", replaces: [{}]", replaces.join(", ")) };
            say(format!("rate_limit: {{{limit}{name}{replaces}}}"));
        }
        if !rule.children.is_empty() {
            say("descriptors:".to_owned());
            write(&rule.children, depth + 2, text);
        }
    }
}

/// The shapes of that project's valid files: a name for each, and its files.
pub(super) const VALID: [(&str, &[&str]); 7] = [
    (
        "keys with and without values, nested, unlimited, named",
        &["
        plan=gold
          user 5/second
          user=root 10/second
        path 20/minute
        path=/slow 30/minute
        path=/free
        ip 1/hour
        team 1/day name:team-day
        app=a 15/day
          user=u 25/day
        open unlimited
        told 70/minute detailed"],
    ),
    ("one domain in two files", &["path=/x 10/minute", "user=u 20/minute"]),
    ("one domain in two files without rules", &["", ""]),
    (
        "metadata",
        &["
        plan=gold
          user 5/second metadata
          user=root 10/second
        path 20/minute metadata"],
    ),
    (
        "shadow_mode at both levels",
        &["
        plan=gold
          user 5/second
          user=root 10/second shadow
        path 20/minute shadow
        path=/slow 30/minute"],
    ),
    (
        "share_threshold: at the end, above, nested, beside an exact value, with stars in the middle",
        &["
        path=/api* 100/minute share
        app=a
          path=/a* 200/minute share
        user=u* share
          user=u1* 300/minute share
        team=t* share
          plan 60/minute detailed
        zone=z* share
          host=h*
            kind 120/minute
        area=a* share
          host=h* share
            kind 150/minute
        file=v1 50/minute
        file=v* 101/minute share
        link=/a*v1 102/minute share
        link=x*y*z 51/minute share
        site=* 52/minute share
        unit=t*p share
          host=h*2 61/minute share"],
    ),
    (
        "stars at the end, in the middle and several, and nested",
        &["
        path=/api* 20/minute
        path=/api/v1 21/minute
        user=root 20/minute
        ip 20/minute
        file=/a*b 22/minute
        link=u*1*z 10/minute
        app=a
          path=/a* 20/minute"],
    ),
];

/// Trees that those files do not have: walks that do not go back up, quotas, names and what they replace, long periods, and keys within themselves.
pub(super) const MORE: [&str; 5] = [
    "
    plan=g*
      user=u* 1/minute
      user 2/minute
    plan=gold 3/minute
    plan 4/minute
      user 5/minute
        path=*v1* 6/minute",
    "
    user=root unlimited
    user 7/second
    path unlimited
      user 8/second
    plan=gold 0/second",
    "
    user
      plan=gold
        path=/slow 9/second",
    "
    plan=gold 0/minute quota name:gold replaces:all replaces:nobody
    plan 9/minute quota name:plan
    user=u* 0/minute quota
    user 9/minute quota shadow
    path=/a* 0/minute name:all
    path 9/minute name:all replaces:gold replaces:app
    app=a 0/minute name:app replaces:tin
    app=x 0/minute shadow name:all
    app 9/minute name:tin
    ip 0/minute",
    "
    plan=week 1/week
    plan=month 2/month
    plan=year 3/year
    plan 4/2xhour
    files=/a* share
      files=/b 5/30xsecond
      files 6/minute
        files=* 7/3xweek share
    files 8/hour",
];
