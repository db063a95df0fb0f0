//! As much of HTTP/1.1 as the programs need: GET of small pages and of streams of events on loopback, and a client of it.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use atoll_core::BoxFuture;
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

use crate::apps::Error;

/// The longest head of a request.
const MAX_HEAD_BYTES: usize = 8 << 10;
/// The largest answer that the client takes.
const MAX_ANSWER_BYTES: u64 = 4 << 20;
/// A request must have come as a whole within this time, and a write must have been taken.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most connections at once. Further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// How long the server waits after a connection that could not be accepted.
const PAUSE: Duration = Duration::from_millis(200);
/// How often a stream of events looks for news.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// After so long without news, a stream says that it is alive.
const ALIVE_EVERY: Duration = Duration::from_secs(10);
/// What pages may do: nothing from elsewhere.
const POLICY: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:";

/// What is asked for: the path, and the parameters behind it.
pub struct Request {
    pub path: String,
    pub parameters: BTreeMap<String, String>,
}

/// An answer.
pub enum Answer {
    /// A page of a kind.
    Page(&'static str, Bytes),
    /// A stream of events: the news of the site, whenever they change.
    News,
    /// The request is wrong, or nothing is there; the status and why.
    Refused(u16, String),
}

/// What a server serves.
pub trait Site: Send + Sync + 'static {
    fn get(&self, request: Request) -> BoxFuture<'_, Answer>;

    /// Returns what streams of events tell now.
    fn news(&self) -> String {
        String::new()
    }
}

/// Opens a listener. Refuses addresses beyond loopback: nobody is authenticated here.
pub async fn listen(address: SocketAddr) -> Result<TcpListener, Error> {
    if !address.ip().is_loopback() {
        return Err(Error::Refused(format!("{address} is not a loopback address; only these are allowed")));
    }
    Ok(TcpListener::bind(address).await?)
}

/// Serves until the program ends.
pub async fn serve(listener: TcpListener, site: Arc<impl Site>) {
    let room = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        // It is never closed.
        let Ok(place) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(PAUSE).await;
            continue;
        };
        let site = site.clone();
        tokio::spawn(async move {
            // A client that went away needs no answer.
            drop(connection(stream, &*site).await);
            drop(place);
        });
    }
}

async fn connection(mut stream: TcpStream, site: &impl Site) -> std::io::Result<()> {
    let head = match tokio::time::timeout(PATIENCE, head(&mut stream)).await {
        Ok(head) => head?,
        Err(_) => return Ok(()),
    };
    let answer = match parse(&head) {
        Ok(request) => site.get(request).await,
        Err((status, why)) => Answer::Refused(status, why.to_owned()),
    };
    match answer {
        Answer::Page(kind, body) => send(&mut stream, 200, kind, &body).await,
        Answer::Refused(status, why) => {
            send(&mut stream, status, "text/plain; charset=utf-8", why.as_bytes()).await
        }
        Answer::News => news(&mut stream, site).await,
    }
}

/// Reads up to the empty line.
async fn head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    let mut some = [0; 1024];
    while !head.windows(4).any(|end| end == b"\r\n\r\n") && head.len() <= MAX_HEAD_BYTES {
        match stream.read(&mut some).await? {
            0 => break,
            count => head.extend_from_slice(&some[..count]),
        }
    }
    Ok(head)
}

fn parse(head: &[u8]) -> Result<Request, (u16, &'static str)> {
    if head.len() > MAX_HEAD_BYTES {
        return Err((431, "the head of a request has at most 8192 bytes"));
    }
    let line = head.split(|byte| *byte == b'\r').next().and_then(|line| std::str::from_utf8(line).ok());
    let mut words = line.unwrap_or_default().split(' ');
    let (Some("GET"), Some(target), Some("HTTP/1.1" | "HTTP/1.0")) =
        (words.next(), words.next(), words.next())
    else {
        return Err((400, "only GET of HTTP/1.1 is served"));
    };
    let (path, rest) = target.split_once('?').unwrap_or((target, ""));
    let mut parameters = BTreeMap::new();
    for pair in rest.split('&').filter(|pair| !pair.is_empty()) {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        parameters
            .insert(name.to_owned(), decode(value).ok_or((400, "a parameter is not UTF-8 with % escapes"))?);
    }
    Ok(Request { path: path.to_owned(), parameters })
}

fn decode(value: &str) -> Option<String> {
    let (mut out, mut rest) = (Vec::new(), value.as_bytes());
    while let Some((first, others)) = rest.split_first() {
        rest = others;
        match first {
            b'%' => {
                let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
                out.push(u8::from_str_radix(digits, 16).ok()?);
                rest = &rest[2..];
            }
            b'+' => out.push(b' '),
            byte => out.push(*byte),
        }
    }
    String::from_utf8(out).ok()
}

/// Escapes a parameter.
pub fn encode(value: &str) -> String {
    value
        .bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' => char::from(byte).to_string(),
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

async fn write(stream: &mut TcpStream, data: &[u8]) -> std::io::Result<()> {
    // A client that takes nothing must not hold its place for ever.
    tokio::time::timeout(PATIENCE, stream.write_all(data)).await.map_err(|_| std::io::ErrorKind::TimedOut)?
}

async fn send(stream: &mut TcpStream, status: u16, kind: &str, body: &[u8]) -> std::io::Result<()> {
    let head = format!(
        "HTTP/1.1 {status} {}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nContent-Security-Policy: {POLICY}\r\n\
         Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
        if status == 200 { "OK" } else { "Refused" },
        body.len()
    );
    write(stream, &[head.as_bytes(), body].concat()).await?;
    stream.shutdown().await
}

async fn news(stream: &mut TcpStream, site: &impl Site) -> std::io::Result<()> {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\nConnection: close\r\n\r\n";
    write(stream, head.as_bytes()).await?;
    let (mut last, mut told) = (String::new(), Instant::now());
    loop {
        let now = site.news();
        if now != last {
            write(stream, format!("data: {now}\n\n").as_bytes()).await?;
            (last, told) = (now, Instant::now());
        } else if told.elapsed() >= ALIVE_EVERY {
            write(stream, b": alive\n\n").await?;
            told = Instant::now();
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Returns the body of a page, or why there is none.
pub async fn get(address: &str, target: &str) -> Result<Vec<u8>, String> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        let request = format!("GET {target} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
        std::io::Result::Ok(answer)
    };
    let answer = match tokio::time::timeout(PATIENCE, asked).await {
        Ok(answer) => answer.map_err(|error| error.to_string())?,
        Err(_) => return Err(format!("{address} did not answer within {} s", PATIENCE.as_secs())),
    };
    let end = answer.windows(4).position(|end| end == b"\r\n\r\n").ok_or("the answer has no head")?;
    let (head, body) = (String::from_utf8_lossy(&answer[..end]).into_owned(), answer[end + 4..].to_vec());
    let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: ")?.parse::<usize>().ok());
    if length != Some(body.len()) {
        return Err("the answer is not whole".to_owned());
    }
    match head.starts_with("HTTP/1.1 200 ") {
        true => Ok(body),
        false => Err(String::from_utf8_lossy(&body).into_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_or_refused_with_a_reason() {
        let Ok(request) = parse(b"GET /entries?stream=a%2Fb%20c&from=3&x HTTP/1.1\r\nHost: h\r\n\r\n") else {
            panic!("a good request is refused");
        };
        assert_eq!(request.path, "/entries");
        let found: Vec<_> =
            request.parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        assert_eq!(found, [("from", "3"), ("stream", "a/b c"), ("x", "")]);
        let long = [b"GET /".to_vec(), vec![b'x'; MAX_HEAD_BYTES]].concat();
        for (bad, status) in [
            (&b"POST / HTTP/1.1\r\n\r\n"[..], 400),
            (b"GET / HTTP/2\r\n\r\n", 400),
            (b"GET /?a=%f HTTP/1.1\r\n\r\n", 400),
            (b"GET /?a=%ff HTTP/1.1\r\n\r\n", 400),
            (b"", 400),
            (b"\xff\xff", 400),
            (&long, 431),
        ] {
            assert_eq!(parse(bad).err().map(|(status, _)| status), Some(status), "{bad:?}");
        }
        assert_eq!(decode(&encode("o/1 ä+&=%")), Some("o/1 ä+&=%".to_owned()));
    }
}
