//! The log that a run uses, its random choices, and when it ends.

use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};

use atoll_client::proto::LogletSpec;
use atoll_client::{Client, Options};
use atoll_contract::ClientId;
use atoll_log_apps::client_log::ClientLog;
use atoll_log_apps::shared_log::SharedLog;

use super::Error;

/// Where the log is.
#[derive(Debug, clap::Args)]
pub struct Target {
    /// Addresses of the cluster's nodes for gRPC
    #[arg(long, env = "ATOLL_CONNECT", value_name = "HOST:PORT,...")]
    connect: String,
    /// Name of the log. It is created if it does not exist
    #[arg(long, default_value = "apps")]
    log: String,
    /// Kind of Loglet for a log that does not exist yet [default: the cluster's]
    #[arg(long, value_name = "KIND")]
    loglet: Option<String>,
    /// Seconds after which an operation on the log is given up
    #[arg(long, default_value_t = 30.0, value_parser = seconds)]
    timeout: f64,
}

impl Target {
    /// Returns after how many seconds an operation is given up.
    pub fn timeout(&self) -> f64 {
        self.timeout
    }

    /// Returns the log, over connections of its own. It exists on return.
    pub async fn open(&self) -> Result<Arc<dyn SharedLog>, Error> {
        open(&self.connect, &self.log, self.loglet.clone(), self.timeout).await
    }
}

/// Returns a log of a cluster, over connections of its own. It exists on return.
pub async fn open(
    connect: &str,
    name: &str,
    loglet: Option<String>,
    timeout_s: f64,
) -> Result<Arc<dyn SharedLog>, Error> {
    // Creating a log may take longer than what the run does with it.
    Client::connect(connect)?.create_log(name, LogletSpec { kind: loglet, ..LogletSpec::default() }).await?;
    let operation_timeout = Duration::from_secs_f64(timeout_s);
    let client = Client::with_options(connect, Options { operation_timeout, ..Options::default() })?;
    Ok(Arc::new(ClientLog::new(client.log(name)?)))
}

/// Reads a number of seconds: more than 0, at most a day.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= 86_400.0 => Ok(value),
        _ => Err("more than 0 and at most 86400 seconds are allowed".to_owned()),
    }
}

/// Returns a client's incarnation: a random one, which no other client has.
pub fn incarnation() -> ClientId {
    ClientId(random())
}

/// Returns a number that nobody can foresee.
pub fn random() -> u64 {
    RandomState::new().hash_one((std::process::id(), SystemTime::now())).max(1)
}

/// Returns the time in nanoseconds, by a clock that all processes of this machine share and that nobody sets.
pub fn now_ns() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Random choices.
pub struct Dice(u64);

impl Dice {
    /// Returns the choices of one client.
    pub fn new(seed: u64, client: u64) -> Self {
        Dice(seed ^ client.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns a number below `below`, which is not 0 (SplitMix64).
    pub fn below(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }

    /// Returns `count` different numbers below `below`, which is at least `count`.
    pub fn some(&mut self, count: u64, below: u64) -> Vec<u64> {
        let mut all: Vec<u64> = (0..below).collect();
        for at in 0..count.min(below) {
            let with = at + self.below(below - at);
            all.swap(at as usize, with as usize);
        }
        all.truncate(count as usize);
        all
    }
}

/// When a run ends: after some time, or at SIGTERM.
#[derive(Clone, Debug)]
pub struct Ending {
    at: Instant,
    told: Arc<AtomicBool>,
}

impl Ending {
    /// Returns the end of a run that lasts at most so many seconds.
    pub fn after(seconds: f64) -> Result<Self, Error> {
        let ending = Ending { at: Instant::now() + Duration::from_secs_f64(seconds), told: Arc::default() };
        let mut signal = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
        let told = ending.told.clone();
        tokio::spawn(async move {
            signal.recv().await;
            told.store(true, Ordering::Relaxed);
        });
        Ok(ending)
    }

    /// Returns whether the run is to end now.
    pub fn is_over(&self) -> bool {
        self.told.load(Ordering::Relaxed) || Instant::now() >= self.at
    }
}
