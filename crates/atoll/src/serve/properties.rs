//! Reads the lines of a Java properties file, the format of `zoo.cfg`.

use super::reader::{ConfigFault, shown};

/// One property.
#[derive(Debug)]
pub struct Line {
    /// Counted from 1.
    pub number: usize,
    /// The name.
    pub key: String,
    /// What it is set to.
    pub value: String,
}

/// Returns the lines of a Java properties file.
pub fn properties(text: &str, faults: &mut Vec<ConfigFault>) -> Vec<Line> {
    let mut out = Vec::new();
    let mut lines = (1..).zip(text.lines());
    while let Some((number, line)) = lines.next() {
        let line = line.trim_start();
        if line.trim_end().is_empty() || line.starts_with(['#', '!']) {
            continue;
        }
        let mut whole = line.to_owned();
        // With an odd number of backslashes at its end, a line continues on the next one.
        while whole.chars().rev().take_while(|c| *c == '\\').count() % 2 == 1 {
            whole.pop();
            let Some((_, next)) = lines.next() else { break };
            whole.push_str(next.trim_start());
        }
        match property(&whole) {
            Ok((key, value)) => out.push(Line { number, key, value: value.trim_end().to_owned() }),
            Err(what) => {
                // The rest may be a secret.
                let name = whole.split(['=', ':', ' ', '\t']).next().unwrap_or_default();
                faults.push(ConfigFault { line: Some(number), what: format!("`{}`: {what}", shown(name)) })
            }
        }
    }
    out
}

/// Returns the key and the value of a line.
fn property(line: &str) -> Result<(String, String), &'static str> {
    let (mut key, mut rest) = (String::new(), line);
    while let Some(c) = rest.chars().next() {
        if c == '=' || c == ':' || c.is_whitespace() {
            break;
        }
        let (plain, more) = unescaped(rest)?;
        key.push(plain);
        rest = more;
    }
    let rest = rest.trim_start();
    let rest = rest.strip_prefix(['=', ':']).unwrap_or(rest).trim_start();
    if key.is_empty() {
        return Err("this line has no name; allowed: NAME=VALUE");
    }
    let (mut value, mut rest) = (String::new(), rest);
    while !rest.is_empty() {
        let (plain, more) = unescaped(rest)?;
        value.push(plain);
        rest = more;
    }
    if value.trim().is_empty() {
        return Err("this line has no value; allowed: NAME=VALUE");
    }
    Ok((key, value))
}

/// Returns the first character, and the text after it.
fn unescaped(text: &str) -> Result<(char, &str), &'static str> {
    const BAD: &str = "a backslash is followed by u and four digits, or by another character";
    let mut chars = text.chars();
    let first = chars.next().ok_or(BAD)?;
    if first != '\\' {
        return Ok((first, chars.as_str()));
    }
    let plain = match chars.next().ok_or(BAD)? {
        't' => '\t',
        'n' => '\n',
        'r' => '\r',
        'f' => '\u{c}',
        'u' => {
            let digits = chars.as_str().get(..4).ok_or(BAD)?;
            let code = u32::from_str_radix(digits, 16).ok().and_then(char::from_u32).ok_or(BAD)?;
            chars = chars.as_str()[4..].chars();
            code
        }
        other => other,
    };
    Ok((plain, chars.as_str()))
}
