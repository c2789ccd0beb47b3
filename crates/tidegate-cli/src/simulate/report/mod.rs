//! The report: one HTML page that needs nothing from outside, drawn for light and dark.
//!
//! Keys and names come from traces, so everything that is not ours is escaped in one place,
//! [`Escaped`], on its way into the page.

mod chart;
mod time_text;

use super::tally::{LimiterTally, Tally};
use crate::human;
use chart::Scale;
use std::fmt::{self, Write as _};
use std::path::Path;
use time_text::Clockface;

/// Most denied keys that are drawn.
const TOP: usize = 30;

/// The page for a replay of the trace `input` under the policy of `config`.
pub(super) fn page(input: &str, config: Option<&Path>, tally: &Tally) -> String {
    let face = Clockface::of(&tally.axis);
    let policy = config.map_or_else(|| "the example policy".to_owned(), |file| file.display().to_string());
    let mut out = String::new();
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>Tidegate: who would have been limited</title>\n<style>\n{}</style>\n</head>\n<body>\n<main>\n",
        include_str!("style.css")
    );
    let _ = write!(
        out,
        "<header>\n<h1>Who would have been limited</h1>\n<p><b>{}</b> replayed on <b>{}</b>{}</p>\n</header>\n",
        Escaped(input),
        Escaped(&policy),
        Escaped(&face.span(&tally.axis)),
    );
    tiles(&mut out, tally);
    limiters(&mut out, tally);
    over_time(&mut out, tally, &face);
    keys(&mut out, tally, &face);
    out.push_str("<footer>Made by <code>tidegate simulate</code>. Hover over a bar for its numbers.</footer>\n");
    out.push_str("</main>\n</body>\n</html>\n");
    out
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
    out.push_str("<section class=\"tiles\">\n");
    for (class, number, label) in tiles {
        let _ = writeln!(out, "<div class=\"tile {class}\"><strong>{number}</strong><span>{label}</span></div>");
    }
    out.push_str("</section>\n");
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
            "<tr><td><b>{}</b><td>{}<td class=\"n\">{}<td class=\"n\">{}<td class=\"n\">{}<td>{}<td class=\"n\">{}</tr>",
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
    let _ = write!(
        out,
        "<section>\n<h2>Over time</h2>\n<p class=\"legend\"><i class=\"allowed\"></i>allowed <i class=\"denied\"></i>denied\
         <span class=\"muted\">each bar is {}</span></p>\n",
        human::duration_ms(tally.axis.width().as_millis_ceil())
    );
    let scale = Scale { axis: tally.axis, face: *face };
    for limiter in &tally.limiters {
        let allowed = limiter.allowed_bars.clone().on(&tally.axis);
        let denied = limiter.denied_bars.clone().on(&tally.axis);
        let _ = writeln!(out, "<figure><figcaption>{}</figcaption>", Escaped(&limiter.spec.name));
        chart::stacked(out, &scale, &allowed, &denied);
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
            "<tr><td class=\"key\">{}<td>{}<td class=\"n\">{}<td class=\"spark\">",
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
struct Escaped<'a>(&'a str);

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
