//! JAAS files, in which ZooKeeper lists the users of SASL:
//!
//! ```text
//! Server {
//!     org.apache.zookeeper.server.auth.DigestLoginModule required
//!     user_ada="her password"
//!     user_bob="his password";
//! };
//! ```
//!
//! No error repeats a value, because it may be a password.

use std::collections::BTreeMap;
use std::path::Path;

use super::config::MAX_FILE_BYTES;

/// The class whose options are users.
const DIGEST: &str = "org.apache.zookeeper.server.auth.DigestLoginModule";
/// The end of the names of Kerberos's classes.
const KERBEROS: &str = "Krb5LoginModule";
/// What precedes a user's name.
const USER: &str = "user_";

/// A file, or a part of it, that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum JaasError {
    /// The file cannot be read.
    #[error("it cannot be read: {0}")]
    Unreadable(String),
    /// The file is too long.
    #[error("it has {0} bytes; allowed: {MAX_FILE_BYTES} at most")]
    Long(u64),
    /// The text does not have the form of a JAAS file.
    #[error("line {line}: there is {found}; allowed: {allowed}")]
    Form {
        /// The line, from 1.
        line: usize,
        /// What is there.
        found: &'static str,
        /// What may be there.
        allowed: &'static str,
    },
    /// There is no such section.
    #[error("it has no section {0:?}; it has {1}")]
    NoSection(String, String),
    /// The section demands Kerberos.
    #[error("line {0}: Kerberos is not served: use certificates, or DIGEST-MD5 with the users of {DIGEST}")]
    Kerberos(usize),
    /// The section demands another class.
    #[error("line {0}: only the class {DIGEST} is known")]
    OtherClass(usize),
    /// A user has no name or no password, or is there twice.
    #[error("line {0}: a user needs a name and a password, and may be there once")]
    User(usize),
    /// The configuration lists a user as well.
    #[error("it has a user who is also in `zookeeper.sasl_users`; allowed: in one of them")]
    Listed,
}

/// A part of the text.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Token {
    /// A word or a text in quotes.
    Text(String),
    /// One of `{`, `}`, `;` and `=`.
    Sign(char),
}

impl Token {
    /// Returns what an error calls it.
    fn name(token: Option<&Token>) -> &'static str {
        match token {
            Some(Token::Text(_)) => "a word",
            Some(Token::Sign('{')) => "`{`",
            Some(Token::Sign('}')) => "`}`",
            Some(Token::Sign(';')) => "`;`",
            Some(Token::Sign(_)) => "`=`",
            None => "the end",
        }
    }
}

/// Returns the users of a section of a file, with their passwords.
///
/// # Errors
/// See [`JaasError`].
pub fn users(file: &Path, section: &str) -> Result<BTreeMap<String, String>, JaasError> {
    let unreadable = |error: std::io::Error| JaasError::Unreadable(error.to_string());
    let size = std::fs::metadata(file).map_err(unreadable)?.len();
    if size > MAX_FILE_BYTES {
        return Err(JaasError::Long(size));
    }
    users_of(&std::fs::read_to_string(file).map_err(unreadable)?, section)
}

fn users_of(text: &str, section: &str) -> Result<BTreeMap<String, String>, JaasError> {
    let tokens = tokens(text)?;
    let mut reader = Reader { tokens: &tokens, at: 0 };
    let mut found = None;
    let mut names = Vec::new();
    while reader.peek().is_some() {
        let name = reader.text("the name of a section")?;
        let is_wanted = name == section;
        let users = reader.section(is_wanted)?;
        if is_wanted {
            found = Some(users);
        }
        names.push(format!("{name:?}"));
    }
    let listed = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    found.ok_or_else(|| JaasError::NoSection(section.to_owned(), listed))
}

struct Reader<'t> {
    tokens: &'t [(usize, Token)],
    at: usize,
}

impl<'t> Reader<'t> {
    fn peek(&self) -> Option<&'t Token> {
        self.tokens.get(self.at).map(|(_, token)| token)
    }

    /// Returns the line of the next token, or the last one at the end.
    fn line(&self) -> usize {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |(line, _)| *line)
    }

    fn unexpected(&self, allowed: &'static str) -> JaasError {
        JaasError::Form { line: self.line(), found: Token::name(self.peek()), allowed }
    }

    fn text(&mut self, allowed: &'static str) -> Result<&'t str, JaasError> {
        match self.peek() {
            Some(Token::Text(text)) => {
                self.at += 1;
                Ok(text)
            }
            _ => Err(self.unexpected(allowed)),
        }
    }

    fn sign(&mut self, sign: char, allowed: &'static str) -> Result<(), JaasError> {
        if self.peek() != Some(&Token::Sign(sign)) {
            return Err(self.unexpected(allowed));
        }
        self.at += 1;
        Ok(())
    }

    /// Reads `{ CLASS FLAG NAME=VALUE...; ... };` and returns the users if the section is wanted.
    fn section(&mut self, is_wanted: bool) -> Result<BTreeMap<String, String>, JaasError> {
        let mut users = BTreeMap::new();
        self.sign('{', "`{`")?;
        while self.peek() != Some(&Token::Sign('}')) {
            let line = self.line();
            let class = self.text("the name of a class, or `}`")?;
            if is_wanted && class.ends_with(KERBEROS) {
                return Err(JaasError::Kerberos(line));
            }
            if is_wanted && class != DIGEST {
                return Err(JaasError::OtherClass(line));
            }
            self.text("required, requisite, sufficient or optional")?;
            while self.peek() != Some(&Token::Sign(';')) {
                let line = self.line();
                let name = self.text("NAME=VALUE, or `;`")?;
                self.sign('=', "`=`")?;
                let value = self.text("a value")?;
                let Some(user) = name.strip_prefix(USER) else { continue };
                let fine = !user.is_empty() && !value.is_empty() && !value.contains(char::is_control);
                if is_wanted && (!fine || users.insert(user.to_owned(), value.to_owned()).is_some()) {
                    return Err(JaasError::User(line));
                }
            }
            self.sign(';', "`;`")?;
        }
        self.sign('}', "`}`")?;
        self.sign(';', "`;`")?;
        Ok(users)
    }
}

/// Splits a text into its parts, each with its line.
fn tokens(text: &str) -> Result<Vec<(usize, Token)>, JaasError> {
    let (mut out, mut line) = (Vec::new(), 1);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '\n' => line += 1,
            c if c.is_whitespace() => {}
            '{' | '}' | ';' | '=' => out.push((line, Token::Sign(c))),
            '/' if rest.peek() == Some(&'/') => while rest.next_if(|c| *c != '\n').is_some() {},
            '/' if rest.peek() == Some(&'*') => {
                let mut before = ' ';
                rest.next();
                loop {
                    match rest.next() {
                        Some('/') if before == '*' => break,
                        Some(c) => {
                            line += usize::from(c == '\n');
                            before = c;
                        }
                        None => return Err(form(line, "the end in a comment", "`*/`")),
                    }
                }
            }
            quote @ ('"' | '\'') => out.push((line, Token::Text(quoted(&mut rest, quote, line)?))),
            c => {
                let mut word = String::from(c);
                let is_part =
                    |c: &char| !c.is_whitespace() && !matches!(c, '{' | '}' | ';' | '=' | '"' | '\'');
                while let Some(c) = rest.next_if(is_part) {
                    word.push(c);
                }
                out.push((line, Token::Text(word)));
            }
        }
    }
    Ok(out)
}

fn form(line: usize, found: &'static str, allowed: &'static str) -> JaasError {
    JaasError::Form { line, found, allowed }
}

/// Reads the rest of a text in quotes, which ends in the same line.
fn quoted(
    rest: &mut std::iter::Peekable<std::str::Chars<'_>>,
    quote: char,
    line: usize,
) -> Result<String, JaasError> {
    let mut out = String::new();
    loop {
        match rest.next() {
            Some(c) if c == quote => return Ok(out),
            Some('\\') => match rest.next() {
                Some('n') => out.push('\n'),
                Some('t') => out.push('\t'),
                Some(c) => out.push(c),
                None => return Err(form(line, "the end in a text", "a quote")),
            },
            Some('\n') | None => return Err(form(line, "a text that does not end in its line", "a quote")),
            Some(c) => out.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FILE: &str = r#"
// The users of this ensemble.
QuorumServer { org.apache.zookeeper.server.auth.DigestLoginModule required user_peer="p"; };
Server {
    /* two
       of them */
    org.apache.zookeeper.server.auth.DigestLoginModule required
    user_super='adm"in'
    user_bob="s3cret;={}\"";
};
Client { com.sun.security.auth.module.Krb5LoginModule required useKeyTab=true; };
"#;

    #[test]
    fn users_are_those_of_the_section() {
        let users = users_of(FILE, "Server").unwrap();
        let of = |name: &str| users.get(name).map(String::as_str);
        assert_eq!((users.len(), of("super"), of("bob")), (2, Some("adm\"in"), Some("s3cret;={}\"")));
        assert_eq!(users_of(FILE, "QuorumServer").unwrap().len(), 1);
    }

    #[test]
    fn faults_name_the_line_and_no_secret() {
        let digest = format!("Server {{\n{DIGEST} required");
        let faults = [
            (FILE.to_owned(), "Client", "line 11: Kerberos is not served"),
            (
                FILE.to_owned(),
                "server",
                "it has no section \"server\"; it has \"QuorumServer\", \"Server\", \"Client\"",
            ),
            (String::new(), "Server", "it has no section \"Server\"; it has none"),
            ("Server {\na.B required x=y; };".to_owned(), "Server", "line 2: only the class"),
            (
                format!("{digest}\nuser_a=hunter2\n}};"),
                "Server",
                "line 4: there is `}`; allowed: NAME=VALUE, or `;`",
            ),
            (format!("{digest}\nuser_a=\"hunter2\n"), "Server", "line 3: there is a text that does not end"),
            (format!("{digest}\nuser_=hunter2; }};"), "Server", "line 3: a user needs a name"),
            (
                format!("{digest}\nuser_a=hunter2\nuser_a=hunter3; }};"),
                "Server",
                "line 4: a user needs a name",
            ),
            (format!("{digest}\nuser_a hunter2; }};"), "Server", "line 3: there is a word; allowed: `=`"),
            (format!("{digest} user_a=hunter2; }}"), "Server", "line 2: there is the end; allowed: `;`"),
            ("/* Server".to_owned(), "Server", "line 1: there is the end in a comment"),
        ];
        for (text, section, expected) in faults {
            let words = users_of(&text, section).unwrap_err().to_string();
            assert!(words.starts_with(expected), "{words}, expected {expected}");
            assert!(!words.contains("hunter"), "{words}");
        }
    }
}
