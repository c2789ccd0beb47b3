//! The report: one HTML page that needs nothing from outside, drawn for light and dark.
//!
//! Keys and names come from traces, so everything that is not ours is escaped in one place,
//! [`Escaped`], on its way into the page.

mod chart;
mod time_text;

use super::compare::{Comparison, KeysChanged};
use super::lanes::{Outcome, Replayed};
use super::tally::{LimiterTally, Tally};
use super::timeline::Axis;
use crate::human;
use chart::{Scale, Series};
use std::fmt::{self, Write as _};
use std::path::Path;
use time_text::Clockface;

/// Most denied keys that are drawn.
const TOP: usize = 30;
/// Most keys that change whose counts are shown.
const CHANGED: usize = 15;

/// What a report tells of.
pub(super) struct Page<'a> {
    pub(super) input: &'a str,
    /// The policy's file; `None`: the example policy.
    pub(super) policy: Option<&'a Path>,
    /// The file of the policy that it is compared with.
    pub(super) compared: Option<&'a Path>,
    pub(super) replayed: &'a Replayed,
}

impl Page<'_> {
    pub(super) fn html(&self) -> String {
        let Outcome { tally, .. } = &self.replayed.policies[0];
        let face = Clockface::of(&tally.axis);
        let mut out = String::new();
        begin(&mut out, "who would have been limited");
        let policy = self.policy.map_or_else(|| "the example policy".to_owned(), |file| file.display().to_string());
        let _ = write!(
            out,
            "<header>\n<h1>Who would have been limited</h1>\n<p><b>{}</b> replayed on <b>{}</b>",
            Escaped(self.input),
            Escaped(&policy)
        );
        if let Some(file) = self.compared {
            let _ = write!(out, ", beside <b>{}</b>", Escaped(&file.display().to_string()));
        }
        let _ = write!(out, "{}</p>\n</header>\n", Escaped(&face.span(&tally.axis)));
        tiles(&mut out, tally);
        if let [new, old] = self.replayed.policies.as_slice() {
            comparison(&mut out, &self.replayed.comparison, &new.tally, &old.tally);
        }
        limiters(&mut out, tally);
        limits(&mut out, tally);
        over_time(&mut out, tally, &face);
        keys(&mut out, tally, &face);
        end(&mut out, "simulate");
        out
    }
}

/// Up to where the content begins.
pub(super) fn begin(out: &mut String, title: &str) {
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Tidegate: {}</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
        Escaped(title),
        include_str!("style.css")
    );
}

/// What comes after the content.
pub(super) fn end(out: &mut String, command: &str) {
    let _ = write!(
        out,
        "<footer>Made by <code>tidegate {command}</code>. Point at a bar for its numbers.</footer>\n\
         </main>\n</body>\n</html>\n"
    );
}

/// What changes from the old policy to the new one.
fn comparison(out: &mut String, comparison: &Comparison, new: &Tally, old: &Tally) {
    let (changes, KeysChanged { newly_limited, no_longer }) = Comparison::keys(new, old, CHANGED);
    let Comparison { both_allow, both_deny, newly_denied, newly_allowed, .. } = *comparison;
    let all = both_allow + both_deny + newly_denied + newly_allowed;
    out.push_str("<section>\n<h2>What changes</h2>\n<div class=\"tiles\">\n");
    for (class, count, what) in [
        ("denied", newly_denied, "newly denied"),
        ("freed", newly_allowed, "newly allowed"),
        ("", both_deny, "denied by both"),
        ("", both_allow, "allowed by both"),
    ] {
        let (number, share) = (human::count(count), human::percent(count, all));
        let _ =
            writeln!(out, "<div class=\"tile {class}\"><span>{what}, {share}</span><strong>{number}</strong></div>");
    }
    let _ = writeln!(
        out,
        "</div>\n<p class=\"muted\">The old policy denies {} requests, the new one {}. {} newly limited, {} limited no longer.</p>",
        human::count(old.denied),
        human::count(new.denied),
        human::plural(newly_limited, "key"),
        human::plural(no_longer, "key"),
    );
    let axis = comparison.axis;
    let (denied, allowed) =
        (comparison.newly_denied_bars.clone().on(&axis), comparison.newly_allowed_bars.clone().on(&axis));
    if newly_denied + newly_allowed > 0 {
        legend(out, &axis, &[("denied", "newly denied"), ("freed", "newly allowed")]);
        let scale = Scale { axis, face: Clockface::of(&axis) };
        let series = [Series::new("freed", "newly allowed", &allowed), Series::new("denied", "newly denied", &denied)];
        out.push_str("<figure>");
        chart::stacked(out, &scale, &series);
        out.push_str("</figure>\n");
    }
    if !changes.is_empty() {
        out.push_str(
            "<h3>Keys that change most</h3>\n<div class=\"scroll\"><table>\n<thead><tr><th>key<th>limiter\
             <th class=\"n\">denied before<th class=\"n\">denied now<th class=\"n\">difference</tr></thead>\n<tbody>\n",
        );
        for change in changes {
            let (class, sign) = if change.now > change.before { ("worse", '+') } else { ("better", '−') };
            let _ = writeln!(
                out,
                "<tr><td class=\"key\"><span>{}</span><td class=\"name\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n {class}\">{sign}{}</tr>",
                Escaped(&human::key(change.key)),
                Escaped(change.limiter),
                human::count(change.before),
                human::count(change.now),
                human::count(change.now.abs_diff(change.before)),
            );
        }
        out.push_str("</tbody></table></div>\n");
    }
    out.push_str("</section>\n");
}

fn legend(out: &mut String, axis: &Axis, parts: &[(&str, &str)]) {
    out.push_str("<p class=\"legend\">");
    for (class, what) in parts {
        let _ = write!(out, "<span><i class=\"{class}\"></i>{what}</span>");
    }
    let width = human::duration_ms(axis.width().as_millis_ceil());
    let _ = writeln!(out, "<span class=\"muted\">each bar is {width}</span></p>");
}

/// Which limits decided.
fn limits(out: &mut String, tally: &Tally) {
    let deciding = tally.deciding_limits();
    if deciding.is_empty() {
        return;
    }
    out.push_str(
        "<section>\n<h2>Which limit denied</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>limiter<th>limit\
         <th class=\"n\">denied<th>share of the denials</tr></thead>\n<tbody>\n",
    );
    for (limiter, limit, denied) in deciding {
        let limit = limit.unwrap_or_else(|| "blocked by an earlier denial".to_owned());
        let _ = writeln!(
            out,
            "<tr><td class=\"name\"><b>{}</b><td class=\"limits\">{}<td class=\"n\">{}<td>{}</tr>",
            Escaped(&limiter.name),
            Escaped(&limit),
            human::count(denied),
            share(denied, tally.denied),
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

fn tiles(out: &mut String, tally: &Tally) {
    let (allowed, denied, all) = (tally.allowed, tally.denied, tally.requests());
    let mut tiles = vec![
        ("", human::count(all), "requests".to_owned()),
        ("allowed", human::count(allowed), format!("allowed, {}", human::percent(allowed, all))),
        ("denied", human::count(denied), format!("denied, {}", human::percent(denied, all))),
    ];
    if tally.unlimited > 0 {
        tiles.push(("", human::count(tally.unlimited), "without a limiter that applies".to_owned()));
    }
    tiles.push(("", tally.keys_limited(), "keys limited".to_owned()));
    out.push_str("<div class=\"tiles\">\n");
    for (class, number, label) in tiles {
        let _ = writeln!(out, "<div class=\"tile {class}\"><span>{label}</span><strong>{number}</strong></div>");
    }
    out.push_str("</div>\n");
}

fn limiters(out: &mut String, tally: &Tally) {
    out.push_str(
        "<section>\n<h2>By limiter</h2>\n<div class=\"scroll\"><table>\n<thead><tr><th>limiter<th>limits\
         <th class=\"n\">requests<th class=\"n\">allowed<th class=\"n\">denied<th>share denied\
         <th class=\"n\">keys limited</tr></thead>\n<tbody>\n",
    );
    for limiter in &tally.limiters {
        let all = limiter.allowed + limiter.denied;
        let _ = writeln!(
            out,
            "<tr><td class=\"name\"><b>{}</b><td class=\"limits\">{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}<td class=\"n\">{}</tr>",
            Escaped(&limiter.spec.name),
            Escaped(&rules(limiter)),
            human::count(all),
            human::count(limiter.allowed),
            human::count(limiter.denied),
            share(limiter.denied, all),
            human::count(limiter.keys.len() as u64),
        );
    }
    if tally.unlimited > 0 {
        let count = human::count(tally.unlimited);
        let _ = writeln!(
            out,
            "<tr><td class=\"muted\">none applied<td><td class=\"n\">{count}<td class=\"n\"><td class=\"n\"><td><td></tr>"
        );
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

fn rules(limiter: &LimiterTally) -> String {
    let limits: Vec<String> = limiter.spec.rules.limits().iter().map(ToString::to_string).collect();
    format!("{}: {}", limiter.spec.rules.algorithm().name(), limits.join(", "))
}

/// A small bar and its number.
fn share(part: u64, whole: u64) -> String {
    let permille = (u128::from(part) * 1_000).checked_div(u128::from(whole)).unwrap_or(0);
    let width = format!("{}.{}%", permille / 10, permille % 10);
    format!("<span class=\"share\"><span style=\"width:{width}\"></span></span> {}", human::percent(part, whole))
}

fn over_time(out: &mut String, tally: &Tally, face: &Clockface) {
    out.push_str("<section>\n<h2>Over time</h2>\n");
    legend(out, &tally.axis, &[("allowed", "allowed"), ("denied", "denied")]);
    let scale = Scale { axis: tally.axis, face: *face };
    for limiter in &tally.limiters {
        let allowed = limiter.allowed_bars.clone().on(&tally.axis);
        let denied = limiter.denied_bars.clone().on(&tally.axis);
        let _ = writeln!(out, "<figure><figcaption>{}</figcaption>", Escaped(&limiter.spec.name));
        let series = [Series::new("allowed", "allowed", &allowed), Series::new("denied", "denied", &denied)];
        chart::stacked(out, &scale, &series);
        out.push_str("</figure>\n");
    }
    out.push_str("</section>\n");
}

fn keys(out: &mut String, tally: &Tally, face: &Clockface) {
    let top = tally.top(TOP);
    out.push_str("<section>\n<h2>Most denied keys</h2>\n");
    if top.is_empty() {
        out.push_str("<p class=\"muted\">Nobody was denied.</p>\n</section>\n");
        return;
    }
    out.push_str(
        "<div class=\"scroll\"><table>\n<thead><tr><th>key<th>limiter<th class=\"n\">denied<th>when\
         <th>first denied<th>last denied</tr></thead>\n<tbody>\n",
    );
    let scale = Scale { axis: tally.axis, face: *face };
    for (limiter, key, counts) in top {
        let _ = write!(
            out,
            "<tr><td class=\"key\"><span>{}</span><td class=\"name\">{}<td class=\"n\">{}<td class=\"spark\">",
            Escaped(&human::key(key)),
            Escaped(&limiter.name),
            human::count(counts.denied)
        );
        chart::sparkline(out, &scale, &counts.bars.clone().on(&tally.axis));
        let (first, last) = (face.instant(counts.first), face.instant(counts.last));
        let _ = writeln!(out, "<td class=\"t\">{}<td class=\"t\">{}</tr>", Escaped(&first), Escaped(&last));
    }
    out.push_str("</tbody></table></div>\n</section>\n");
}

/// Text on its way into the page.
pub(super) struct Escaped<'a>(pub(super) &'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.0.chars() {
            match c {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                c => f.write_char(c)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_ours_is_escaped() {
        let text = Escaped("<script>alert('x' & \"y\")</script>").to_string();
        assert_eq!(text, "&lt;script&gt;alert(&#39;x&#39; &amp; &quot;y&quot;)&lt;/script&gt;");
    }
}
