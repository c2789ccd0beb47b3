//! A page as a script: its files and commands, in order.

/// One thing to do.
#[derive(Debug)]
pub(crate) enum Step {
    /// A `toml` block.
    Toml(String),
    /// Another file whose name is in front of its block, as in "in `hello.py`:".
    File { name: String, text: String },
    /// A command, and the output that the page shows for it.
    Command { line: String, shown: String },
}

/// The steps of a page.
pub(crate) fn steps(page: &str) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut rest = page;
    while let Some((before, kind, block, behind)) = next_block(rest) {
        match kind {
            "toml" => steps.push(Step::Toml(block.to_owned())),
            "python" | "js" | "go" | "ruby" => steps.extend(file(before, block)),
            "sh" => steps.extend(plain(block)),
            _ => steps.extend(prompted(block)),
        }
        rest = behind;
    }
    steps
}

/// What is before the fence, the word behind it, what is inside, and the rest of the page.
fn next_block(page: &str) -> Option<(&str, &str, &str, &str)> {
    let (before, opened) = page.split_once("\n```")?;
    let (kind, inside) = opened.split_once('\n')?;
    let (block, behind) = inside.split_once("```")?;
    Some((before, kind, block, behind))
}

fn file(before: &str, block: &str) -> Option<Step> {
    let (_, name) = before.trim_end().strip_suffix("`:")?.rsplit_once('`')?;
    Some(Step::File { name: name.to_owned(), text: block.to_owned() })
}

/// Each line is a command.
fn plain(block: &str) -> Vec<Step> {
    let lines = block.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| Step::Command { line: line.to_owned(), shown: String::new() }).collect()
}

/// Commands stand behind `$ `, with a here-document if they have one; what follows is their output.
fn prompted(block: &str) -> Vec<Step> {
    let mut steps: Vec<(String, String)> = Vec::new();
    let mut is_document = false;
    for line in block.lines() {
        match (line.strip_prefix("$ "), steps.last_mut()) {
            (Some(command), _) if !is_document => {
                steps.push((command.to_owned(), String::new()));
                is_document = command.contains("<<'END'");
            }
            (_, Some((command, _))) if is_document => {
                *command += &format!("\n{line}");
                is_document = line != "END";
            }
            (_, Some((_, shown))) => *shown += &format!("{line}\n"),
            (_, None) => {}
        }
    }
    steps.into_iter().map(|(line, shown)| Step::Command { line, shown }).collect()
}
