//! The server's side of SASL's DIGEST-MD5 (RFC 2831), with `qop=auth` and without subsequent authentication, as ZooKeeper's clients
//! use it. MD5 is broken as a hash of documents. Here it only hides the password from an eavesdropper, which TLS does better.

use std::collections::BTreeMap;
use std::fmt;

use md5::{Digest as _, Md5};
use subtle::ConstantTimeEq as _;

/// The realm, which is also the host of every client's `digest-uri`.
pub const REALM: &str = "zk-sasl-md5";
/// The service in a client's `digest-uri`.
const SERVICE: &str = "zookeeper";
/// Longest response of a client (RFC 2831 §2.1.2).
const MAX_RESPONSE_BYTES: usize = 4096;

/// Users with their passwords. The passwords never appear in debug output.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Users(BTreeMap<String, String>);

impl Users {
    /// Creates the table from pairs of user and password.
    pub fn new(users: impl IntoIterator<Item = (String, String)>) -> Users {
        Users(users.into_iter().collect())
    }

    /// Returns whether there are no users. The mechanism is then not offered.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Debug for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

/// A client was not authenticated. The reason is not sent to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The client's message is not a response of this mechanism.
    #[error("its response is malformed or too long")]
    Malformed,
    /// A required field is missing, or a field occurs twice.
    #[error("its response has no field {0}, or two")]
    Field(&'static str),
    /// A field does not have the required value.
    #[error("its field {0} does not belong to this exchange")]
    Other(&'static str),
    /// The user is unknown, or the password is wrong.
    #[error("no such user with this password")]
    Credentials,
}

/// One exchange, which consists of one challenge and one response.
#[derive(Debug)]
pub struct Exchange {
    nonce: String,
}

/// An authenticated client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Proved {
    /// The user's name.
    pub user: String,
    /// The answer that proves to the client that the server knows the password.
    pub answer: Vec<u8>,
}

impl Exchange {
    /// Begins an exchange. The nonce must be random and used only once.
    pub fn begin(nonce: [u8; 24]) -> Exchange {
        Exchange { nonce: hex(&nonce) }
    }

    /// Returns the challenge to send to the client.
    pub fn challenge(&self) -> Vec<u8> {
        let nonce = &self.nonce;
        format!("realm=\"{REALM}\",nonce=\"{nonce}\",qop=\"auth\",charset=utf-8,algorithm=md5-sess")
            .into_bytes()
    }

    /// Checks the client's response. This ends the exchange.
    ///
    /// # Errors
    /// The client is not authenticated.
    pub fn judge(self, response: &[u8], users: &Users) -> Result<Proved, Refused> {
        let fields = Fields::parse(response)?;
        let is = |name: &'static str, expected: &str| match fields.one(name)? {
            value if value == expected => Ok(()),
            _ => Err(Refused::Other(name)),
        };
        is("nonce", &self.nonce)?;
        is("nc", "00000001")?;
        is("realm", REALM)?;
        let uri = fields.one("digest-uri")?;
        is("digest-uri", &format!("{SERVICE}/{REALM}"))?;
        if fields.any("qop")?.is_some_and(|qop| qop != "auth") {
            return Err(Refused::Other("qop"));
        }
        let (user, cnonce) = (fields.one("username")?, fields.one("cnonce")?);
        let authzid = fields.any("authzid")?;
        // Acting on behalf of another user is not supported.
        if authzid.is_some_and(|id| id != user) {
            return Err(Refused::Other("authzid"));
        }
        let known = users.0.get(user);
        // Do the same work for an unknown user, so that the timing does not reveal which users exist.
        let password = known.map_or("", String::as_str);
        let said = Said { user, realm: REALM, nonce: &self.nonce, cnonce, uri, authzid };
        let expected = said.hash(password, "AUTHENTICATE:");
        let right = expected.as_bytes().ct_eq(fields.one("response")?.as_bytes());
        if known.is_none() || !bool::from(right) {
            return Err(Refused::Credentials);
        }
        let answer = format!("rspauth={}", said.hash(password, ":")).into_bytes();
        Ok(Proved { user: user.to_owned(), answer })
    }
}

/// The values of an exchange that the hashes depend on.
struct Said<'a> {
    user: &'a str,
    realm: &'a str,
    nonce: &'a str,
    cnonce: &'a str,
    uri: &'a str,
    authzid: Option<&'a str>,
}

impl Said<'_> {
    /// Computes the response-value of RFC 2831 §2.1.2.1 or, with another `verb`, that of §2.1.3.
    fn hash(&self, password: &str, verb: &str) -> String {
        let mut secret = Md5::new();
        secret.update(bytes(self.user));
        secret.update(b":");
        secret.update(bytes(self.realm));
        secret.update(b":");
        secret.update(bytes(password));
        let mut a1 = Md5::new();
        a1.update(secret.finalize());
        a1.update(format!(":{}:{}", self.nonce, self.cnonce));
        if let Some(authzid) = self.authzid {
            a1.update(format!(":{authzid}"));
        }
        let a2 = Md5::digest(format!("{verb}{}", self.uri));
        let (a1, a2) = (hex(&a1.finalize()), hex(&a2));
        hex(&Md5::digest(format!("{a1}:{}:00000001:{}:auth:{a2}", self.nonce, self.cnonce)))
    }
}

/// Returns a text as it is hashed: in ISO 8859-1 if possible, otherwise in UTF-8 (§2.1.2.1).
fn bytes(text: &str) -> Vec<u8> {
    let latin: Option<Vec<u8>> = text.chars().map(|c| u8::try_from(u32::from(c)).ok()).collect();
    latin.unwrap_or_else(|| text.as_bytes().to_vec())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

/// The fields of a response, in order.
struct Fields(Vec<(String, String)>);

impl Fields {
    /// Parses `name=value` and `name="value"`, separated by commas. A backslash escapes the next character within quotes (§7.1).
    fn parse(response: &[u8]) -> Result<Fields, Refused> {
        let text = std::str::from_utf8(response).map_err(|_| Refused::Malformed)?;
        if text.len() > MAX_RESPONSE_BYTES {
            return Err(Refused::Malformed);
        }
        let (mut out, mut rest) = (Vec::new(), text);
        loop {
            rest = rest.trim_start_matches([',', ' ', '\t']);
            if rest.is_empty() {
                return Ok(Fields(out));
            }
            let (name, after) = rest.split_once('=').ok_or(Refused::Malformed)?;
            let (value, after) = match after.strip_prefix('"') {
                Some(quoted) => quoted_value(quoted)?,
                None => {
                    let end = after.find(',').unwrap_or(after.len());
                    (after[..end].trim_end().to_owned(), &after[end..])
                }
            };
            out.push((name.trim().to_ascii_lowercase(), value));
            rest = after;
        }
    }

    /// Returns a required field.
    fn one(&self, name: &'static str) -> Result<&str, Refused> {
        self.any(name)?.ok_or(Refused::Field(name))
    }

    /// Returns an optional field.
    fn any(&self, name: &'static str) -> Result<Option<&str>, Refused> {
        let mut found = self.0.iter().filter(|(n, _)| n == name);
        let first = found.next().map(|(_, value)| value.as_str());
        if found.next().is_some() { Err(Refused::Field(name)) } else { Ok(first) }
    }
}

/// Returns the value up to its closing quote, and the rest of the text.
fn quoted_value(text: &str) -> Result<(String, &str), Refused> {
    let (mut value, mut chars) = (String::new(), text.chars());
    loop {
        match chars.next().ok_or(Refused::Malformed)? {
            '"' => return Ok((value, chars.as_str())),
            '\\' => value.push(chars.next().ok_or(Refused::Malformed)?),
            c => value.push(c),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        // RFC 2831 §4: chris with the password "secret" at an IMAP server.
        let said = Said {
            user: "chris",
            realm: "elwood.innosoft.com",
            nonce: "OA6MG9tEQGm2hh",
            cnonce: "OA6MHXh6VqTrRk",
            uri: "imap/elwood.innosoft.com",
            authzid: None,
        };
        assert_eq!(said.hash("secret", "AUTHENTICATE:"), "d388dad90d4bbd760a152321f2143af7");
        assert_eq!(said.hash("secret", ":"), "ea40f60335c427b5527b84dbabcdfffd");
    }

    fn exchange() -> Exchange {
        Exchange::begin([7; 24])
    }

    fn users() -> Users {
        Users::new([("bob".to_owned(), "se\"cret".to_owned()), ("jörg".to_owned(), "grün".to_owned())])
    }

    /// Returns the response of a client that uses this password.
    fn response(user: &str, password: &str) -> String {
        let nonce = exchange().nonce;
        let uri = "zookeeper/zk-sasl-md5";
        let said = Said { user, realm: REALM, nonce: &nonce, cnonce: "c,\"n", uri, authzid: Some(user) };
        let hash = said.hash(password, "AUTHENTICATE:");
        format!(
            "charset=utf-8,username=\"{user}\",realm=\"{REALM}\",nonce=\"{nonce}\",nc=00000001,cnonce=\"c,\\\"n\",\
             digest-uri=\"{uri}\",maxbuf=65536,response={hash},qop=auth,authzid=\"{user}\""
        )
    }

    #[test]
    fn who_knows_the_password_is_who_he_says() {
        for (user, password) in [("bob", "se\"cret"), ("jörg", "grün")] {
            let proved = exchange().judge(response(user, password).as_bytes(), &users()).unwrap();
            assert_eq!(proved.user, user);
            assert!(proved.answer.starts_with(b"rspauth=") && proved.answer.len() == 40);
        }
        assert_eq!(format!("{:?}", users()), "{\"bob\", \"jörg\"}", "no passwords");
    }

    #[test]
    fn nobody_else_is() {
        let right = response("bob", "se\"cret");
        for (wrong, refused) in [
            (response("bob", "secret"), Refused::Credentials),
            (response("ann", ""), Refused::Credentials),
            (right.replace("nonce=\"07", "nonce=\"08"), Refused::Other("nonce")),
            (right.replace("nc=00000001", "nc=00000002"), Refused::Other("nc")),
            (right.replace("realm=\"zk", "realm=\"xk"), Refused::Other("realm")),
            (right.replace("uri=\"zookeeper", "uri=\"imap"), Refused::Other("digest-uri")),
            (right.replace("authzid=\"bob", "authzid=\"ann"), Refused::Other("authzid")),
            (right.replace("qop=auth", "qop=auth-conf"), Refused::Other("qop")),
            (right.replace("username=\"bob\",", ""), Refused::Field("username")),
            (format!("{right},username=\"ann\""), Refused::Field("username")),
            (right.replace("response=", "response=\""), Refused::Malformed),
            ("x".repeat(10), Refused::Malformed),
            (format!("{right},x={}", "y".repeat(MAX_RESPONSE_BYTES)), Refused::Malformed),
        ] {
            assert_eq!(exchange().judge(wrong.as_bytes(), &users()), Err(refused), "{wrong}");
        }
        assert_eq!(exchange().judge(&[0xff, 0xfe], &users()), Err(Refused::Malformed));
    }
}
