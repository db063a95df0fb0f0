//! Index servers of streams as processes of their own, and connections to them. A lost one is replaced by a new one, which plays the log.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use atoll_core::BoxFuture;
use atoll_log_apps::player::Player;
use atoll_log_apps::shared_log::SharedLog;
use atoll_log_apps::streams::{Ask, IndexServer, Saved, Share, StreamError, StreamIndex, StreamServer};
use serde_json::{Value, json};

use super::web::{self, Answer, Request, Site};
use crate::apps::store::play_options;
use crate::apps::target::Target;
use crate::apps::{Error, hex, print};

/// The most positions in an answer.
const MAX_POSITIONS: u64 = 4096;
const JSON: &str = "application/json";

/// Options of an index server.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Where it answers; a loopback address
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// The share of the positions that it indexes, from 0
    #[arg(long, default_value_t = 0)]
    number: u64,
    /// How many shares there are
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=64))]
    of: u64,
}

/// Where the index servers are.
#[derive(Debug, clap::Args)]
pub struct Shares {
    /// The servers of one share, which all answer alike; once for each share, in their order
    #[arg(long = "share", value_name = "IP:PORT,...", required = true)]
    shares: Vec<String>,
}

impl Shares {
    /// Returns a connection for each share.
    pub fn connect(&self) -> Vec<Arc<dyn IndexServer>> {
        let of = self.shares.len() as u64;
        let connect = |(number, addresses): (u64, &String)| -> Arc<dyn IndexServer> {
            let addresses = addresses.split(',').map(str::to_owned).collect();
            Arc::new(Remote { addresses, share: Share { number, of }, next: AtomicUsize::new(0) })
        };
        (0..).zip(&self.shares).map(connect).collect()
    }
}

/// Returns a server of a share that has applied nothing yet.
pub fn server(log: Arc<dyn SharedLog>, share: Share) -> Arc<StreamServer> {
    Arc::new(Player::new(log, StreamIndex::new(share), play_options()))
}

struct Served {
    server: Arc<StreamServer>,
    share: Share,
}

impl Served {
    async fn entries(&self, asked: &BTreeMap<String, String>) -> Result<Value, (u16, String)> {
        let number = |name: &str| {
            let value = asked.get(name).and_then(|value| value.parse::<u64>().ok());
            value.ok_or((400, format!("{name}: a whole number is needed")))
        };
        let share = Share { number: number("number")?, of: number("of")? };
        if share != self.share {
            let Share { number, of } = self.share;
            return Err((
                409,
                format!("this server has share {number} of {of}, not {} of {}", share.number, share.of),
            ));
        }
        let stream = asked.get("stream").ok_or((400, "stream: a name is needed".to_owned()))?.clone().into();
        let max = number("max")?.clamp(1, MAX_POSITIONS) as usize;
        let ask = Ask { stream, from: number("from")?, at_least: number("at_least")?, max };
        let answer = self.server.ask(ask).await.map_err(|error| (503, error.to_string()))?;
        Ok(json!({
            "saved": answer.saved.map(|saved| [saved.position, saved.index]),
            "positions": answer.positions, "complete_below": answer.complete_below,
        }))
    }
}

impl Site for Served {
    fn get(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            let answer = match request.path.as_str() {
                "/entries" => self.entries(&request.parameters).await,
                "/state" => {
                    let ((applied, hash), streams) =
                        (self.server.hash(), self.server.view(|index, _| index.streams().count()));
                    Ok(json!({"applied": applied, "hash": hex(hash), "streams": streams}))
                }
                _ => Err((404, "there are /entries and /state".to_owned())),
            };
            match answer {
                Ok(value) => Answer::Page(JSON, value.to_string().into()),
                Err((status, why)) => Answer::Refused(status, why),
            }
        })
    }
}

/// Serves a share of the index until it is killed, or told to end.
pub async fn run(args: &Args) -> Result<(), Error> {
    let share = Share { number: args.number, of: args.of };
    if share.number >= share.of {
        return Err(Error::Refused(format!(
            "there are shares 0 to {}, and no share {}",
            share.of - 1,
            share.number
        )));
    }
    let server = server(args.target.open().await?, share);
    let listener = web::listen(args.listen).await?;
    print(&json!({"app": "stream_index", "listens": listener.local_addr()?.to_string()}))?;
    let mut told = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    tokio::select! {
        () = web::serve(listener, Arc::new(Served { server, share })) => {}
        _ = told.recv() => {}
    }
    Ok(())
}

/// The servers of one share, each in a process of its own.
#[derive(Debug)]
struct Remote {
    addresses: Vec<String>,
    share: Share,
    /// The one that answered last.
    next: AtomicUsize,
}

impl Remote {
    async fn one(&self, address: &str, ask: &Ask) -> Result<atoll_log_apps::streams::Answer, StreamError> {
        let stream = web::encode(&String::from_utf8_lossy(&ask.stream));
        let Share { number, of } = self.share;
        let target = format!(
            "/entries?stream={stream}&from={}&at_least={}&max={}&number={number}&of={of}",
            ask.from, ask.at_least, ask.max
        );
        let failed = |why: String| StreamError::NoAnswer(format!("{address}: {why}"));
        let body = web::get(address, &target).await.map_err(failed)?;
        read(&body).ok_or_else(|| failed("the answer cannot be read".to_owned()))
    }
}

fn read(body: &[u8]) -> Option<atoll_log_apps::streams::Answer> {
    let value: Value = serde_json::from_slice(body).ok()?;
    let saved = match value.get("saved")? {
        Value::Null => None,
        pair => Some(Saved { position: pair.get(0)?.as_u64()?, index: pair.get(1)?.as_u64()? }),
    };
    let positions = value.get("positions")?.as_array()?.iter().map(Value::as_u64).collect::<Option<_>>()?;
    let complete_below = value.get("complete_below")?.as_u64()?;
    Some(atoll_log_apps::streams::Answer { saved, positions, complete_below })
}

impl IndexServer for Remote {
    fn ask(&self, ask: Ask) -> BoxFuture<'_, Result<atoll_log_apps::streams::Answer, StreamError>> {
        Box::pin(async move {
            let first = self.next.load(Ordering::Relaxed);
            let mut last = StreamError::NoAnswer("no server is named".to_owned());
            for turn in 0..self.addresses.len() {
                let at = (first + turn) % self.addresses.len();
                match self.one(&self.addresses[at], &ask).await {
                    Ok(answer) => {
                        self.next.store(at, Ordering::Relaxed);
                        return Ok(answer);
                    }
                    Err(error) => last = error,
                }
            }
            Err(last)
        })
    }
}
