//! The four-letter words, which return figures for people and monitors in ZooKeeper's format.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::described::{self, Detail};
use super::figures::Refusal;
use super::{Shared, monitor};
use crate::tree::read;
use crate::watch::table::Kind;

/// The version that this door reports to clients and monitors.
pub const VERSION: &str = concat!("3.9.5-atoll-", env!("CARGO_PKG_VERSION"));

/// Longest answer of a word that lists client data.
const MAX_TEXT_BYTES: usize = 1 << 20;
/// Watches to examine while the lock of the table is held.
const PAGE: usize = 1_000;

/// The word that sets the trace mask, which follows it.
const SET_MASK: &str = "stmk";
/// The trace mask with which ZooKeeper starts.
pub(super) const FIRST_MASK: i64 = 0x132;

/// A word from a client.
#[derive(Debug)]
pub(crate) struct Word {
    /// Its four letters.
    pub(crate) name: String,
    /// The trace mask, only behind [`SET_MASK`].
    pub(crate) mask: Option<i64>,
}

/// Returns whether the word is allowed here.
fn is_allowed(shared: &Shared, word: &str) -> bool {
    let options = &shared.options;
    options.words.iter().any(|w| w == word || w == "*") || (word == "isro" && options.read_only_mode)
}

/// Returns whether a trace mask follows this word. One that is not allowed is refused without it.
pub(crate) fn has_mask(shared: &Shared, word: &str) -> bool {
    word == SET_MASK && is_allowed(shared, word)
}

/// Returns the answer to a word.
fn answer(shared: &Shared, word: &Word) -> String {
    let Word { name: word, mask } = word;
    let word = word.as_str();
    let allowed = is_allowed(shared, word);
    if !KNOWN.contains(&word) || !allowed {
        shared.figures.refuse(Refusal::Word);
    }
    if !KNOWN.contains(&word) {
        return format!("{word} is not a known command.\n");
    }
    if !allowed {
        return format!("{word} is not executed because it is not in the whitelist.\n");
    }
    match word {
        // ZooKeeper answers this, too, when its server has stopped but its process has not.
        "ruok" if shared.engine.out_of_service().is_some() => NOT_SERVING.to_owned(),
        "ruok" => "imok".to_owned(),
        "isro" if shared.is_read_only() => "ro".to_owned(),
        "isro" => if shared.engine.out_of_service().is_some() { "null" } else { "rw" }.to_owned(),
        // The trace mask of ZooKeeper's Java server. It is kept, but nothing is traced with it here.
        SET_MASK => set_trace_mask(shared, mask.unwrap_or_default()).to_string(),
        "gtmk" => trace_mask(shared).to_string(),
        "srst" => {
            set_back(shared, true);
            "Server stats reset.\n".to_owned()
        }
        "crst" => {
            set_back(shared, false);
            "Connection stats reset.\n".to_owned()
        }
        "srvr" => described::server(shared, false),
        "stat" => described::server(shared, true),
        "cons" => described::connections(shared, Detail::Full),
        "conf" => described::configuration(shared),
        "envi" => environment(),
        "hash" => hashes(shared),
        "mntr" => monitor(shared),
        "dump" => sessions(shared),
        "dirs" => directories(shared),
        "wchs" => watches(shared),
        "wchc" => watches_by_connection(shared),
        _ => watches_by_path(shared),
    }
}

/// Words that list client data, which may be large, or read the disk.
const LONG: [&str; 7] = ["conf", "cons", "dump", "envi", "stat", "wchc", "wchp"];

/// Returns the answer to a word. A word that may take long runs on another thread than the node's (contracts X20).
pub(crate) async fn answer_in_turn(shared: &Arc<Shared>, word: Word) -> String {
    if !LONG.contains(&&*word.name) {
        return answer(shared, &word);
    }
    let Some(turn) = shared.walks.turn().await else { return String::new() };
    let its = shared.clone();
    let answered = shared.beside(move || {
        let _turn = turn;
        answer(&its, &word)
    });
    answered.await.unwrap_or_default()
}

/// ZooKeeper's answer when its server has stopped.
pub(crate) const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests\n";

/// All words that this door knows.
pub const KNOWN: [&str; 18] = [
    "conf", "cons", "crst", "dirs", "dump", "envi", "gtmk", "hash", "isro", "mntr", "ruok", "srst", "srvr",
    "stat", "stmk", "wchc", "wchp", "wchs",
];

/// Writes lines to a string, which cannot fail.
macro_rules! lines {
    ($out:ident, $($format:literal $(, $arg:expr)*;)*) => {
        $(let _ = writeln!($out, $format $(, $arg)*);)*
    };
}
pub(super) use lines;

/// Returns ZooKeeper's trace mask.
pub(super) fn trace_mask(shared: &Shared) -> i64 {
    shared.trace_mask.load(Ordering::Relaxed)
}

/// Sets ZooKeeper's trace mask, and returns it. It has no effect.
pub(super) fn set_trace_mask(shared: &Shared, mask: i64) -> i64 {
    shared.trace_mask.store(mask, Ordering::Relaxed);
    mask
}

fn environment() -> String {
    let mut out = String::from("Environment:\n");
    for (name, value) in described::environment() {
        lines!(out, "{name}={value}";);
    }
    out
}

/// Lists the hashes of this replica's state. ZooKeeper lists them by zxid, this door by the positions of the log at which all replicas can
/// be compared.
fn hashes(shared: &Shared) -> String {
    let mut out = String::new();
    for hash in shared.engine.hashes() {
        lines!(out, "{:x}: {:032x}", hash.below.0, hash.hash;);
    }
    out
}

fn monitor(shared: &Shared) -> String {
    let mut out = String::new();
    lines!(
        out,
        "zk_version\t{VERSION}";
        "zk_server_state\t{}", monitor::state(shared);
    );
    for (name, value) in monitor::rows(&monitor::metrics(shared)) {
        lines!(out, "zk_{name}\t{}", monitor::printed(value););
    }
    out
}

/// A text with a maximum length. Its last line states what was left out.
pub(super) struct Capped {
    out: String,
    most_bytes: usize,
    is_full: bool,
}

impl Default for Capped {
    fn default() -> Self {
        Capped::with_at_most(MAX_TEXT_BYTES)
    }
}

impl Capped {
    /// Creates an empty text of at most so many bytes.
    pub(super) fn with_at_most(most_bytes: usize) -> Capped {
        Capped { out: String::new(), most_bytes, is_full: false }
    }

    /// Adds a line if there is room for it and no earlier line was left out; returns whether it was added.
    pub(super) fn line(&mut self, line: &str) -> bool {
        self.is_full |= self.out.len() + line.len() >= self.most_bytes;
        if !self.is_full {
            self.out.push_str(line);
            self.out.push('\n');
        }
        !self.is_full
    }

    /// Returns the text, which lists `whole` of `all` things completely.
    pub(super) fn end(mut self, whole: usize, all: usize, things: &str) -> String {
        if self.is_full {
            let left = all.saturating_sub(whole);
            let last = format!("LEFT OUT: {left} of {all} {things}, the first perhaps in part\n");
            self.out.push_str(&last);
        }
        self.out
    }
}

fn sessions(shared: &Shared) -> String {
    let held = shared.sessions.ids();
    let view = shared.engine.view();
    let mut text = Capped::default();
    text.line(&format!("Sessions held by this node ({}):", held.len()));
    let put = |text: &mut Capped, (session, timeout): &(i64, Duration)| {
        text.line(&format!("{session:#x}\t{}ms", timeout.as_millis()))
    };
    let listed = held.iter().take_while(|one| put(&mut text, one)).count();
    if text.is_full {
        return text.end(listed, held.len(), "sessions, and all ephemerals");
    }
    text.line("Ephemerals of these sessions:");
    let mut whole = 0;
    for (session, _) in &held {
        let mut is_first = true;
        // If the ephemerals of a session cannot be read, they are omitted. The session itself is listed above.
        let _ = read::ephemerals(&view, *session, "/", |path| {
            if std::mem::take(&mut is_first) {
                text.line(&format!("{session:#x}:"));
            }
            text.line(&format!("\t{path}"));
        });
        if text.is_full {
            break;
        }
        whole += 1;
    }
    text.end(whole, held.len(), "sessions with their ephemerals")
}

fn directories(shared: &Shared) -> String {
    let (health, mut out) = (shared.engine.health(), String::new());
    lines!(
        out,
        "datadir_size: {}", health.store_bytes;
        "logdir_size: 0";
    );
    out
}

fn watches(shared: &Shared) -> String {
    let mut out = String::new();
    shared.watches.look(|table| {
        let total: usize = Kind::ALL.into_iter().map(|kind| table.count(kind)).sum();
        lines!(
            out,
            "{} connections watching {} paths", table.watching(), table.watched();
            "Total watches:{}", total;
        );
    });
    out
}

fn session_of(shared: &Shared, id: u64) -> i64 {
    shared.connections().get(id).map_or(0, |c| c.session.load(Ordering::Relaxed))
}

/// Resets the server's counters, or else those of its connections.
pub(crate) fn set_back(shared: &Shared, server: bool) {
    if server {
        let figures = &shared.figures;
        figures.received.reset();
        figures.sent.reset();
        figures.write_us.reset();
        figures.read_us.reset();
        return;
    }
    shared.all_connections().iter().for_each(|connection| connection.reset());
}

/// Limits the rows of a JSON answer, as [`Capped`] limits a text.
#[derive(Default)]
pub(crate) struct RowBudget {
    taken_bytes: usize,
}

impl RowBudget {
    /// Takes a row of this many bytes if there is room for it and no earlier row was left out; returns whether it was taken.
    pub(crate) fn take(&mut self, bytes: usize) -> bool {
        self.taken_bytes = self.taken_bytes.saturating_add(bytes);
        !self.is_full()
    }

    /// Returns whether rows were left out.
    pub(crate) fn is_full(&self) -> bool {
        self.taken_bytes > MAX_TEXT_BYTES
    }
}

/// Returns the paths that each connection watches, with the connection's session, and the number of connections that were left out.
pub(crate) fn watches_of_connections(shared: &Shared) -> (Vec<(i64, Vec<String>)>, usize) {
    let watching = shared.watches.look(|table| table.connections().collect::<Vec<_>>());
    let mut budget = RowBudget::default();
    let mut found = Vec::new();
    for id in &watching {
        let mut paths: Vec<String> = Vec::new();
        // Page by page, because the applying thread must not wait long for the table.
        while !budget.is_full()
            && let Some(more) = shared.watches.look(|table| table.paths_of(*id, paths.last(), PAGE))
        {
            more.iter().for_each(|path| _ = budget.take(path.len()));
            paths.extend(more);
        }
        if budget.is_full() {
            break;
        }
        found.push((session_of(shared, *id), paths));
    }
    let left_out = watching.len() - found.len();
    (found, left_out)
}

/// Returns the sessions that watch each path, and the number of paths that were left out.
pub(crate) fn watches_of_paths(shared: &Shared) -> (Vec<(String, Vec<i64>)>, usize) {
    let mut budget = RowBudget::default();
    let mut found: Vec<(String, Vec<i64>)> = Vec::new();
    loop {
        let last = found.last().map(|(path, _)| path);
        let more = shared.watches.look(|table| table.paths_after(last, PAGE));
        if more.is_empty() {
            return (found, 0);
        }
        for (path, ids) in more {
            if !budget.take(path.len() + ids.len() * size_of::<i64>()) {
                let all = shared.watches.look(|table| table.watched());
                let left_out = all.saturating_sub(found.len());
                return (found, left_out);
            }
            found.push((path, ids.into_iter().map(|id| session_of(shared, id)).collect()));
        }
    }
}

fn watches_by_connection(shared: &Shared) -> String {
    let watching = shared.watches.look(|table| table.connections().collect::<Vec<_>>());
    let mut text = Capped::default();
    let mut whole = 0;
    for id in &watching {
        text.line(&format!("{:#x}", session_of(shared, *id)));
        let mut last = None;
        while let Some(paths) =
            shared.watches.look(|table| table.paths_of(*id, last.as_ref(), PAGE)).filter(|_| !text.is_full)
        {
            for path in &paths {
                text.line(&format!("\t{path}"));
            }
            last = paths.into_iter().next_back();
        }
        if text.is_full {
            break;
        }
        whole += 1;
    }
    text.end(whole, watching.len(), "connections")
}

fn watches_by_path(shared: &Shared) -> String {
    let mut text = Capped::default();
    let (mut last, mut whole) = (None, 0);
    loop {
        let some = shared.watches.look(|table| table.paths_after(last.as_ref(), PAGE));
        for (path, ids) in &some {
            text.line(path);
            for id in ids {
                text.line(&format!("\t{:#x}", session_of(shared, *id)));
            }
            whole += usize::from(!text.is_full);
        }
        last = some.into_iter().next_back().map(|(path, _)| path);
        if last.is_none() || text.is_full {
            let all = shared.watches.look(|table| table.watched());
            return text.end(whole, all, "paths");
        }
    }
}
