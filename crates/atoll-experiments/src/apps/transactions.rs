//! Optimistic transactions (Hyder; TOCS'13 §3): clients that move money, add it up, and share a few places.
//!
//! A transfer reads two accounts and writes both. An audit reads all of them as a range: the sum never changes. A seat is taken after
//! a look at all seats, as a range, by writing a key that may not have been there: more taken seats than allowed would show a phantom.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use atoll_log_apps::player::Player;
use atoll_log_apps::transactions::{Database, NoProcedures, Transaction, TxnError, TxnLimits, TxnState};
use bytes::Bytes;
use serde_json::json;
use tokio::task::JoinSet;

use super::history::{Ended, History, Steps};
use super::store::play_options;
use super::target::{Dice, Ending, Target, incarnation, now_ns, random, seconds};
use super::{Error, hex, print};
use crate::latency::Latencies;

/// What is in each account at first.
const BALANCE: u64 = 100;
/// Places for seats.
const PLACES: u64 = 6;
/// How many of them may be taken.
const MAY_BE_TAKEN: usize = 3;
/// How long a client waits after a transaction whose outcome is not known, or that the log refused.
const PAUSE: Duration = Duration::from_millis(20);
/// How often an append of unknown outcome is repeated in all.
const APPEND_ATTEMPTS: usize = 3;

/// Options of the load.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    target: Target,
    /// Clients, each with one transaction under way
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=1000))]
    clients: u64,
    /// The first client's number in the history
    #[arg(long, default_value_t = 0)]
    first_client: u64,
    /// Accounts
    #[arg(long, default_value_t = 6, value_parser = clap::value_parser!(u64).range(2..=1000))]
    accounts: u64,
    /// How long to run
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    seconds: f64,
    /// Write the history of committed transactions, and those of unknown outcome, to this file
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
    /// Seed of the choices [default: drawn]
    #[arg(long)]
    seed: Option<u64>,
    /// Run no transaction: play to the tail, and tell the hash there
    #[arg(long)]
    replay: bool,
}

/// What a transaction has read and written, for the history.
#[derive(Default)]
struct Done {
    steps: Steps,
    read: Vec<Option<Bytes>>,
}

impl Done {
    fn saw(&mut self, key: &Bytes, value: Option<Bytes>) {
        self.steps.get(key);
        self.read.push(value);
    }

    fn put(&mut self, txn: &mut Transaction<'_>, key: Bytes, value: Option<Bytes>) -> Result<(), TxnError> {
        self.steps.put(&key, value.as_ref());
        txn.put(key, value)
    }

    /// Reads a range that can have these keys only. Each of them counts as read.
    fn range(
        &mut self,
        txn: &mut Transaction<'_>,
        from: &str,
        to: &str,
        keys: &[Bytes],
    ) -> Result<Vec<Option<Bytes>>, TxnError> {
        let found = txn.range(from.as_bytes(), to.as_bytes(), keys.len() + 1)?;
        let value = |key: &Bytes| found.iter().find(|(k, _)| k == key).map(|(_, value)| value.clone());
        let values: Vec<_> = keys.iter().map(value).collect();
        keys.iter().zip(&values).for_each(|(key, value)| self.saw(key, value.clone()));
        Ok(values)
    }
}

/// What the clients share.
struct Load {
    accounts: Vec<Bytes>,
    seats: Vec<Bytes>,
    history: History,
    latencies: Mutex<Latencies>,
    violated: Mutex<Option<String>>,
}

fn balance(value: Option<&Bytes>) -> u64 {
    let text = value.map(|value| String::from_utf8_lossy(value).into_owned()).unwrap_or_default();
    text.split(' ').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl Load {
    fn violated(&self, words: String) {
        self.violated.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(words);
    }

    fn transfer(&self, txn: &mut Transaction<'_>, dice: &mut Dice, name: &str) -> Result<Done, TxnError> {
        let mut done = Done::default();
        let two = dice.some(2, self.accounts.len() as u64);
        let [from, to] = [two[0], two[1]].map(|at| self.accounts[at as usize].clone());
        let (less, more) = (txn.get(&from)?, txn.get(&to)?);
        done.saw(&from, less.clone());
        done.saw(&to, more.clone());
        let (has, sum) = (balance(less.as_ref()), dice.below(10));
        let sum = sum.min(has);
        done.put(txn, from, Some(format!("{} {name}", has - sum).into()))?;
        done.put(txn, to, Some(format!("{} {name}", balance(more.as_ref()) + sum).into()))?;
        Ok(done)
    }

    fn audit(&self, txn: &mut Transaction<'_>) -> Result<Done, TxnError> {
        let mut done = Done::default();
        let values = done.range(txn, "account-", "account.", &self.accounts)?;
        let sum: u64 = values.iter().map(|value| balance(value.as_ref())).sum();
        let right = BALANCE * self.accounts.len() as u64;
        if sum != right {
            self.violated(format!(
                "at index {}, all accounts together have {sum}, not {right}",
                txn.snapshot()
            ));
        }
        Ok(done)
    }

    fn seat(&self, txn: &mut Transaction<'_>, dice: &mut Dice, name: &str) -> Result<Done, TxnError> {
        let mut done = Done::default();
        let taken = done.range(txn, "seat-", "seat.", &self.seats)?;
        let count = taken.iter().flatten().count();
        if count > MAY_BE_TAKEN {
            self.violated(format!(
                "at index {}, {count} seats are taken; {MAY_BE_TAKEN} may be",
                txn.snapshot()
            ));
        }
        let at = dice.below(PLACES) as usize;
        if count < MAY_BE_TAKEN || taken[at].is_some() {
            let value = taken[at].is_none().then(|| format!("taken {name}").into());
            done.put(txn, self.seats[at].clone(), value)?;
        }
        Ok(done)
    }

    /// Gives every account its first balance, unless it was done before.
    fn found(&self, txn: &mut Transaction<'_>) -> Result<Done, TxnError> {
        let mut done = Done::default();
        let first = txn.get(&self.accounts[0])?;
        done.saw(&self.accounts[0], first.clone());
        if first.is_none() {
            for account in &self.accounts {
                done.put(txn, account.clone(), Some(format!("{BALANCE} first").into()))?;
            }
        }
        Ok(done)
    }

    /// Runs a transaction once, and notes what became of it.
    async fn once(
        &self,
        database: &Database,
        number: u64,
        body: impl FnOnce(&mut Transaction<'_>) -> Result<Done, TxnError>,
    ) -> Result<(), TxnError> {
        let (call, began) = (now_ns(), Instant::now());
        let mut txn = database.begin().await?;
        let Done { steps, read } = body(&mut txn)?;
        let writes = txn.writes();
        let (ended, result) = match txn.commit().await {
            Ok(index) => (Ended::Yes(read, writes.then_some(index)), Ok(())),
            Err(error @ TxnError::Unknown(_)) => (Ended::Unknown, Err(error)),
            Err(error) => (Ended::No, Err(error)),
        };
        if result.is_ok() {
            self.latencies.lock().unwrap_or_else(PoisonError::into_inner).add(began.elapsed());
        }
        self.history.ended("committed", number, call, steps, ended);
        result
    }

    async fn client(self: Arc<Self>, database: Database, number: u64, mut dice: Dice, ending: Ending) {
        let mut count = 0u64;
        while !ending.is_over() {
            count += 1;
            let (name, choice) = (format!("{number}-{count}"), dice.below(10));
            let done = self.once(&database, number, |txn| match choice {
                0..5 => self.transfer(txn, &mut dice, &name),
                5..7 => self.audit(txn),
                _ => self.seat(txn, &mut dice, &name),
            });
            match done.await {
                Ok(()) => {}
                Err(error) if error.may_retry() => self.history.count("conflicts"),
                Err(_) => tokio::time::sleep(PAUSE).await,
            }
        }
    }
}

/// Runs clients for a while. All of them share one replica of this process.
pub async fn run(args: &Args) -> Result<(), Error> {
    let log = args.target.open().await?;
    let state = TxnState::new(TxnLimits::default(), Arc::new(NoProcedures));
    let replica = Arc::new(Player::new(log, state, play_options()));
    if args.replay {
        replica.play().await?;
        let (applied, hash) = replica.hash();
        return print(&json!({"app": "transactions", "replay": true, "applied": applied, "hash": hex(hash)}));
    }
    let names = |what: &str, count| (0..count).map(|n| Bytes::from(format!("{what}-{n:03}"))).collect();
    let load = Arc::new(Load {
        accounts: names("account", args.accounts),
        seats: names("seat", PLACES),
        history: History::create(args.history.as_deref())?,
        latencies: Mutex::new(Latencies::new()),
        violated: Mutex::default(),
    });
    let ending = Ending::after(args.seconds)?;
    let database = || Database::new(replica.clone(), incarnation(), APPEND_ATTEMPTS);
    while let Err(error) = load.once(&database(), args.first_client, |txn| load.found(txn)).await {
        if ending.is_over() {
            return Err(Error::Violated(format!("the accounts could not be made: {error}")));
        }
        tokio::time::sleep(PAUSE).await;
    }
    let seed = args.seed.unwrap_or_else(random);
    let (mut clients, began) = (JoinSet::new(), Instant::now());
    for number in args.first_client..args.first_client + args.clients {
        let dice = Dice::new(seed, number);
        clients.spawn(load.clone().client(database(), number, dice, ending.clone()));
    }
    while clients.join_next().await.is_some() {}
    let busy = began.elapsed();
    replica.play().await?;
    let (applied, hash) = replica.hash();
    let latencies = &mut *load.latencies.lock().unwrap_or_else(PoisonError::into_inner);
    latencies.busy = busy;
    let settings = json!({"clients": args.clients, "accounts": args.accounts, "seed": seed});
    print(&json!({
        "app": "transactions", "counts": load.history.finish()?, "applied": applied, "hash": hex(hash),
        "committed": latencies.line("atoll", "transactions", 0, &settings),
    }))?;
    match load.violated.lock().unwrap_or_else(PoisonError::into_inner).take() {
        Some(words) => Err(Error::Violated(words)),
        None => Ok(()),
    }
}
