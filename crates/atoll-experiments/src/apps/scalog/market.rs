//! The online market: producers of events, and the analyser, which serves a page with live counts.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use atoll_core::BoxFuture;
use atoll_log_apps::entry;
use atoll_log_apps::market::{Analysis, Counts, Kind, UserEvent, Windows};
use atoll_log_apps::player::{PlayError, Player};
use atoll_log_apps::shared_log::{LogError, SharedLog};
use bytes::Bytes;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::web::{self, Answer, Request, Site};
use crate::apps::store::play_options;
use crate::apps::target::{Dice, Ending, Target, random, seconds};
use crate::apps::{Error, print};

/// The page. It needs nothing else.
const PAGE: &str = include_str!("market.html");
/// How many items and sessions the page shows.
const SHOWN: usize = 8;
/// How long an analyser that has played to the tail, or cannot, waits before it looks again.
const PAUSE: Duration = Duration::from_millis(50);
/// A producer tells how far it is after so many events.
const TELL_EVERY: u64 = 20;
/// What is for sale: category, name, price in cents. Those at the front are liked more.
const ITEMS: [(&str, &str, u64); 12] = [
    ("books", "sea-atlas", 3_900),
    ("games", "reef-builders", 4_500),
    ("garden", "hand-trowel", 1_250),
    ("books", "tide-tables", 1_490),
    ("music", "concert-ticket", 5_800),
    ("kitchen", "coffee-mill", 7_900),
    ("games", "card-deck", 990),
    ("garden", "bird-feeder", 2_100),
    ("kitchen", "bread-knife", 3_400),
    ("music", "reed-flute", 2_650),
    ("books", "knots-and-splices", 1_890),
    ("garden", "rain-barrel", 8_900),
];

/// Options of producers.
#[derive(Debug, clap::Args)]
pub struct ProduceArgs {
    #[command(flatten)]
    target: Target,
    /// Users, each with one event under way
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    users: u64,
    /// Milliseconds between two events of a user, on average
    #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u64).range(0..=60_000))]
    pause_ms: u64,
    /// How long to run
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Seed of the choices [default: drawn]
    #[arg(long)]
    seed: Option<u64>,
}

/// Options of the analyser.
#[derive(Debug, clap::Args)]
pub struct ServeArgs {
    #[command(flatten)]
    target: Target,
    /// Where the page is; a loopback address
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// Keep the counts in this file, and continue from there
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Seconds between two times that the counts are saved
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    save_every: f64,
}

#[derive(Debug, Default)]
struct Produced {
    acknowledged: AtomicU64,
    unknown: AtomicU64,
    not_done: AtomicU64,
}

impl Produced {
    fn line(&self) -> Value {
        let of = |count: &AtomicU64| count.load(Ordering::Relaxed);
        json!({
            "app": "market_produce", "acknowledged": of(&self.acknowledged), "unknown": of(&self.unknown),
            "not_done": of(&self.not_done),
        })
    }
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// Returns what a user does next. One user in sixteen is a robot, which only searches.
fn some_event(user: u64, session: &str, dice: &mut Dice) -> UserEvent {
    let liked = dice.below(ITEMS.len() as u64);
    let (category, name, price_cents) = ITEMS[dice.below(liked + 1) as usize];
    let kind = match dice.below(20) {
        _ if user % 16 == 15 => Kind::Search {},
        0..11 => Kind::View {},
        11..15 => Kind::Search {},
        15..18 => Kind::Cart {},
        _ => Kind::Purchase {},
    };
    // A telephone without a network sends its events later.
    let behind_ms = if dice.below(50) == 0 { dice.below(45_000) } else { 0 };
    UserEvent {
        user: format!("user-{user}"),
        session: session.to_owned(),
        kind,
        item: format!("{category}/{name}"),
        price_cents,
        time_ms: now_ms().saturating_sub(behind_ms),
    }
}

async fn user(
    log: Arc<dyn SharedLog>,
    number: u64,
    pause_ms: u64,
    mut dice: Dice,
    ending: Ending,
    produced: Arc<Produced>,
) {
    let session = format!("session-{:08x}", dice.below(1 << 32));
    while !ending.is_over() {
        let event = some_event(number, &session, &mut dice);
        let count = match log.append(entry::record(&event)).await {
            Ok(_) => &produced.acknowledged,
            // Not repeated: two copies would count twice.
            Err(LogError::Unknown(_)) => &produced.unknown,
            Err(_) => &produced.not_done,
        };
        if (count.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(TELL_EVERY) {
            // The result of the run does not need this line.
            let _ = print(&produced.line());
        }
        tokio::time::sleep(Duration::from_millis(dice.below(2 * pause_ms + 1))).await;
    }
}

/// Appends what users do.
pub async fn produce(args: &ProduceArgs) -> Result<(), Error> {
    let log = args.target.open().await?;
    let (ending, seed, produced) =
        (Ending::after(args.seconds)?, args.seed.unwrap_or_else(random), Arc::default());
    let mut users = JoinSet::new();
    for number in 0..args.users {
        let dice = Dice::new(seed, number);
        users.spawn(user(log.clone(), number, args.pause_ms, dice, ending.clone(), Arc::clone(&produced)));
    }
    while users.join_next().await.is_some() {}
    print(&produced.line())
}

struct Market {
    analyser: Player<Analysis>,
}

fn counts(name: &str, key: &str, counts: &Counts) -> Value {
    json!({
        key: name, "views": counts.views, "carts": counts.carts, "purchases": counts.purchases,
        "searches": counts.searches, "revenue_cents": counts.revenue_cents,
    })
}

fn sum<'a>(all: impl Iterator<Item = &'a Counts>) -> Counts {
    let mut sum = Counts::default();
    all.for_each(|counts| sum.merge(counts));
    sum
}

impl Market {
    /// Returns what the page shows.
    fn shown(&self) -> Value {
        self.analyser.view(|analysis, applied| {
            let mut top: Vec<_> = analysis.window().into_iter().collect();
            top.sort_by_key(|(item, counts)| (std::cmp::Reverse(counts.views), *item));
            top.truncate(SHOWN);
            let kinds = sum(analysis.totals().values());
            json!({
                "applied": applied, "events": kinds.events(), "late": analysis.late(), "kinds": counts("all", "of", &kinds),
                "bucket_ms": analysis.windows().bucket_ms, "timeline": analysis.timeline(),
                "top": top.iter().map(|(item, of)| counts(item, "item", of)).collect::<Vec<_>>(),
                "categories": analysis.categories().iter().map(|(name, of)| counts(name, "category", of)).collect::<Vec<_>>(),
                "sessions": analysis.anomalies().take(SHOWN).collect::<Vec<_>>(),
            })
        })
    }

    /// Returns all counts over all time.
    fn totals(&self) -> Value {
        self.analyser.view(|analysis, applied| {
            let items: Vec<Value> = analysis.totals().iter().map(|(item, of)| counts(item, "item", of)).collect();
            json!({
                "applied": applied, "events": sum(analysis.totals().values()).events(), "late": analysis.late(),
                "items": items,
            })
        })
    }
}

impl Site for Market {
    fn get(&self, request: Request) -> BoxFuture<'_, Answer> {
        Box::pin(async move {
            match request.path.as_str() {
                "/" => Answer::Page("text/html; charset=utf-8", Bytes::from_static(PAGE.as_bytes())),
                "/events" => Answer::News,
                "/counts" => Answer::Page("application/json", self.totals().to_string().into()),
                _ => Answer::Refused(404, "there are /, /events and /counts".to_owned()),
            }
        })
    }

    fn news(&self) -> String {
        self.shown().to_string()
    }
}

/// Replaces a file as a whole: after a crash, it has the old content or the new one.
fn replace(file: &Path, content: &[u8]) -> io::Result<()> {
    let beside = file.with_extension("new");
    let mut out = File::create(&beside)?;
    out.write_all(content)?;
    out.sync_all()?;
    std::fs::rename(&beside, file)?;
    match file.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        Some(folder) => File::open(folder)?.sync_all(),
        None => File::open(".")?.sync_all(),
    }
}

fn analyser(log: Arc<dyn SharedLog>, file: Option<&Path>) -> Result<Player<Analysis>, Error> {
    let empty = Analysis::new(Windows::default());
    match file.map(std::fs::read) {
        Some(Ok(saved)) => Ok(Player::resume(log, empty, play_options(), saved.into())?),
        Some(Err(error)) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(Player::new(log, empty, play_options())),
    }
}

/// Plays and saves until something fails that does not pass.
async fn analyse(market: &Market, file: Option<&Path>, save_every: Duration) -> Result<(), Error> {
    let (mut saved_at, mut saved) = (tokio::time::Instant::now(), market.analyser.applied());
    loop {
        match market.analyser.play().await {
            Ok(_) => {}
            // The log may answer again. Everything else is final.
            Err(PlayError::Log(error)) => eprintln!("{error}"),
            Err(error) => return Err(error.into()),
        }
        if let Some(file) = file
            && saved_at.elapsed() >= save_every
            && market.analyser.applied() > saved
        {
            // The position is in what is saved: both are there, or neither.
            saved = market.analyser.applied();
            let (file, content) = (file.to_owned(), market.analyser.saved());
            tokio::task::spawn_blocking(move || replace(&file, &content))
                .await
                .map_err(io::Error::other)??;
            saved_at = tokio::time::Instant::now();
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Analyses the log and serves the page, until it is killed or told to end.
pub async fn serve(args: &ServeArgs) -> Result<(), Error> {
    let log = args.target.open().await?;
    let market = Arc::new(Market { analyser: analyser(log, args.state.as_deref())? });
    let listener = web::listen(args.listen).await?;
    print(&json!({
        "app": "market_serve", "page": format!("http://{}/", listener.local_addr()?), "continues_at": market.analyser.applied(),
    }))?;
    let mut told = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let served = tokio::select! {
        done = analyse(&market, args.state.as_deref(), Duration::from_secs_f64(args.save_every)) => done,
        () = web::serve(listener, market.clone()) => Ok(()),
        _ = told.recv() => Ok(()),
    };
    print(&market.totals())?;
    served
}
