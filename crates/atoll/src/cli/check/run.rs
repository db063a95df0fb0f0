//! `atoll check run`: concurrent clients with random operations on few keys, for a while; then the check of their history.

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::task::LocalSet;

use super::super::{CliError, Common, grouped};
use super::recorder::Recorder;
use super::{Bar, LimitArgs, check, kv, table, tell, zookeeper};

/// The pause of a client after an operation without an answer.
pub(super) const AFTER_ERROR: Duration = Duration::from_millis(20);
/// How long a client waits for an answer, if `--timeout` is not less.
pub(super) const PATIENCE: Duration = Duration::from_secs(3);
/// How often the progress is shown.
const TICK: Duration = Duration::from_millis(200);

/// The interface to run clients of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Against {
    /// Rows of a table, and transactions over several
    Table,
    /// Znodes, multis, and reads after a sync
    #[value(name = "zookeeper")]
    ZooKeeper,
    /// Keys of a keyspace, and transactions over several if its engine has them
    Kv,
}

/// Arguments of `atoll check run`.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct RunArgs {
    /// The interface
    #[arg(long, value_enum)]
    against: Against,
    /// Where Atoll listens for ZooKeeper clients [default: where `atoll dev` does]
    #[arg(long, env = "ATOLL_ZOOKEEPER", value_name = "HOST:PORT,...", value_delimiter = ',')]
    zookeeper: Vec<String>,
    /// Number of clients. Each has one operation under way; they start at different addresses
    #[arg(long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,
    /// Number of keys: the fewer, the more contention
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u64).range(2..=10_000))]
    keys: u64,
    /// How long to run the clients
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = super::super::seconds)]
    seconds: Duration,
    /// The seed of the random operations [default: drawn, and printed]
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// The table for `--against table`; created if it does not exist
    #[arg(long, value_name = "NAME", default_value = "check")]
    table: String,
    #[command(flatten)]
    kv: kv::KvArgs,
    /// Where to write the history
    #[arg(long, value_name = "FILE")]
    history: PathBuf,
    #[command(flatten)]
    limits: LimitArgs,
}

/// SplitMix64, so that a seed always gives the same operations.
pub(super) struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`.
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.draw() % n.max(1)
    }

    /// Returns up to `count` different numbers below `n`.
    pub(super) fn some(&mut self, count: u64, n: u64) -> Vec<u64> {
        let mut drawn = Vec::new();
        while (drawn.len() as u64) < count.min(n) {
            let one = self.below(n);
            if !drawn.contains(&one) {
                drawn.push(one);
            }
        }
        drawn
    }
}

/// What all clients share.
#[derive(Clone)]
pub(super) struct Shared {
    pub(super) recorder: Rc<RefCell<Recorder>>,
    /// The beginning of the names of the keys, so that no other run has the same.
    pub(super) prefix: String,
    pub(super) keys: u64,
    stopping: Rc<Cell<bool>>,
    seed: u64,
}

impl Shared {
    /// Whether clients should stop.
    pub(super) fn is_over(&self) -> bool {
        self.stopping.get()
    }

    /// Returns the random numbers of a client.
    pub(super) fn random(&self, client: u64) -> Random {
        Random(self.seed ^ client.wrapping_mul(0xd6e8_feb8_6659_fd93))
    }

    /// Returns the present time.
    pub(super) fn now(&self) -> i64 {
        self.recorder.borrow().now()
    }
}

/// Returns the name of a key in the history.
pub(super) fn key_name(key: u64) -> String {
    format!("k{key}")
}

/// Returns addresses in an order that begins with another one for each client.
pub(super) fn rotated(addresses: &[String], client: u64) -> Vec<String> {
    let at = usize::try_from(client).unwrap_or(0) % addresses.len().max(1);
    [&addresses[at..], &addresses[..at]].concat()
}

/// Runs `atoll check run`.
pub(super) async fn run(common: &Common, args: &RunArgs) -> Result<(), CliError> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let drawn = u64::try_from(since.as_nanos() & u128::from(u32::MAX)).unwrap_or(0);
    let seed = args.seed.unwrap_or(drawn);
    let shared = Shared {
        recorder: Rc::new(RefCell::new(Recorder::create(&args.history)?)),
        prefix: format!("check-{seed:x}-{:x}", since.as_micros()),
        keys: args.keys,
        stopping: Rc::new(Cell::new(false)),
        seed,
    };
    let local = LocalSet::new();
    match args.against {
        Against::ZooKeeper => {
            zookeeper::start(&local, common, &args.zookeeper, args.clients, &shared).await?
        }
        Against::Table => table::start(&local, common, &args.table, args.clients, &shared).await?,
        Against::Kv => kv::start(&local, common, &args.kv, args.clients, &shared).await?,
    }
    local.run_until(wait(args.seconds)).await;
    shared.stopping.set(true);
    local.await;
    let mut recorder = shared.recorder.borrow_mut();
    recorder.finish(&args.history)?;
    if recorder.yes == 0 {
        let error = recorder.last_error.take().unwrap_or_default();
        return Err(CliError::NotDecided(format!("no operation was answered; the last error: {error}")));
    }
    let report = check(&args.history, None, &args.limits)?;
    let more = json!({
        "seed": seed, "clients": args.clients, "keys": args.keys, "seconds": args.seconds.as_secs_f64(),
        "outcomes": {"yes": recorder.yes, "no": recorder.no, "unknown": recorder.unknown},
        "last_error": recorder.last_error.clone().map_or(Value::Null, Value::from),
    });
    let words = format!(
        "{} operations of {} clients on {} keys, seed {seed}: {} happened, {} did not, {} unknown\n",
        grouped(recorder.yes + recorder.no + recorder.unknown),
        args.clients,
        args.keys,
        grouped(recorder.yes),
        grouped(recorder.no),
        grouped(recorder.unknown),
    );
    tell(common, &args.history, &report, more, &words)
}

/// Waits, and shows how much of the time is over.
async fn wait(time: Duration) {
    let (began, mut bar) = (Instant::now(), Bar::new("ms of the run"));
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    loop {
        let over = began.elapsed();
        if over >= time {
            break;
        }
        bar.show("ms of the run", ms(over), ms(time));
        tokio::time::sleep(TICK.min(time - over)).await;
    }
    bar.clear();
}
