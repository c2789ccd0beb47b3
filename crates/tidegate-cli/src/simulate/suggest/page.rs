//! Suggestions as one HTML page, in the style of the simulator's report.

use super::super::report::{self, Escaped};
use super::picture::range;
use super::text::{Findings, percent, spelled};
use super::{Found, Suggestion};
use crate::human;
use std::fmt::Write as _;

pub(super) fn html(findings: &Findings<'_>) -> String {
    let mut out = String::new();
    report::begin(&mut out, "what the limit should be");
    let _ = write!(
        out,
        "<header>\n<h1>What should the limit be?</h1>\n<p><b>{}</b>: {}</p>\n</header>\n",
        Escaped(findings.input),
        Escaped(&findings.headline())
    );
    for found in findings.found {
        distribution(&mut out, found);
        suggestions(&mut out, findings, found);
    }
    if let Some(first) = findings.found.first().and_then(|found| found.suggestions.first()) {
        let _ = write!(
            out,
            "<section>\n<h2>For the file</h2>\n<p class=\"muted\">The first suggestion. \
             <code>tidegate simulate --config FILE</code> on the same log shows what it does, request by request.</p>\n\
             <pre>{}</pre>\n</section>\n",
            Escaped(findings.subject.toml(first).trim_end())
        );
    }
    report::end(&mut out, "suggest");
    out
}

fn distribution(out: &mut String, found: &Found) {
    let picture = &found.picture;
    let per = spelled(found.per);
    let _ = write!(
        out,
        "<section>\n<h2>Keys by the most requests that each made within {per}</h2>\n<div class=\"quantiles\">\n",
    );
    let most = ("the busiest", picture.most);
    for (name, count) in picture.quantiles.into_iter().chain([most]) {
        let name = match name {
            "half" => "half of the keys: at most".to_owned(),
            "the busiest" => "the busiest key".to_owned(),
            share => format!("{share} of the keys: at most"),
        };
        let _ =
            writeln!(out, "<div class=\"quantile\"><span>{name}</span><strong>{}</strong></div>", human::count(count));
    }
    out.push_str("</div>\n<div class=\"scroll\"><table class=\"bars\">\n<tbody>\n");
    let all = picture.ranges.iter().map(|(.., keys)| keys).sum();
    for (from, to, keys) in &picture.ranges {
        let here = |one: &&Suggestion| {
            one.rules.limits().first().is_some_and(|limit| (*from..=*to).contains(&u64::from(limit.count())))
        };
        let mut shares: Vec<String> = found.suggestions.iter().filter(here).map(|one| one.share.to_string()).collect();
        shares.dedup();
        let permille = keys * 1_000 / picture.fullest();
        // A count that is there is never invisible.
        let permille = if *keys > 0 { permille.max(4) } else { 0 };
        let mark = match shares.as_slice() {
            [] => String::new(),
            shares => format!("<span class=\"mark\">◀ limits for {}</span>", shares.join(", ")),
        };
        let _ = writeln!(
            out,
            "<tr><th class=\"n\">{}<td class=\"bar\"><span style=\"width:{}.{}%\"></span><td class=\"n\">{}<td class=\"n muted\">{}<td>{mark}</tr>",
            range(*from, *to),
            permille / 10,
            permille % 10,
            human::count(*keys),
            percent(*keys, all),
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

fn suggestions(out: &mut String, findings: &Findings<'_>, found: &Found) {
    let mut shares: Vec<super::Share> = found.suggestions.iter().map(|one| one.share).collect();
    shares.dedup();
    for share in shares {
        let _ = write!(
            out,
            "<section>\n<h2>At most {share} of the keys affected</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>algorithm\
             <th>limit<th class=\"n\">keys affected<th class=\"n\">of all<th class=\"n\">requests denied<th class=\"n\">of all\
             </tr></thead>\n<tbody>\n"
        );
        for one in found.suggestions.iter().filter(|one| one.share == share) {
            let _ = writeln!(
                out,
                "<tr><td>{}<td><b>{}</b><td class=\"n\">{}<td class=\"n muted\">{}<td class=\"n\">{}<td class=\"n muted\">{}</tr>",
                one.algorithm.name(),
                Escaped(&one.limit()),
                human::count(one.keys_affected),
                percent(one.keys_affected, findings.traffic.keys() as u64),
                human::count(one.requests_denied),
                percent(one.requests_denied, findings.traffic.requests()),
            );
        }
        out.push_str("</tbody></table></div>\n</section>\n");
    }
}
